"""`Ledger`: everything that Redis holds of one run.

Data model; `R` is `run:{run_id}`. Messages on the queue are hints, these keys are what decides, and the part files outlive them: with an
empty Redis a run is rebuilt from its folder. Every key has a time to live and goes when the run ends.

    R:spec             string  the RunSpec; without it there is no run, and no script below writes anything
    R:done             bitmap  landed shards
    R:issued           set     shards that were handed out and whose results are not there yet
    R:finished         set     shards whose results are there and have not landed
    R:blob:{shard}     string  input of an issued shard, Arrow IPC
    R:lease:{shard}    string  token of the worker that holds the shard; lives for the lease's seconds only
    R:attempts         hash    shard → attempts begun in this session of the coordinator
    R:result:{shard}   hash    `rows` (Arrow IPC) and `report` (AttemptReport), until the coordinator has landed them
    R:ready            list    shards whose results wait
    R:faults           list    Fault, oldest first, until the coordinator has read them
    R:live             hash    worker → LiveReport
    R:careful          set     shards that ended their engine twice and now run record by record
    R:deaths:{shard}   hash    record → times it was begun alone and not ended: what the engine died of
    R:cancel           string  set to end the run early
    R:pause            string  why the run is held: nothing is handed out, and what is in work is given up
    R:keeper           string  who feeds and reconciles: `worker.keeper_lock`
    R:class            string  the backend class that all shards of a `--backend same` run have: the first worker's that began one
    R:inputs           string  the first shard of a submitted run whose input, and those behind it, lie in the dataset's folder
    R:terms            string  RunTerms: its priority among the runs, and what holds it
    R:shared           string  the dataset's folder, when workers may land their parts in it themselves
    R:submitted        string  set for a run that goes on without a coordinator: all its blobs lie there from the beginning

Keys that workers write live as long as R:spec: an hour after its coordinator's last sign, or a week for a submitted run.

Workers write through scripts that look at R:spec first, so a worker that wakes up after the end of a run leaves nothing behind.
"""

from collections.abc import Iterable
from typing import Any, cast

import redis

from schemas.errors import DecodeError
from schemas.profile import ANY, SAME
from schemas.progress import AttemptReport
from schemas.run_spec import RunSpec
from worker import ledger_scripts
from worker.reports import Fault, LiveReport
from worker.run_terms import RunTerms

KEY_SECONDS = 3600  # of a run whose coordinator is away; renewed while it is there
SUBMITTED_SECONDS = 7 * 24 * 3600  # of a run that goes on without a coordinator
RUN_KEYS = (
    *("spec", "done", "issued", "finished", "attempts", "ready", "faults", "live", "careful"),
    *("cancel", "pause", "keeper", "submitted", "shared", "class", "terms", "inputs"),
)
SHARD_KEYS = ("blob", "result", "lease", "deaths")


class Ledger:
    """One run's keys, seen from a worker or from the coordinator."""

    def __init__(self, client: redis.Redis, run_id: str) -> None:
        self._redis = client
        self._key_seconds = KEY_SECONDS
        self._prefix = f"run:{run_id}"
        self._key = {name: f"{self._prefix}:{name}" for name in RUN_KEYS}

    def _of(self, kind: str, shard: int) -> str:
        return f"{self._prefix}:{kind}:{shard}"

    def _run(self, script: str, keys: list[str], args: list[Any]) -> Any:
        return self._redis.register_script(script)(keys=keys, args=args)

    # What workers do.

    def spec(self) -> RunSpec | None:
        """The run's spec, or None for a run that is over or unknown.

        Raises:
            DecodeError: a spec of another version of specmill.
        """
        text = cast("bytes | None", self._redis.get(self._key["spec"]))
        return None if text is None else RunSpec.from_json(text)

    def job(self, shard: int) -> tuple[RunSpec, bytes | None] | None:
        """The run's spec and the shard's input, asked for at once.

        Returns:
            None for a run that is over or a shard that is not issued; no input for one that lies in the dataset's folder.

        Raises:
            DecodeError: as `spec`.
        """
        keys = (self._key["spec"], self._of("blob", shard), self._key["inputs"])
        text, blob, first = cast("list[bytes | None]", self._redis.mget(*keys))
        if text is None or (blob is None and (first is None or shard < int(first))):
            return None
        return RunSpec.from_json(text), blob

    def claim(self, shard: int, token: str, lease_seconds: float) -> int:
        """Begin an attempt: count it and take the lease, in one step.

        Returns:
            The attempt's number, from 1; 0 when the shard is done, held by another worker, or of a run that is over or paused.
        """
        keys = [self._key["spec"], self._key["done"], self._of("result", shard), self._of("lease", shard)]
        keys += [self._key[name] for name in ("attempts", "pause", "cancel")]
        state, attempt = self._run(ledger_scripts.CLAIM, keys, [shard, token, int(lease_seconds * 1000)])
        return int(attempt) if state == b"claimed" else 0

    def renew(self, shard: int, token: str, lease_seconds: float) -> str:
        """Extend the lease, or take it again when it has run out and nobody else has it.

        Returns:
            `held`; `lost` to another worker; or `cancelled`: the run is over, cancelled or paused.
        """
        keys = [self._key["spec"], self._key["done"], self._of("lease", shard), self._key["cancel"], self._key["pause"]]
        return cast("bytes", self._run(ledger_scripts.RENEW, keys, [shard, token, int(lease_seconds * 1000)])).decode()

    def release(self, shard: int, token_prefix: str, *, forgive: bool = False) -> bool:
        """Delete the lease if its token starts so.

        Args:
            shard: shard index.
            token_prefix: a whole token, or a worker's name and `/` for whatever lease it holds.
            forgive: do not count the attempt: it ended for no fault of the shard.
        """
        keys = [self._of("lease", shard), self._key["attempts"]]
        return bool(self._run(ledger_scripts.RELEASE, keys, [shard, token_prefix, int(forgive)]))

    def deliver(self, shard: int, token: str, rows: bytes, report: AttemptReport, idle: LiveReport) -> str:
        """Hand a finished shard to the coordinator and give the lease back, in one step: `delivered`, `lost` or `gone`."""
        named = ("spec", "done")
        keys = [*(self._key[name] for name in named), self._of("result", shard), self._key["ready"], self._of("lease", shard)]
        args = [shard, token, rows, report.to_json(), report.worker, idle.to_json()]
        keys += [self._key[name] for name in ("live", "issued", "finished")]
        return cast("bytes", self._run(ledger_scripts.DELIVER, keys, args)).decode()

    def record_fault(self, fault: Fault) -> None:
        """Tell the coordinator about an attempt that produced nothing."""
        self._run(ledger_scripts.RECORD_FAULT, [self._key["spec"], self._key["faults"]], [fault.to_json()])

    def report_live(self, worker: str, live: LiveReport) -> None:
        """Show the worker's present state."""
        self._run(ledger_scripts.REPORT_LIVE, [self._key["spec"], self._key["live"]], [worker, live.to_json()])

    def shared(self) -> str | None:
        """The dataset's folder, when workers may land their parts in it."""
        folder = cast("bytes | None", self._redis.get(self._key["shared"]))
        return None if folder is None else folder.decode()

    def wanted_class(self, spec: RunSpec) -> str | None:
        """The backend class whose workers may take shards; None while any may."""
        if spec.backend == SAME:
            name = cast("bytes | None", self._redis.get(self._key["class"]))
            return None if name is None else name.decode()
        return None if spec.backend == ANY else spec.backend

    def join_class(self, spec: RunSpec, mine: str) -> str:
        """The backend class whose workers may take shards, which is `mine` where nobody has decided it yet."""
        if spec.backend == SAME:
            return cast("bytes", self._run(ledger_scripts.JOIN_CLASS, [self._key["spec"], self._key["class"]], [mine])).decode()
        return mine if spec.backend == ANY else spec.backend

    def is_careful(self, shard: int) -> bool:
        """Whether the shard is to run record by record."""
        return bool(self._redis.sismember(self._key["careful"], str(shard)))

    def begin_record(self, shard: int, record: int) -> int:
        """Count a record as deadly before it is begun: whatever ends this worker now, the next one knows.

        Returns:
            How often it was begun and not ended, this time included; 0 for a run that is over.
        """
        return int(self._run(ledger_scripts.COUNT_DEATH, [self._key["spec"], self._of("deaths", shard)], [record, 1]))

    def end_record(self, shard: int, record: int) -> None:
        """Take `begin_record` back: the engine lives."""
        self._run(ledger_scripts.COUNT_DEATH, [self._key["spec"], self._of("deaths", shard)], [record, -1])

    def forget_worker(self, worker: str) -> None:
        """Take a worker off the live table."""
        self._redis.hdel(self._key["live"], worker)

    # What the coordinator, or a keeper in its place, does.

    def open(self, spec: RunSpec, done: Iterable[int]) -> None:
        """Begin a session: set the spec and the landed shards, forget old attempts and faults, keep leases and results that still stand."""
        landed = set(done)
        bitmap = bytearray((max(landed) // 8 + 1) if landed else 0)
        for shard in landed:
            bitmap[shard // 8] |= 0x80 >> shard % 8
        if self.is_submitted():
            self._key_seconds = SUBMITTED_SECONDS
        for shard in (self.issued() | self.finished()) & landed:
            self.settle(shard)
        with self._redis.pipeline() as pipe:
            pipe.delete(*(self._key[name] for name in ("attempts", "faults", "live", "cancel", "done", "careful")))
            if bitmap:
                pipe.set(self._key["done"], bytes(bitmap), ex=self._key_seconds)
            pipe.set(self._key["spec"], spec.to_json(), ex=self._key_seconds)
            pipe.execute()

    def is_open(self) -> bool:
        """Whether Redis still knows the run."""
        return bool(self._redis.exists(self._key["spec"]))

    def is_submitted(self) -> bool:
        """Whether the run goes on without a coordinator."""
        return bool(self._redis.exists(self._key["submitted"]))

    def submit(self) -> None:
        """Let the run go on without a coordinator; call it before `open`, and `store` every shard after it."""
        self._key_seconds = SUBMITTED_SECONDS
        self._redis.set(self._key["submitted"], 1, ex=SUBMITTED_SECONDS)

    def decide_class(self, name: str) -> None:
        """All shards of the run have this backend class from now on: parts of it have landed."""
        self._redis.set(self._key["class"], name, ex=self._key_seconds)

    def terms(self) -> RunTerms:
        """How the run is kept; those of a later version of specmill are taken for the default ones."""
        text = cast("bytes | None", self._redis.get(self._key["terms"]))
        try:
            return RunTerms() if text is None else RunTerms.from_json(text)
        except DecodeError:
            return RunTerms()

    def set_terms(self, terms: RunTerms) -> None:
        """Say how the run is kept from now on."""
        self._redis.set(self._key["terms"], terms.to_json(), ex=self._key_seconds)

    def report(self, shard: int) -> AttemptReport | None:
        """The report of a waiting result; its rows are left where they are.

        Raises:
            DecodeError: a report of another version of specmill.
        """
        text = cast("bytes | None", self._redis.hget(self._of("result", shard), "report"))
        return None if text is None else AttemptReport.from_json(text)

    def share(self, folder: str) -> None:
        """Let workers that see the folder land their parts in it."""
        self._redis.set(self._key["shared"], folder, ex=self._key_seconds)

    def store(self, shard: int, blob: bytes) -> None:
        """Put the input of a shard of a submitted run where keepers and workers find it."""
        self._redis.set(self._of("blob", shard), blob, ex=self._key_seconds)

    def store_no_more(self, shard: int) -> None:
        """The inputs from this shard on lie in the dataset's folder, which is shared."""
        self._redis.set(self._key["inputs"], shard, ex=self._key_seconds)

    def issued(self) -> set[int]:
        """Shards that were handed out and whose results are not there yet."""
        return {int(shard) for shard in cast("set[bytes]", self._redis.smembers(self._key["issued"]))}

    def finished(self) -> set[int]:
        """Shards whose results are there and have not landed."""
        return {int(shard) for shard in cast("set[bytes]", self._redis.smembers(self._key["finished"]))}

    def done(self) -> set[int]:
        """Landed shards."""
        bitmap = cast("bytes | None", self._redis.get(self._key["done"])) or b""
        return {8 * at + bit for at, byte in enumerate(bitmap) if byte for bit in range(8) if byte & 0x80 >> bit}

    def issue(self, shard: int, blob: bytes | None = None) -> None:
        """Hand a shard out; without `blob` its input is there already."""
        with self._redis.pipeline() as pipe:
            if blob is not None:
                pipe.set(self._of("blob", shard), blob, ex=self._key_seconds)
            pipe.srem(self._key["finished"], shard)
            pipe.sadd(self._key["issued"], shard)
            pipe.expire(self._key["issued"], self._key_seconds)
            pipe.execute()

    def states(self, shards: Iterable[int]) -> dict[int, str]:
        """Where each shard stands: `result` waits, `leased` to a worker, or `absent`."""
        wanted = list(shards)
        with self._redis.pipeline(transaction=False) as pipe:
            for shard in wanted:
                pipe.exists(self._of("result", shard))
                pipe.exists(self._of("lease", shard))
            answers = pipe.execute()
        results, leases = answers[::2], answers[1::2]
        return {
            shard: "result" if result else "leased" if lease else "absent"
            for shard, result, lease in zip(wanted, results, leases, strict=True)
        }

    def next_entry(self, seconds: float) -> int | Fault | None:
        """The next fault, or the next shard whose result waits; None when there is nothing for so long."""
        answer = cast("list[bytes] | None", self._redis.blpop([self._key["faults"], self._key["ready"]], timeout=seconds))
        if answer is None:
            return None
        return Fault.from_json(answer[1]) if answer[0].decode() == self._key["faults"] else int(answer[1])

    def more_results(self, count: int) -> list[int]:
        """At most so many more shards whose results wait, without waiting."""
        return [int(shard) for shard in cast("list[bytes] | None", self._redis.lpop(self._key["ready"], count)) or ()]

    def result(self, shard: int) -> tuple[bytes, AttemptReport] | None:
        """A waiting result: rows as Arrow IPC, and the report.

        Raises:
            DecodeError: a report of another version of specmill.
        """
        rows, report = cast("list[bytes | None]", self._redis.hmget(self._of("result", shard), ["rows", "report"]))
        return None if rows is None or report is None else (rows, AttemptReport.from_json(report))

    def drop_result(self, shard: int) -> None:
        """Throw a result away that is not what the shard should be."""
        self._redis.delete(self._of("result", shard))

    def settle(self, shard: int) -> None:
        """The shard has landed: nothing of it stays but its bit."""
        with self._redis.pipeline() as pipe:
            pipe.setbit(self._key["done"], shard, 1)
            pipe.expire(self._key["done"], self._key_seconds)
            pipe.srem(self._key["issued"], shard)
            pipe.srem(self._key["finished"], shard)
            pipe.hdel(self._key["attempts"], str(shard))
            pipe.delete(*(self._of(kind, shard) for kind in SHARD_KEYS))
            pipe.srem(self._key["careful"], shard)
            pipe.execute()

    def be_careful(self, shard: int) -> None:
        """From the next attempt on, the shard runs record by record."""
        with self._redis.pipeline() as pipe:
            pipe.sadd(self._key["careful"], shard)
            pipe.expire(self._key["careful"], self._key_seconds)
            pipe.execute()

    def attempts(self, shard: int) -> int:
        """Attempts begun and not forgiven."""
        return int(cast("bytes | None", self._redis.hget(self._key["attempts"], str(shard))) or 0)

    def live(self) -> dict[str, LiveReport]:
        """Worker → its last report; reports of another version are left out."""
        found = {}
        for worker, text in cast("dict[bytes, bytes]", self._redis.hgetall(self._key["live"])).items():
            try:
                found[worker.decode(errors="replace")] = LiveReport.from_json(text)
            except DecodeError:
                continue
        return found

    def cancelled(self) -> bool:
        """Whether somebody asked for the run's end."""
        return bool(self._redis.exists(self._key["cancel"]))

    def cancel(self) -> None:
        """Ask for the run's end."""
        self._redis.set(self._key["cancel"], 1, ex=SUBMITTED_SECONDS)

    def paused(self) -> str | None:
        """Why the run is held, or None while it is not."""
        reason = cast("bytes | None", self._redis.get(self._key["pause"]))
        return None if reason is None else reason.decode()

    def pause(self, reason: str) -> None:
        """Hold the run: workers give up what they have of it."""
        self._redis.set(self._key["pause"], reason, ex=SUBMITTED_SECONDS)

    def resume(self) -> None:
        """Let a paused run go on."""
        self._redis.delete(self._key["pause"])

    def keeper(self) -> str:
        """Who feeds the run: `coordinator host:pid`, `worker host:pid` or `nobody`."""
        token = cast("bytes | None", self._redis.get(self._key["keeper"]))
        return "nobody" if token is None else " ".join(token.decode().split("/")[:2])

    def next_fault(self) -> Fault | None:
        """The next fault, without waiting."""
        text = cast("bytes | None", self._redis.lpop(self._key["faults"]))
        return None if text is None else Fault.from_json(text)

    def refresh(self) -> None:
        """Renew the time to live of everything but the leases and the keeper's lock."""
        with self._redis.pipeline(transaction=False) as pipe:
            for name, key in self._key.items():
                if name not in ("keeper", "cancel", "pause"):
                    pipe.expire(key, self._key_seconds)
            for shard in self.issued() | self.finished():
                pipe.expire(self._of("blob", shard), self._key_seconds)
                pipe.expire(self._of("result", shard), self._key_seconds)
            pipe.execute()

    def close(self) -> None:
        """Delete every key of the run; workers that still hold a shard notice and drop it."""
        shards = self.issued() | self.finished()
        if self.is_submitted() and (spec := self.spec()) is not None:
            shards |= set(range(spec.shards)) - self.done()
        # The spec goes first: from then on no worker writes.
        self._redis.delete(self._key["spec"])
        keys = [*self._key.values(), *(self._of(kind, shard) for shard in shards for kind in SHARD_KEYS)]
        for start in range(0, len(keys), 500):
            self._redis.delete(*keys[start : start + 500])

"""`RunWatch`: one run seen from outside, again and again: its broker's ledger while it goes on, its folder's manifest otherwise."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import redis

from producer.dataset import Dataset
from producer.fleet_status import run_status
from producer.manifest_file import read_manifest
from producer.rate_meter import RateMeter
from producer.run_reference import RunReference
from schemas.errors import BrokerError, InputError
from schemas.progress import Tally
from schemas.run_spec import RunSpec
from schemas.wire import Json
from worker.fleet import Fleet
from worker.ledger import Ledger
from worker.redis_client import make_client
from worker.remote_path import place_of
from worker.reports import LiveReport

OVER = ("complete", "cancelled", "stopped", "over")
"""States after which nothing more is to be seen."""


@dataclass(frozen=True)
class WatchedWorker:
    """One worker of the run.

    Attributes:
        name: its own name.
        chip: where its last finished shard was computed, chip and BLAS; empty before the first.
        shard: the shard in work, or None.
        tally: counts over that shard.
        tokens_per_second: of the last half minute.
    """

    name: str
    chip: str
    shard: int | None
    tally: Tally
    tokens_per_second: float


@dataclass(frozen=True)
class WatchView:
    """A run at one moment.

    Attributes:
        run_id: its id.
        model: its model's name.
        state: running, paused, cancelled, finished, waiting (`producer.fleet_status`), or how it ended: complete, stopped, over.
        why: why it is paused or waits, else empty.
        rows_total: records × samples.
        rows_done: rows of landed and finished shards, and those finished in shards in work.
        rows_failed: error rows among them, as far as they are known here.
        shards_total: shards of the run.
        shards_done: landed and finished ones.
        tally: counts of the shards in work.
        tokens_per_second: of all workers over the last half minute.
        eta_seconds: at the speed of this watch, or None.
        workers: by name.
        refusing: workers of another backend class than the run wants, each `name (class)`.
        collecting: whether a coordinator is there, which will land what is finished.
    """

    run_id: str
    model: str
    state: str
    why: str
    rows_total: int
    rows_done: int
    rows_failed: int
    shards_total: int
    shards_done: int
    tally: Tally
    tokens_per_second: float
    eta_seconds: float | None
    workers: tuple[WatchedWorker, ...]
    refusing: tuple[str, ...] = ()
    collecting: bool = False

    @property
    def over(self) -> bool:
        """Whether nothing more is to be seen; a submitted run that is finished waits for somebody to collect it, maybe for days."""
        return self.state in OVER or (self.state == "finished" and not self.collecting)

    @property
    def acceptance(self) -> list[float | None]:
        """Accepted share of the drafts at depth 1, 2, … of the shards in work."""
        return acceptance(self.tally)

    def encode(self) -> dict[str, Json]:
        """As a JSON object."""
        names = ("run_id", "model", "state", "why", "rows_total", "rows_done", "rows_failed", "shards_total", "shards_done")
        workers: list[Json] = [
            {
                "name": worker.name,
                "chip": worker.chip,
                "shard": worker.shard,
                "rows": worker.tally.rows,
                "tokens": worker.tally.completion_tokens,
                "tokens_per_second": worker.tokens_per_second,
                "acceptance": list(acceptance(worker.tally)),
            }
            for worker in self.workers
        ]
        rates: dict[str, Json] = {"tokens_per_second": self.tokens_per_second, "eta_seconds": self.eta_seconds}
        lists: dict[str, Json] = {"acceptance": list(self.acceptance), "workers": workers, "refusing": list(self.refusing)}
        return {**{name: getattr(self, name) for name in names}, **rates, **lists}


class RunWatch:
    """Watches one run; call `look` as often as is wanted."""

    def __init__(self, text: str, broker_url: str | None, clock: Callable[[], float] = time.monotonic) -> None:
        """Find the run that `text` names, a folder or the beginning of an id.

        Raises:
            InputError: there is no such run.
            BrokerError: an id without a broker, or a broker that cannot be reached.
        """
        place = place_of(text)
        self._out = place if place.is_dir() else None
        self._clock = clock
        self._meter = RateMeter()
        self._first: tuple[float, int] | None = None
        self._text, self._broker_url = text, broker_url
        self._seen = False
        if self._out is not None and read_manifest(self._out) is None:
            raise InputError(f"{text} holds no run; give a dataset's folder, or the id of a run and --broker")
        if self._out is None:
            RunReference.find(text, broker_url)

    def look(self) -> WatchView:
        """The run now.

        Raises:
            BrokerError: a shared broker that cannot be reached; it may come back.
        """
        try:
            reference = RunReference.find(self._text, self._broker_url)
        except (BrokerError, InputError):
            if self._out is None and not self._seen:
                raise
            return self._at_rest()
        try:
            with make_client(reference.broker_url, patient=False) as client:
                view = self._on_broker(client, reference.run_id)
        except (redis.RedisError, OSError) as error:
            if self._out is None or self._broker_url is not None:
                raise BrokerError(f"the broker cannot be reached: {error}") from error
            view = None
        self._seen = self._seen or view is not None
        return view or self._at_rest()

    def _on_broker(self, client: redis.Redis, run_id: str) -> WatchView | None:
        """The run as the ledger has it, or None where it is not on the broker."""
        ledger = Ledger(client, run_id)
        spec = ledger.spec()
        status = run_status(client, run_id, tuple(Fleet(client).workers()))
        if spec is None or status is None:
            return None
        live = ledger.live()
        landed = ledger.done() | ledger.finished()  # after `live`, so that a shard that ends in between is counted once
        now = self._clock()
        self._meter.see(live, now)
        workers = tuple(self._worker(name, report, landed) for name, report in sorted(live.items()))
        tally = sum((worker.tally for worker in workers), Tally())
        rows = sum(spec.shard_records(shard) for shard in landed) * spec.samples + tally.rows
        return WatchView(
            run_id=run_id,
            model=spec.model.name,
            state=status.state,
            why=status.why,
            rows_total=spec.records * spec.samples,
            rows_done=rows,
            rows_failed=self._failed() + tally.failed,
            shards_total=spec.shards,
            shards_done=len(landed),
            tally=tally,
            tokens_per_second=sum(worker.tokens_per_second for worker in workers),
            eta_seconds=self._eta(spec, rows, now),
            workers=workers,
            refusing=status.refusing,
            collecting=status.keeper.startswith("coordinator "),
        )

    def _worker(self, name: str, report: LiveReport, landed: set[int]) -> WatchedWorker:
        chip = ", ".join(filter(None, (report.backend.chip, report.backend.blas))) if report.backend is not None else ""
        tally = Tally() if report.shard is None or report.shard in landed else report.tally
        return WatchedWorker(name, chip, report.shard, tally, self._meter.rate(name))

    def _eta(self, spec: RunSpec, rows: int, now: float) -> float | None:
        if self._first is None:
            self._first = (now, rows)
        began, before = self._first
        left = spec.records * spec.samples - rows
        return left * (now - began) / (rows - before) if rows > before else None

    def _failed(self) -> int:
        manifest = read_manifest(self._out) if self._out is not None else None
        return sum(shard.failed for shard in manifest.shards) if manifest is not None else 0

    def _at_rest(self) -> WatchView:
        """The run as its folder has it, or a run that a broker does not know any more."""
        if self._out is None or read_manifest(self._out) is None:
            return WatchView(self._text, "", "over", "", 0, 0, 0, 0, 0, Tally(), 0.0, None, ())
        dataset = Dataset.open(self._out)
        spec, shards = dataset.manifest.spec, dataset.manifest.shards
        rows, failed = sum(shard.rows for shard in shards), sum(shard.failed for shard in shards)
        state, why, total = dataset.state, "; ".join(dataset.unfinished()[1:]), spec.records * spec.samples
        return WatchView(spec.run_id, spec.model.name, state, why, total, rows, failed, spec.shards, len(shards), Tally(), 0.0, None, ())


def acceptance(tally: Tally) -> list[float | None]:
    """Accepted share of the drafts at each depth; None where none was drafted."""
    pairs: Mapping[int, int] = dict(enumerate(tally.accepted_by_depth))
    return [pairs.get(depth, 0) / drafted if drafted else None for depth, drafted in enumerate(tally.drafted_by_depth)]

"""`FleetStatus`: every run and worker of a broker at one moment, for `specmill status`."""

from dataclasses import asdict, dataclass
from typing import Any

import redis

from schemas.errors import DecodeError
from worker.fleet import Fleet, WorkerCard
from worker.ledger import Ledger


@dataclass(frozen=True)
class RunStatus:
    """One run.

    Attributes:
        run_id: its id.
        model: its model's name.
        priority: high, normal or low.
        state: running, paused, cancelled, finished (all results are there, nobody has collected them) or waiting (no worker may take it).
        why: why it is paused or waits, else empty.
        keeper: who feeds it: `coordinator host:pid`, `worker host:pid`, or `nobody`.
        shards: of the run.
        landed: collected shards.
        finished: shards whose results wait.
        in_work: shards that a worker holds.
        queued: shards that were handed out and that no worker holds.
        waiting: shards that were not handed out.
        refusing: workers of another backend class than the run wants, each `name (class)`.
    """

    run_id: str
    model: str
    priority: str
    state: str
    why: str
    keeper: str
    shards: int
    landed: int
    finished: int
    in_work: int
    queued: int
    waiting: int
    refusing: tuple[str, ...] = ()


@dataclass(frozen=True)
class FleetStatus:
    """Runs, oldest first, and workers by name."""

    runs: tuple[RunStatus, ...]
    workers: tuple[WorkerCard, ...]

    @classmethod
    def look(cls, client: redis.Redis) -> "FleetStatus":
        """Ask the broker."""
        fleet = Fleet(client)
        workers = tuple(fleet.workers())
        runs = [run_status(client, run_id, workers) for run_id in fleet.runs()]
        return cls(tuple(run for run in runs if run is not None), workers)

    def encode(self) -> dict[str, Any]:
        """As a JSON object."""
        return {"runs": [asdict(run) for run in self.runs], "workers": [asdict(card) for card in self.workers]}

    def text(self) -> str:
        """For people."""
        lines = []
        for run in self.runs:
            what = f"{run.state}, {run.model}" + (f", priority {run.priority}" if run.priority != "normal" else "")
            lines.append(f"run {run.run_id[:12]}  {what}, fed by {run.keeper}" + (f": {run.why}" if run.why else ""))
            lines.append(
                f"  shards    {run.landed:,} landed, {run.finished:,} finished, {run.in_work:,} in work, {run.queued:,} queued, "
                f"{run.waiting:,} waiting, of {run.shards:,}"
            )
            if run.refusing:
                lines.append(f"  backend   {', '.join(run.refusing)}: another class, takes no shard")
        for card in self.workers:
            work = f"shard {card.shard} of run {card.run_id[:12]}" if card.run_id is not None else "quiet hours" if card.resting else "idle"
            notes = [f"holds {card.model}" if card.model else "holds no model"]
            notes += [f"takes only {', '.join(card.models)}"] if card.models else []
            notes += [f"class {card.backend}"] if card.backend else []
            notes += [f"left shards of {card.refused} to others"] if card.refused and card.run_id is None else []
            notes += [f"keeps {', '.join(run_id[:12] for run_id in card.keeps)}"] if card.keeps else []
            lines.append(f"worker {card.name}  {work}; {', '.join(notes)}")
        if not self.runs:
            lines.insert(0, "no run")
        if not self.workers:
            lines.append("no worker")
        return "\n".join(lines)


def run_status(client: redis.Redis, run_id: str, workers: tuple[WorkerCard, ...]) -> RunStatus | None:
    """One run of a broker whose workers are these; None for a run that is over, or of another version."""
    ledger = Ledger(client, run_id)
    try:
        spec = ledger.spec()
    except DecodeError:
        return None  # of another version; its own specmill shows it
    if spec is None:
        return None
    # In the order in which a shard passes through them: one that moves on meanwhile is seen twice rather than nowhere.
    issued = ledger.issued()
    in_work = list(ledger.states(issued).values()).count("leased")
    finished, landed = ledger.finished(), ledger.done()
    wanted = ledger.wanted_class(spec)
    state, why = "running", ""
    if ledger.cancelled():
        state = "cancelled"
    elif (reason := ledger.paused()) is not None:
        state, why = "paused", reason
    elif len(landed) + len(finished) >= spec.shards:
        state, why = "finished", "`specmill run` on its folder collects the results" if finished else ""
    elif not any(card.takes(spec.model.name, wanted) for card in workers):
        what = spec.model.name if wanted is None else f"{spec.model.name} on the backend class {wanted}"
        state, why = "waiting", f"no worker may take {what}" if workers else "there is no worker"
    return RunStatus(
        run_id=run_id,
        model=spec.model.name,
        priority=ledger.terms().priority,
        state=state,
        why=why,
        keeper=ledger.keeper(),
        shards=spec.shards,
        landed=len(landed),
        finished=len(finished),
        in_work=in_work,
        queued=len(issued) - in_work,
        waiting=spec.shards - len(landed | finished | issued),
        refusing=tuple(f"{card.name} ({card.backend})" for card in workers if card.differs(wanted)),
    )

"""`RunProgress`: a run at one moment, for people and displays; `Counts`: its ledger in rows."""

from dataclasses import dataclass

from schemas.profile import Backend
from schemas.progress import Tally

PHASES = ("loading model", "reading prompts", "generating", "paused", "done", "cancelling")


@dataclass(frozen=True)
class Counts:
    """Output rows by fate; `total == ok + failed + cancelled + pending` at every moment.

    Attributes:
        total: records × samples.
        ok: landed without an error.
        failed: landed as error rows.
        cancelled: not landed when the run was ended early; a resume makes them pending again.
        pending: still to land, those in flight included.
    """

    total: int
    ok: int
    failed: int
    cancelled: int
    pending: int


@dataclass(frozen=True)
class WorkerView:
    """One worker as the coordinator sees it.

    Attributes:
        name: `host:pid`, or the name it was given.
        shard: the shard in work, or None.
        tally: counts over that shard.
        backend: where its last finished shard was computed, or None before the first.
    """

    name: str
    shard: int | None
    tally: Tally
    backend: Backend | None


@dataclass(frozen=True)
class Events:
    """What went wrong and was put right in this session.

    Attributes:
        retries: shards handed out again.
        lease_losses: shards lost with their worker or their message; each is handed out again too.
        engine_restarts: engines that died of a shard; their workers start another.
    """

    retries: int = 0
    lease_losses: int = 0
    engine_restarts: int = 0


@dataclass(frozen=True)
class RunProgress:
    """A run at one moment.

    Attributes:
        rows_total: records × samples.
        rows_ok: landed rows without an error.
        rows_failed: landed error rows.
        shards_total: shards of the run.
        shards_done: landed shards.
        in_flight: shards handed out and not landed.
        tally: landed and live counts of this session; `rows` and `failed` also count the parts that were there before it.
        tokens_per_second: completion tokens of this session per second since its first sign of work, 0 in its first second and for what
            it only collects.
        eta_seconds: estimated time to the end, while prompts are read to the end of that; None while there is nothing to estimate from.
        elapsed: seconds since the session began.
        workers: every worker that was heard of lately, by name.
        phase: one of `PHASES`.
        queued: shards handed out that no worker has begun, as far as is known.
        events: what went wrong and was put right.
    """

    rows_total: int
    rows_ok: int
    rows_failed: int
    shards_total: int
    shards_done: int
    in_flight: int
    tally: Tally
    tokens_per_second: float
    eta_seconds: float | None
    elapsed: float
    workers: tuple[WorkerView, ...]
    phase: str
    queued: int = 0
    events: Events = Events()

"""`Fault` and `LiveReport`: what a worker says of itself through the ledger while a run goes on."""

from dataclasses import dataclass

from schemas.profile import Backend
from schemas.progress import Tally
from schemas.wire import Wire


@dataclass(frozen=True)
class Fault(Wire):
    """One attempt that produced nothing.

    Attributes:
        worker: who tried.
        shard: what it tried.
        kind: name of the error's class in `schemas.errors`.
        message: the error's text.
    """

    worker: str
    shard: int
    kind: str
    message: str


@dataclass(frozen=True)
class LiveReport(Wire):
    """A worker's present state; each one differs from the one before it, so that silence can be told.

    Attributes:
        beat: grows with every report of one worker.
        shard: the shard in work, or None between shards.
        tally: counts over the shard in work.
        backend: where the worker's last finished shard was computed, if there was one.
    """

    beat: int
    shard: int | None
    tally: Tally
    backend: Backend | None

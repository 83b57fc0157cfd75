"""`Fault` and `LiveReport`: what a worker says of itself through the ledger while a run goes on."""

from dataclasses import dataclass

from schemas import errors
from schemas.errors import EngineError, SpecmillError
from schemas.profile import Backend
from schemas.progress import AttemptReport, Tally
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

    def as_error(self) -> SpecmillError:
        """The error to raise where people see it; a class that this specmill does not know becomes `EngineError`."""
        kind = vars(errors).get(self.kind)
        if isinstance(kind, type) and issubclass(kind, SpecmillError) and kind is not errors.NonFiniteLogitsError:
            return kind(f"worker {self.worker}: {self.message}")
        return EngineError(f"worker {self.worker}: {self.kind}: {self.message}")


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


def described(report: AttemptReport) -> str:
    """`64 rows, 2 failed, 4096 tokens, 41.2 tok/s, acceptance 0.41 0.22`: an attempt as Flower shows it."""
    tally = report.tally
    busy = report.seconds - report.load_seconds
    parts = [f"{tally.rows} rows"] + ([f"{tally.failed} failed"] if tally.failed else []) + [f"{tally.completion_tokens} tokens"]
    parts += [f"{tally.completion_tokens / busy:.1f} tok/s"] if busy > 0 else []
    shares = [f"{a / d:.2f}" for a, d in zip(tally.accepted_by_depth, tally.drafted_by_depth, strict=False) if d]
    return ", ".join(parts + ([f"acceptance {' '.join(shares)}"] if shares else []))

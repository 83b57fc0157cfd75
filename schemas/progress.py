"""`Tally` and `AttemptReport`: what an engine says of its work, while it works and when a shard is done."""

from dataclasses import dataclass
from typing import TypeVar

from schemas.profile import Backend
from schemas.wire import Wire, added

Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class Tally(Wire):
    """Counts over finished and running rows of one attempt; sums of tallies are tallies.

    Attributes:
        rows: output rows that are finished.
        failed: those of them that are error rows.
        prompt_tokens: tokens prefilled.
        completion_tokens: tokens committed.
        cycles: draft-verify-commit cycles, summed over rows.
        drafted_by_depth: drafts proposed at depth 1, 2, … (one entry per depth).
        accepted_by_depth: drafts accepted at depth 1, 2, …
        expected_accepted: Σα over the drafts that were judged.
        accepted_variance: Σα(1-α) over the same drafts.
        expected_by_depth: Σα of the judged drafts at depth 1, 2, …
        variance_by_depth: Σα(1-α) likewise.
        prompt_tokens_left: tokens of the attempt's prompts that are still to be prefilled; 0 when it is over.
    """

    rows: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cycles: int = 0
    drafted_by_depth: tuple[int, ...] = ()
    accepted_by_depth: tuple[int, ...] = ()
    expected_accepted: float = 0.0
    accepted_variance: float = 0.0
    expected_by_depth: tuple[float, ...] = ()
    variance_by_depth: tuple[float, ...] = ()
    prompt_tokens_left: int = added(0)

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            rows=self.rows + other.rows,
            failed=self.failed + other.failed,
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            cycles=self.cycles + other.cycles,
            drafted_by_depth=_add(self.drafted_by_depth, other.drafted_by_depth),
            accepted_by_depth=_add(self.accepted_by_depth, other.accepted_by_depth),
            expected_accepted=self.expected_accepted + other.expected_accepted,
            accepted_variance=self.accepted_variance + other.accepted_variance,
            expected_by_depth=_add(self.expected_by_depth, other.expected_by_depth),
            variance_by_depth=_add(self.variance_by_depth, other.variance_by_depth),
            prompt_tokens_left=self.prompt_tokens_left + other.prompt_tokens_left,
        )


@dataclass(frozen=True)
class AttemptReport(Wire):
    """What one attempt at a shard cost and where it ran: everything that may vary between two equal datasets.

    Attributes:
        run_id: the run's name in the ledger.
        shard: shard index.
        attempt: 1 for the first try.
        worker: the worker's own name, `host:pid`.
        backend: device, chip and libraries.
        started: seconds since the epoch, UTC.
        seconds: wall time of the attempt.
        load_seconds: of that, loading the model.
        prefill_seconds: of that, prefill.
        draft_seconds: of that, drafting.
        verify_seconds: of that, the target's forward passes.
        commit_seconds: of that, sampling decisions and bookkeeping.
        peak_bytes: the engine's peak memory in bytes.
        tally: what was produced.
        failures: error type → rows, over the failed ones.
        example: one of their errors, as text.
    """

    run_id: str
    shard: int
    attempt: int
    worker: str
    backend: Backend
    started: float
    seconds: float
    load_seconds: float
    prefill_seconds: float
    draft_seconds: float
    verify_seconds: float
    commit_seconds: float
    peak_bytes: int
    tally: Tally
    failures: dict[str, int] = added(factory=dict)
    example: str = added("")


def _add(left: tuple[Number, ...], right: tuple[Number, ...]) -> tuple[Number, ...]:
    longer, shorter = (left, right) if len(left) >= len(right) else (right, left)
    return tuple(count + (shorter[i] if i < len(shorter) else 0) for i, count in enumerate(longer))

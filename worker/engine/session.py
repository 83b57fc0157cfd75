"""`Session`: one row, decoded in the open, for teaching and for debugging.

The engine drafts and reads; the session shows what a cycle is decided on and decides it again, one token at a time, with the float64
reference of `sampling`. The tokens are those that the engine commits for the same key.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from sampling import SpeculativeDecision, distribution_from_logits, sample_from_distribution, verify_one_token
from sampling.batched import BatchedSampler, BlockResult, DraftStep
from sampling.counter_rng import PositionRandom, Purpose
from sampling.rows import NO_TOKEN, RowBatch
from sampling.token_mask import allowed_along
from schemas.run_spec import RunSpec
from worker.engine.cohort import JudgedBlock
from worker.engine.completion import Request
from worker.engine.mtp_engine import MTPEngine


@dataclass(frozen=True)
class CycleLogits:
    """What one cycle is decided on.

    Attributes:
        drafts: the drafted tokens, K ids; fewer where a constraint left the draft's vocabulary no token.
        draft: the draft logits, [K, V] float64, -inf outside a draft vocabulary and where a constraint forbids the token; None when they
            were not asked for.
        verify: the target's logits behind the pending token and behind every draft, [K + 1, V] float64, -inf where a constraint forbids
            the token; None when not asked for.
    """

    drafts: list[int]
    draft: np.ndarray | None
    verify: np.ndarray | None


class Session:
    """One request under a spec whose drafter is a head or a draft model, or whose depth is 0.

    Args:
        engine: loaded for the spec.
        spec: `samples` and `slots` do not matter here.
        request: what to complete.

    Raises:
        RowError: the request cannot run.
        ValueError: the spec's drafter has no logits to show, or its coupling judges no draft against its own distribution.
    """

    def __init__(self, engine: MTPEngine, spec: RunSpec, request: Request) -> None:
        if spec.profile.depth > 0 and spec.drafter not in ("head", "model"):
            raise ValueError(f"a session needs the drafter 'head' or 'model', which have logits to show; received {spec.drafter!r}")
        if spec.coupling != "rejection":
            raise ValueError(f"a session decides by the coupling 'rejection'; received {spec.coupling!r}")
        self._config = request.own(spec).sampler
        self._key = request.key
        self._cohort, self._row = engine.begin(spec, request, self._tap)
        self._judged: JudgedBlock | None = None
        self._position = 0  # of the next token to verify, within the cycle

    @property
    def token_ids(self) -> list[int]:
        """The tokens of all finished cycles."""
        return list(self._row.token_ids)

    @property
    def finish_reason(self) -> str | None:
        """stop or length once the row has ended."""
        return self._row.finish_reason

    def get_logits(self, draft: bool = True, verify: bool = True) -> CycleLogits:
        """The logits of the cycle that is open, which is drafted and read now if none is; nothing is decided by looking."""
        self._open()
        return CycleLogits(
            drafts=self._sampler.drafts,
            draft=np.stack(self._sampler.draft_logits) if draft and self._sampler.draft_logits else None,
            verify=self._sampler.verify_logits if verify else None,
        )

    def verify_one_token(self) -> SpeculativeDecision:
        """Decide the next token of the open cycle; the decision that ends the cycle commits it.

        After K accepted drafts this is the bonus token, which nothing was drafted for: accepted False at probability 0.
        """
        self._open()
        place, tap = self._position, self._sampler
        position = len(self._row.token_ids) + place
        drafts = tap.drafts
        counts = self._row.counts + Counter(drafts[:place])
        adjustments = {
            "prompt_ids": self._row.prompt_tokens,
            "forbidden": tap.end_ids if position < self._config.min_tokens else [],
        }
        p = distribution_from_logits(tap.verify_logits[place], self._config, counts, **adjustments)
        if place == len(drafts):
            token = sample_from_distribution(p, PositionRandom(self._key, position, (Purpose.CORRECTION,)))
            decision = SpeculativeDecision(accepted=False, token_id=token, accept_probability=0.0)
        else:
            q = distribution_from_logits(tap.draft_logits[place], self._config, counts, **adjustments)
            decision = verify_one_token(p, q, drafts[place], PositionRandom(self._key, position))
        self._position += 1
        if not decision.accepted:
            self._close()
        return decision

    def step(self) -> list[int]:
        """Finish the open cycle, or run one; returns the tokens it committed."""
        before = len(self._row.token_ids)
        while not self._row.finish_reason and len(self._row.token_ids) == before:
            self.verify_one_token()
        return self._row.token_ids[before:]

    def _tap(self, sampler: BatchedSampler) -> BatchedSampler:
        self._sampler = _TappedSampler(sampler)
        return self._sampler

    def _open(self) -> None:
        if self._row.finish_reason is not None:
            raise ValueError(f"the row has ended ({self._row.finish_reason}); there is no next cycle")
        if self._judged is None:
            self._sampler.clear()
            self._judged = self._cohort.judge()
            self._position = 0

    def _close(self) -> None:
        assert self._judged is not None
        self._cohort.commit(self._judged)
        self._judged = None


class _TappedSampler(BatchedSampler):
    """The engine's sampler, with a look at slot 0's logits on their way."""

    def __init__(self, inner: BatchedSampler) -> None:
        super().__init__(inner.config, inner.vocab_size, inner.draft_ids, end_ids=inner.end_ids)
        self.clear()

    def clear(self) -> None:
        self.steps: list[DraftStep] = []
        self.draft_logits: list[np.ndarray] = []
        self.verify_logits = np.zeros((0, self.vocab_size))

    @property
    def drafts(self) -> list[int]:
        """The drafted tokens, as far as something was drafted."""
        return [int(step.tokens[0]) for step in self.steps if step.tokens[0] != NO_TOKEN]

    def draft(self, logits: mx.array, rows: RowBatch, earlier: Sequence[DraftStep] = ()) -> DraftStep:
        mine = np.array(logits[0].astype(mx.float32), np.float64)
        if self.draft_ids is not None:
            full = np.full(self.vocab_size, -np.inf)
            full[self.draft_ids] = mine
            mine = full
        self.draft_logits.append(self._masked(mine[None], rows, from_place=len(self.steps))[0])
        self.steps.append(super().draft(logits, rows, earlier))
        return self.steps[-1]

    def verify(self, logits: mx.array, rows: RowBatch, drafts: Sequence[DraftStep] = ()) -> BlockResult:
        self.verify_logits = self._masked(np.array(logits[0].astype(mx.float32), np.float64), rows, from_place=0)
        return super().verify(logits, rows, drafts)

    def _masked(self, logits: np.ndarray, rows: RowBatch, from_place: int) -> np.ndarray:
        """Logits [T, V] of slot 0 at the places from `from_place` on, as its mask leaves them."""
        if rows.masks is None:
            return logits
        drafts = np.array([[step.tokens[0] for step in self.steps]], dtype=np.int64).reshape(1, len(self.steps))
        allowed = allowed_along(rows.masks[:1], drafts, range(from_place, from_place + len(logits)), self.vocab_size)
        return np.where(allowed[0], logits, -np.inf)

"""`Row`: one completion while it is being decoded: what is committed, when it stops, how speculation went."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from schemas.errors import ConstraintError, NonFiniteLogitsError, RowError
from schemas.progress import Tally
from schemas.sampler import SamplerConfig
from worker.engine.completion import Acceptance, Completion, Request
from worker.engine.row_mask import RowMask

NEUTRAL = SamplerConfig()


class Row:
    """Host-side state of one slot.

    Attributes:
        request: what is being completed.
        prompt_ids: the encoded prompt, at least one token.
        prompt_tokens: its distinct tokens, for the repetition penalty.
        sampler: the row's sampler config.
        token_ids: committed completion tokens, the stop token included.
        counts: occurrences of every committed token, for penalties.
        finish_reason: stop or length once the row is done, else None.
        mask: what may come next, or None where everything may.
    """

    def __init__(
        self,
        request: Request,
        prompt_ids: list[int],
        *,
        max_tokens: int,
        stop: Sequence[str],
        tokenizer: Any,
        depth: int,
        ignore_eos: bool = False,
        mask: RowMask | None = None,
        sampler: SamplerConfig = NEUTRAL,
    ) -> None:
        self.request = request
        self.prompt_ids = prompt_ids
        self.prompt_tokens = sorted(set(prompt_ids))
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.counts: Counter[int] = Counter()
        self.finish_reason: str | None = None
        self.acceptance = Acceptance.at_depth(depth)
        self.sampler = sampler
        self._max_tokens = max_tokens
        self._stop = tuple(stop)
        self.mask = mask
        self._eos_ids: frozenset[int] = frozenset() if ignore_eos else frozenset(tokenizer.eos_token_ids)
        self._detokenizer = tokenizer.detokenizer
        self._text: str | None = None

    def commit(self, tokens: Sequence[int], logprobs: Sequence[float], alphas: Sequence[float]) -> None:
        """Commit one cycle: tokens = the accepted drafts and the residual or bonus token behind them.

        The row ends at the first stop token or stop string, where its mask says that it is complete, or at the budget; what lies behind
        that point leaves no trace in text, ids, log-probabilities or counts.

        Args:
            tokens: a + 1 token ids.
            logprobs: a + 1 log target probabilities.
            alphas: acceptance probabilities of the cycle's drafts, one per depth; those behind the first rejection were never judged.
        """
        depth = len(alphas)
        self.acceptance.cycles += 1
        for index, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True)):
            self.token_ids.append(token)
            self.logprobs.append(logprob)
            self.counts[token] += 1
            accepted = index < len(tokens) - 1
            self._count(index, depth, accepted=accepted, alpha=alphas[index] if index < depth else None)
            if self._ends_with(token):
                break
        # A finished row's later drafts were proposed for positions that do not exist.
        proposed = depth if self.finish_reason is None else min(depth, index + 1)
        for draft in range(proposed):
            self.acceptance.drafted_by_depth[draft] += 1

    def _count(self, index: int, depth: int, *, accepted: bool, alpha: float | None) -> None:
        if alpha is not None:
            self.acceptance.judge(index, alpha)
        if accepted:
            self.acceptance.accepted_by_depth[index] += 1
        elif index == depth:
            self.acceptance.bonus += 1
        else:
            self.acceptance.residual += 1

    def _ends_with(self, token: int) -> bool:
        if token in self._eos_ids:
            self.finish_reason = "stop"
        else:
            self._detokenizer.add_token(token)
            complete = self.mask is not None and self.mask.commit(token) and self.mask.ended
            if (self._stop and self._cut_at_stop_string(self._detokenizer.text)) or complete:
                self.finish_reason = "stop"
            elif len(self.token_ids) >= self._max_tokens:
                self.finish_reason = "length"
        return self.finish_reason is not None

    def _cut_at_stop_string(self, text: str) -> bool:
        found = [position for position in map(text.find, self._stop) if position >= 0]
        if found:
            self._text = text[: min(found)]
        return bool(found)

    def completion(self) -> Completion:
        """The finished row."""
        assert self.finish_reason is not None
        if self._text is None:
            self._detokenizer.finalize()
            # Held-back bytes can complete a stop string at the very end.
            if self._cut_at_stop_string(self._detokenizer.text):
                self.finish_reason = "stop"
            else:
                self._text = self._detokenizer.text
        return Completion(
            request=self.request,
            prompt_tokens=len(self.prompt_ids),
            text=self._text or "",
            token_ids=self.token_ids,
            finish_reason=self.finish_reason,
            acceptance=self.acceptance,
            logprobs=self.logprobs,
        )

    def fault(self, nan: int, inf: int, vocab_size: int) -> RowError:
        """Why no token could be drawn, given how many NaN and +inf the logits held."""
        if self.mask is not None and not nan and not inf:
            return ConstraintError(
                f"no token may come next, at {len(self.token_ids)} tokens or a few more: "
                + (self.mask.fault or "none of those that the constraint allows has a finite logit")
            )
        return NonFiniteLogitsError(nan, inf, vocab_size)

    def tally(self) -> Tally:
        """The counts of a row that is still running."""
        return self.acceptance.tally(prompt_tokens=len(self.prompt_ids), completion_tokens=len(self.token_ids))

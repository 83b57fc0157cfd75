"""The batched twin of the reference: a whole batch drafted, or judged, with one evaluation on the device.

Reduce on the device, decide on the host in float64 (docs: exactness). Given the same random words every token, and every decision, is the
one that `verify_one_token` and `sample_from_distribution` take on the same logits. A row's result is a function of that row alone, bit for
bit.

A cycle reads:

    steps = []
    for _ in range(depth):
        steps.append(sampler.draft(head_logits, rows, steps))
    block = sampler.verify(target_logits, rows, steps)

A row may propose fewer than K drafts: `NO_TOKEN` in a step means that it proposes nothing from there on in this cycle. The token there is
then drawn from p with the same word as at a smaller depth, so the row cannot tell the difference.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import mlx.core as mx
import numpy as np
from numpy.typing import ArrayLike, NDArray

from sampling.adjustments import Adjustments, adjustments_along
from sampling.candidates import CandidateBatch, candidates, inverse_cdf, residual
from sampling.counter_rng import PositionRandom, Purpose, uniform
from sampling.distribution import sample_from_distribution
from sampling.grouped_batch import GroupedBatch
from sampling.logit_batch import reduce_logits
from sampling.penalties import bias_of
from sampling.rows import NO_TOKEN, RowBatch
from sampling.token_mask import allowed_along, masked
from sampling.verification import acceptance_probability, residual_distribution
from sampling.whole_vocabulary import WholeVocabularyBatch
from schemas.sampler import SamplerConfig

DistributionBatch = CandidateBatch | WholeVocabularyBatch


@dataclass(frozen=True, eq=False)
class DraftStep:
    """One draft token per row, and the distributions they were drawn from.

    Attributes:
        tokens: `[B] int64`, ids of the full vocabulary; `NO_TOKEN` where the row proposes nothing, here or deeper.
        distribution: q, `[B, 1]`; not read where the row proposes nothing. Grouped where a `GroupedSampler` drew it.
        failed: `[B] bool`: the draft logits of an active row were not finite. Its token is the placeholder that its q holds with
            probability 1, so verification of that row stays exact if the caller goes on with it.
        nan: `[B] int64`, NaN logits of a failed row.
        inf: `[B] int64`, +inf logits of a failed row.
    """

    tokens: NDArray[np.int64]
    distribution: DistributionBatch | GroupedBatch
    failed: NDArray[np.bool_]
    nan: NDArray[np.int64]
    inf: NDArray[np.int64]

    @property
    def q(self) -> DistributionBatch:
        """The distribution of a step that one sampler drew."""
        assert not isinstance(self.distribution, GroupedBatch)
        return self.distribution

    @classmethod
    def one_hot(cls, tokens: ArrayLike, vocab_size: int) -> "DraftStep":
        """Drafts that were proposed, not drawn (by lookup, say): q is 1 at each of `tokens`, `[B]` integer; `NO_TOKEN` proposes nothing.

        Raises:
            ValueError: a token lies outside [0, vocab_size).
        """
        ids = _proposals(tokens, vocab_size)
        none = np.zeros((len(ids), 1), dtype=np.int64)
        held = np.maximum(ids, 0)[:, None, None]
        q = CandidateBatch(held, np.ones(held.shape), {}, vocab_size, none, none, none.astype(bool))
        return cls(ids, q, none[:, 0].astype(bool), none[:, 0], none[:, 0])

    @classmethod
    def where(cls, proposed: ArrayLike, tokens: ArrayLike, drawn: "DraftStep") -> "DraftStep":
        """Rows in `proposed` as `one_hot` makes them of `tokens`, the others as in `drawn`.

        Args:
            proposed: `[B]` bool.
            tokens: `[B]` integer; read in the rows of `proposed` alone.
            drawn: a step of the same batch.

        Raises:
            ValueError: a token lies outside [0, vocab_size).
        """
        chosen = np.asarray(proposed, dtype=bool)
        q = drawn.distribution
        ids = _proposals(np.where(chosen, tokens, NO_TOKEN), q.vocab_size)
        return cls(
            np.where(chosen, ids, drawn.tokens),
            q.with_one_hot(chosen, np.maximum(ids, 0)),
            drawn.failed & ~chosen,
            np.where(chosen, 0, drawn.nan),
            np.where(chosen, 0, drawn.inf),
        )


@dataclass(frozen=True, eq=False)
class BlockResult:
    """What one cycle emits.

    Attributes:
        proposed: `[B] int64`, drafts of the row, 0 to K: those before its first `NO_TOKEN`.
        accepted: `[B] int64`, drafts accepted, 0 to `proposed`. `accepted + 1` tokens are emitted: those drafts and a residual token, or a
            bonus token when `accepted == proposed`.
        tokens: `[B, K + 1] int64`, emitted tokens, padded with -1.
        accept_probabilities: `[B, K] float64`, α of every draft that was judged, 0 behind the first rejection; its row sum is what
            `accepted` is expected to be.
        logprobs: `[B, K + 1] float64`, log p of every emitted token under the target, 0 on padding.
        failed: `[B] bool`: a target position that was reached is not a distribution. Such a row of an active batch emits nothing.
        nan: `[B] int64`, NaN logits at that position.
        inf: `[B] int64`, +inf logits at that position.
    """

    proposed: NDArray[np.int64]
    accepted: NDArray[np.int64]
    tokens: NDArray[np.int64]
    accept_probabilities: NDArray[np.float64]
    logprobs: NDArray[np.float64]
    failed: NDArray[np.bool_]
    nan: NDArray[np.int64]
    inf: NDArray[np.int64]


class Sampler(Protocol):
    """Who draws and judges drafts: `BatchedSampler`, or `GroupedSampler` for rows of several configs."""

    def draft(self, logits: mx.array, rows: RowBatch, earlier: Sequence[DraftStep] = ()) -> DraftStep:
        """The next draft token of every row."""

    def verify(self, logits: mx.array, rows: RowBatch, drafts: Sequence[DraftStep] = ()) -> BlockResult:
        """The verdict on every row's drafts."""


class BatchedSampler:
    """Drafts and verifies batches under one config; it holds no state beyond its arguments.

    Args:
        config: for the target and the draft alike.
        vocab_size: V of the target.
        draft_ids: `[Vd]` integer, for a head over part of the vocabulary: the full id of each of its tokens, strictly ascending. q then
            lives on that part. None: the head has the target's vocabulary.
        end_ids: `[E]` integer, the tokens that end a completion, which `min_tokens` forbids.
        mass_on_device: where softmax normalisers are summed: in float32 on the device, or in float64 on the host. None: the device if it
            is a GPU. The tokens are the same either way; α and log p without filters carry 1e-6 more rounding on the device.

    Raises:
        ValueError: `vocab_size` < 1, `draft_ids` are not strictly ascending in [0, V), ids of the bias or `end_ids` lie outside, or there
            are no `end_ids` for `min_tokens`.
    """

    def __init__(
        self,
        config: SamplerConfig,
        vocab_size: int,
        draft_ids: ArrayLike | None = None,
        *,
        end_ids: ArrayLike | None = None,
        mass_on_device: bool | None = None,
    ) -> None:
        if vocab_size < 1:
            raise ValueError(f"vocab_size must be >= 1; received {vocab_size}")
        self.config = config
        self.vocab_size = vocab_size
        self.mass_on_device = mx.default_device() == mx.gpu if mass_on_device is None else mass_on_device
        self.draft_ids: NDArray[np.int64] | None = None
        if draft_ids is not None:
            ids = np.asarray(draft_ids, dtype=np.int64)
            if ids.ndim != 1 or len(ids) == 0 or ids[0] < 0 or ids[-1] >= vocab_size or np.any(np.diff(ids) <= 0):
                raise ValueError(
                    f"draft_ids must be a non-empty, strictly ascending vector in [0, {vocab_size}); received shape {ids.shape}"
                )
            self.draft_ids = ids
        if config.min_tokens and end_ids is None:
            raise ValueError(f"end_ids must be given for min_tokens of {config.min_tokens}; received None")
        self.end_ids: NDArray[np.int64] = np.asarray(() if end_ids is None else end_ids, dtype=np.int64)
        for name, given in (("logit_bias", bias_of(config)[0]), ("end_ids", self.end_ids)):
            if len(given) and not (given.min() >= 0 and given.max() < vocab_size):
                raise ValueError(f"{name} must hold tokens in [0, {vocab_size}); received {given.min()} to {given.max()}")
        self._draft_config = config if self.draft_ids is None else _local_config(config, self.draft_ids)

    def draft(self, logits: mx.array, rows: RowBatch, earlier: Sequence[DraftStep] = ()) -> DraftStep:
        """Draw the next draft token of every row.

        Args:
            logits: `[B, Vd]` float32, bfloat16 or float16, from the head.
            rows: the rows of this cycle, as they will be passed to `verify`.
            earlier: the steps already drafted in this cycle; their number is the depth of this one, and penalties count their tokens. A
                row that stopped proposing in one of them draws nothing. Nor does one whose mask leaves no token of the draft's vocabulary.

        Raises:
            ValueError: the shape of `logits` does not fit.
        """
        width = self.vocab_size if self.draft_ids is None else len(self.draft_ids)
        _require_shape("logits", logits, (len(rows), width))
        drafted = _stacked(earlier, len(rows))
        stopped = (drafted == NO_TOKEN).any(axis=1)
        allowed = self._allowed(rows, drafted, self.draft_ids, from_place=len(earlier))
        if allowed is not None:
            stopped |= ~allowed[:, 0].any(axis=-1)
        drawing = replace(rows, active=rows.active & ~stopped)
        q = self._distributions(logits[:, None, :], drawing, drafted, self.draft_ids, allowed, from_place=len(earlier))
        tokens = self._pick_drafts(q, drawing.keys, drawing.positions + len(earlier))
        return DraftStep(np.where(stopped, NO_TOKEN, tokens), q, q.bad[:, 0] & drawing.active, q.nan[:, 0], q.inf[:, 0])

    def verify(self, logits: mx.array, rows: RowBatch, drafts: Sequence[DraftStep] = ()) -> BlockResult:
        """Judge every row's drafts and draw its residual or bonus token.

        Args:
            logits: `[B, K + 1, V]` float32, bfloat16 or float16: the target's logits at the position of each draft, and behind the last.
            rows: the rows of this cycle.
            drafts: the K steps of this cycle; none for plain decoding.

        Raises:
            ValueError: the shape of `logits` does not fit.
        """
        count, depth = len(rows), len(drafts)
        _require_shape("logits", logits, (count, depth + 1, self.vocab_size))
        tokens = _stacked(drafts, count)
        p = self._distributions(logits, rows, tokens, None, self._allowed(rows, tokens, None))
        accepted, final, alphas = self._judge(p, drafts, tokens, rows)

        here, last = np.arange(depth + 1), accepted[:, None]
        emitted = np.where(here < last, np.append(tokens, final[:, None], axis=1), np.where(here == last, final[:, None], NO_TOKEN))
        chosen = np.where(here <= last, p.probability_of(emitted, np.broadcast_to(here, emitted.shape)), 1.0)
        everyone = np.arange(count)
        failed = p.bad[everyone, accepted]
        return BlockResult(
            proposed=(tokens != NO_TOKEN).sum(axis=1),
            accepted=np.where(failed, 0, accepted),
            tokens=np.where(failed[:, None], NO_TOKEN, emitted),
            accept_probabilities=np.where(failed[:, None] | (here[:depth] > last) | (tokens == NO_TOKEN), 0.0, alphas),
            logprobs=np.log(np.where(failed[:, None], 1.0, chosen)),
            failed=failed & rows.active,
            nan=np.where(failed, p.nan[everyone, accepted], 0),
            inf=np.where(failed, p.inf[everyone, accepted], 0),
        )

    def target(self, logits: mx.array, rows: RowBatch, drafts: NDArray[np.int64]) -> DistributionBatch:
        """p at every position of a block, `[B, K + 1]`, given the block's first K tokens.

        Args:
            logits: `[B, K + 1, V]` float32, bfloat16 or float16, from the target.
            rows: the rows; their keys are not read.
            drafts: `[B, K] int64`.

        Raises:
            ValueError: the shape of `logits` does not fit.
        """
        _require_shape("logits", logits, (len(rows), drafts.shape[1] + 1, self.vocab_size))
        return self._distributions(logits, rows, drafts, None, self._allowed(rows, drafts, None))

    def _pick_drafts(self, q: DistributionBatch, keys: NDArray[np.uint64], positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The draft token of every row, `[B] int64`."""
        return q.sample(np.zeros(len(keys), dtype=np.int64), uniform(keys, positions, Purpose.DRAFT))

    def _judge(
        self,
        p: DistributionBatch,
        drafts: Sequence[DraftStep],
        tokens: NDArray[np.int64],
        rows: RowBatch,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """Judge the drafts' `tokens`, `[B, K]`.

        Returns:
            how many of each row are accepted, `[B] int64`, the token behind them, `[B] int64`, and α of those drafts that are judged,
            `[B, K] float64`, anything elsewhere.
        """
        uniforms = uniform(rows.keys[:, None], rows.positions[:, None] + np.arange(len(drafts)), Purpose.ACCEPT)
        alphas = _acceptance(p, drafts, tokens, uniforms)
        accepted = np.cumprod((uniforms < alphas) & ~p.bad[:, : len(drafts)], axis=1).sum(axis=1).astype(np.int64)
        return accepted, _corrections(p, drafts, tokens, accepted, rows), alphas

    def _allowed(
        self, rows: RowBatch, drafts: NDArray[np.int64], vocab_ids: NDArray[np.int64] | None, from_place: int = 0
    ) -> NDArray[np.bool_] | None:
        """What the rows' masks allow at the places `from_place`… of the block, `[B, T, V] bool`; None where no row has one."""
        if rows.masks is None:
            return None
        allowed = allowed_along(rows.masks, drafts, range(from_place, drafts.shape[1] + 1), self.vocab_size)
        return allowed if vocab_ids is None else allowed[..., vocab_ids]

    def _distributions(
        self,
        logits: mx.array,
        rows: RowBatch,
        drafts: NDArray[np.int64],
        vocab_ids: NDArray[np.int64] | None,
        allowed: NDArray[np.bool_] | None,
        from_place: int = 0,
    ) -> DistributionBatch:
        """Distributions at the places `from_place`… of the block, which hold the drafts before them in their counts."""
        logits = logits if allowed is None else masked(logits, allowed)
        config = self.config if vocab_ids is None else self._draft_config
        given = self._adjustments(rows, drafts, range(from_place, drafts.shape[1] + 1), vocab_ids)
        with_mass = not config.greedy and (config.top_p < 1.0 or not config.filters)
        reduced = reduce_logits(logits, config, given, rows.active, with_mass=with_mass, mass_on_device=self.mass_on_device)
        if config.filters:
            return candidates(reduced, rows.active, vocab_ids, self.vocab_size)
        return WholeVocabularyBatch.of(reduced, rows.active, vocab_ids, self.vocab_size)

    def _adjustments(self, rows: RowBatch, drafts: NDArray[np.int64], places: range, vocab_ids: NDArray[np.int64] | None) -> Adjustments:
        config = self.config
        if not (config.has_penalties or config.logit_bias or config.min_tokens):
            return Adjustments.none(len(rows), len(places))
        given = adjustments_along(rows, drafts, config, self.end_ids, places)
        if given.ids.max(initial=NO_TOKEN) >= self.vocab_size:
            raise ValueError(f"tokens of rows must be in [0, {self.vocab_size}); received {given.ids.max()}")
        return given if vocab_ids is None else replace(given, ids=_local(given.ids, vocab_ids))


def _acceptance(
    p: DistributionBatch,
    drafts: Sequence[DraftStep],
    tokens: NDArray[np.int64],
    uniforms: NDArray[np.float64],
) -> NDArray[np.float64]:
    """α of every draft, `[B, K] float64`; taken again in float64 where the test against its uniform hangs on a device's rounding."""
    p_token = p.probability_of(tokens, np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape))
    q_token = np.zeros_like(p_token)
    for place, step in enumerate(drafts):
        q_token[:, place] = step.q.probability_of(tokens[:, place, None], np.zeros((len(tokens), 1), dtype=np.int64))[:, 0]
    drawable = q_token > 0.0
    ratio = np.divide(p_token, q_token, out=np.ones_like(p_token), where=p_token < q_token)
    alphas = np.where(drawable, ratio, 0.0)
    error = max([p.error_bound, *(step.q.error_bound for step in drafts)])
    doubtful = (np.abs(uniforms * q_token - p_token) <= 2.0 * error * (p_token + q_token)) & drawable & ~p.bad[:, : len(drafts)]
    for row, place in np.argwhere(doubtful).tolist():
        alphas[row, place] = acceptance_probability(p.at(row, place), drafts[place].q.at(row, 0), int(tokens[row, place]))
    return alphas


def _corrections(
    p: DistributionBatch, drafts: Sequence[DraftStep], tokens: NDArray[np.int64], accepted: NDArray[np.int64], rows: RowBatch
) -> NDArray[np.int64]:
    """The token behind the accepted drafts of every row, residual or bonus: `[B] int64`."""
    uniforms = uniform(rows.keys, rows.positions + accepted, Purpose.CORRECTION)
    final = p.sample(accepted, uniforms)
    for place, step in enumerate(drafts):
        q = step.q
        rejected = (accepted == place) & (tokens[:, place] != NO_TOKEN) & ~p.bad[:, place]
        if isinstance(p, CandidateBatch) and isinstance(q, CandidateBatch):
            padded = np.array(
                [row for row in np.flatnonzero(rejected).tolist() if (row, place) not in p.wide and (row, 0) not in q.wide], dtype=np.int64
            )
            left = residual(p.ids[padded, place], p.probabilities[padded, place], q.ids[padded, 0], q.probabilities[padded, 0])
            final[padded] = inverse_cdf(p.ids[padded, place], left, uniforms[padded])
            rejected[padded] = False
        for row in np.flatnonzero(rejected).tolist():
            rng = PositionRandom(int(rows.keys[row]), int(rows.positions[row]) + place, (Purpose.CORRECTION,))
            final[row] = sample_from_distribution(residual_distribution(p.at(row, place), q.at(row, 0)), rng)
    return final


def _stacked(drafts: Sequence[DraftStep], rows: int) -> NDArray[np.int64]:
    """The draft tokens, `[B, K] int64`; `NO_TOKEN` from a row's first one on."""
    if not drafts:
        return np.zeros((rows, 0), dtype=np.int64)
    tokens = np.stack([step.tokens for step in drafts], axis=1)
    return np.where(np.logical_and.accumulate(tokens != NO_TOKEN, axis=1), tokens, NO_TOKEN)


def _proposals(tokens: ArrayLike, vocab_size: int) -> NDArray[np.int64]:
    ids = np.asarray(tokens, dtype=np.int64)
    if len(ids) and not (ids.min() >= NO_TOKEN and ids.max() < vocab_size):
        raise ValueError(f"tokens must be in [0, {vocab_size}), or {NO_TOKEN} for none; received {ids.min()} to {ids.max()}")
    return ids


def _local_config(config: SamplerConfig, vocab_ids: NDArray[np.int64]) -> SamplerConfig:
    """The config of logits over a draft's vocabulary: its bias is keyed by their indices."""
    ids, biases = bias_of(config)
    slots = _local(ids, vocab_ids)
    return replace(config, logit_bias={str(slot): bias for slot, bias in zip(slots.tolist(), biases.tolist(), strict=True) if slot >= 0})


def _local(ids: NDArray[np.int64], vocab_ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Indices into a draft's vocabulary; `NO_TOKEN` where it lacks the token."""
    slots = np.minimum(np.searchsorted(vocab_ids, ids), len(vocab_ids) - 1)
    return np.where(vocab_ids[slots] == ids, slots, NO_TOKEN)


def _require_shape(name: str, array: mx.array, shape: tuple[int, ...]) -> None:
    if tuple(array.shape) != shape:
        raise ValueError(f"{name} must have shape {shape}; received {tuple(array.shape)}")

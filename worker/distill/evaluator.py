"""`Evaluator`: how often the trunk would accept a head's drafts, on held-out text, without decoding anything."""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from worker.distill.batch import Batch, packed
from worker.distill.corpus import Corpus
from worker.distill.evaluation_record import Acceptance, Evaluation
from worker.distill.exponentials import log_sum_exp
from worker.distill.hidden_states import HiddenStates
from worker.distill.loss import flat
from worker.distill.replay import Replay, replayed
from worker.distill.unrolled_head import unroll
from worker.engine.mtp_head import MTPHead
from worker.engine.trunk import Trunk

BATCH_TOKENS = 256  # bounds the trunk's logits in memory to 256 × V float32


@dataclass(frozen=True, eq=False)
class _Judged:
    """One sequence: by temperature [K, L - 1] float64 of overlaps, and of probabilities to keep the text's token; NaN where no chain."""

    overlap: list[NDArray[np.float64]]
    kept: list[NDArray[np.float64]]
    mass: float


class Evaluator:
    """Judges heads on the same rows of a corpus."""

    def __init__(self, trunk: Trunk, corpus: Corpus, cache: HiddenStates, indices: Sequence[int], depth: int) -> None:
        self._trunk = trunk
        self._corpus = corpus
        self._cache = cache
        self._depth = depth
        lengths = {index: corpus.sequences[index].read for index in indices}
        self._batches = packed(sorted(indices, key=lengths.__getitem__), lengths, BATCH_TOKENS)

    def evaluate(self, head: MTPHead, temperatures: Sequence[float]) -> Evaluation:
        """Expected acceptance at these temperatures."""
        judged = [one for batch in self._batches for one in self._judge(head, batch, temperatures)]
        return Evaluation(
            rows=len(judged),
            positions=sum(int(np.isfinite(one.overlap[0][0]).sum()) for one in judged),
            mass=float(np.mean([one.mass for one in judged])),
            acceptance=tuple(_acceptance(temperature, [one.overlap[i] for one in judged]) for i, temperature in enumerate(temperatures)),
        )

    def replay(self, head: MTPHead, temperature: float) -> Replay:
        """What runs count when they decode with this head, from text that was drawn at this temperature without filters."""
        judged = [
            (index, one) for batch in self._batches for index, one in zip(batch, self._judge(head, batch, [temperature]), strict=True)
        ]
        return replayed([(one.kept[0], self._corpus.sequences[index].prompt_tokens) for index, one in judged])

    def _judge(self, head: MTPHead, indices: Sequence[int], temperatures: Sequence[float]) -> list[_Judged]:
        batch = Batch.of(self._corpus, self._cache, indices, self._depth)
        states = unroll(head, batch.hidden, batch.tokens, self._depth)
        ids = head.draft_ids
        target = np.array(self._trunk.logits(flat(batch.hidden)[batch.targets]).astype(mx.float32))
        drafts = [np.array(head.logits(flat(state)[chains]).astype(mx.float32)) for state, chains in zip(states, batch.chains, strict=True)]
        height, width = batch.hidden.shape[:2]
        overlap = np.full((len(temperatures), self._depth, height * width), np.nan)
        kept = np.full_like(overlap, np.nan)
        for i, temperature in enumerate(temperatures):
            p, p_next = _target(target, batch.next_tokens, ids, temperature)
            for k, (logits, at) in enumerate(zip(drafts, batch.chain_targets, strict=True)):
                places = np.array(batch.chains[k])
                q, q_next = _draft(logits, batch.next_tokens[at], ids, temperature)
                overlap[i, k, places] = np.minimum(p[at], q).sum(axis=-1)
                with np.errstate(divide="ignore", invalid="ignore"):
                    kept[i, k, places] = np.where(p_next[at] > 0, np.minimum(1.0, q_next / p_next[at]), 0.0)
        mass = _target(target, batch.next_tokens, ids, 1.0)[0].sum(axis=-1)
        return [
            _Judged(
                overlap=list(overlap[:, :, row * width : row * width + self._corpus.sequences[index].read]),
                kept=list(kept[:, :, row * width : row * width + self._corpus.sequences[index].read]),
                mass=float(mass[batch.rows == row].mean()),
            )
            for row, index in enumerate(indices)
        ]


def _target(
    logits: NDArray[np.float32], next_tokens: NDArray[np.int32], ids: NDArray[np.int32] | None, temperature: float
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """p on the draft vocabulary, [n, Vd], and at the text's own token, [n]."""
    every = np.arange(len(logits))
    columns = np.arange(logits.shape[1]) if ids is None else ids
    if temperature <= 0:
        best = logits.argmax(axis=-1)
        return (columns == best[:, None]).astype(np.float32), (next_tokens == best).astype(np.float32)
    scaled = logits / np.float32(temperature)
    log_z = log_sum_exp(mx.array(scaled))
    kept = scaled if ids is None else scaled[:, ids]
    return np.exp(kept - log_z[:, None]), np.exp(scaled[every, next_tokens] - log_z)


def _draft(
    logits: NDArray[np.float32], next_tokens: NDArray[np.int32], ids: NDArray[np.int32] | None, temperature: float
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """q, [n, Vd], and at the text's own token, [n]."""
    if not len(logits):
        return logits, np.zeros(0, np.float32)
    slots = next_tokens if ids is None else np.minimum(np.searchsorted(ids, next_tokens), len(ids) - 1)
    if temperature <= 0:
        q = (np.arange(logits.shape[1]) == logits.argmax(axis=-1)[:, None]).astype(np.float32)
    else:
        scaled = logits / np.float32(temperature)
        q = np.exp(scaled - log_sum_exp(mx.array(scaled))[:, None])
    held = np.ones(len(slots), bool) if ids is None else ids[slots] == next_tokens
    return q, np.where(held, q[np.arange(len(q)), slots], 0.0).astype(np.float32)


def _acceptance(temperature: float, rows: list[NDArray[np.float64]]) -> Acceptance:
    """The summary of rows of [K, L - 1] overlaps."""
    means, errors = [], []
    for k in range(rows[0].shape[0]):
        sums = np.array([np.nansum(row[k]) for row in rows])
        counts = np.array([np.isfinite(row[k]).sum() for row in rows])
        mean, error = mean_and_error(sums, counts)
        means.append(mean)
        errors.append(error)
    chains = np.concatenate([row[:, np.isfinite(row).all(axis=0)] for row in rows], axis=1)
    cycle = float(1.0 + np.cumprod(chains, axis=0).sum(axis=0).mean()) if chains.size else 1.0
    return Acceptance(temperature, tuple(means), tuple(errors), cycle)


def mean_and_error(sums: NDArray[np.float64], counts: NDArray[np.int64]) -> tuple[float, float]:
    """The mean over everything and its standard error between rows, from each row's sum and count."""
    total = counts.sum()
    if not total:
        return 0.0, 0.0
    mean = float(sums.sum() / total)
    rows = len(sums)
    spread = float(np.sqrt(((sums - mean * counts) ** 2).sum() * rows / max(rows - 1, 1)) / total)
    return mean, spread

"""The drafter-invariant coupling: draft and target race on the same noise, and the target's pick is emitted in any case.

What a row emits is a function of the target, the prompt and the seed: the same for every depth, drafter and head, and in plain decoding.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sampling.batched import BatchedSampler, DistributionBatch, DraftStep
from sampling.candidates import CandidateBatch
from sampling.exponential_noise import shared_noise_acceptance, sub_keys
from sampling.rows import NO_TOKEN, RowBatch


class SharedNoiseSampler(BatchedSampler):
    """A `BatchedSampler` whose drafts are accepted iff the target picks the same token with the same noise.

    `accept_probabilities` are the chance of that, given the draft token and the distributions before any noise is seen (see
    `shared_noise_acceptance`): their sum is what `accepted` is expected to be, as for rejection. Without filters they cost one pass in
    float64 over p and q for every draft that is judged.
    """

    def _pick_drafts(self, q: DistributionBatch, keys: NDArray[np.uint64], positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return q.race(np.arange(len(keys)), 0, sub_keys(keys, positions))

    def _judge(
        self,
        p: DistributionBatch,
        drafts: Sequence[DraftStep],
        tokens: NDArray[np.int64],
        rows: RowBatch,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        count, depth = tokens.shape
        accepted = np.zeros(count, dtype=np.int64)
        final = np.zeros(count, dtype=np.int64)
        alphas = np.zeros((count, depth))
        running = np.arange(count)
        for place in range(depth + 1):
            final[running] = p.race(running, place, sub_keys(rows.keys[running], rows.positions[running] + place))
            if place == depth:
                break
            judged = running[(tokens[running, place] != NO_TOKEN) & ~p.bad[running, place]]
            alphas[judged, place] = _acceptance(p, drafts[place], tokens[:, place], judged, place)
            running = judged[final[judged] == tokens[judged, place]]
            accepted[running] += 1
        return accepted, final, alphas


def _acceptance(
    p: DistributionBatch, step: DraftStep, tokens: NDArray[np.int64], judged: NDArray[np.int64], place: int
) -> NDArray[np.float64]:
    """`shared_noise_acceptance` of the drafts of rows `judged` `[R]` at one place: `[R] float64`."""
    q = step.q
    alphas = np.zeros(len(judged))
    padded = np.zeros(len(judged), dtype=bool)
    if isinstance(p, CandidateBatch) and isinstance(q, CandidateBatch):
        padded = np.array([(row, place) not in p.wide and (row, 0) not in q.wide for row in judged.tolist()], dtype=bool)
        rows = judged[padded]
        alphas[padded] = _padded_acceptance(
            p.ids[rows, place], p.probabilities[rows, place], q.ids[rows, 0], q.probabilities[rows, 0], tokens[rows]
        )
    for slot in np.flatnonzero(~padded).tolist():
        row = int(judged[slot])
        alphas[slot] = shared_noise_acceptance(p.at(row, place), q.at(row, 0), int(tokens[row]))
    return alphas


def _padded_acceptance(
    ids: NDArray[np.int64], p: NDArray[np.float64], q_ids: NDArray[np.int64], q: NDArray[np.float64], tokens: NDArray[np.int64]
) -> NDArray[np.float64]:
    """`shared_noise_acceptance` of padded rows: ids and p `[R, C]`, q_ids and q `[R, D]`, tokens `[R]` → `[R] float64`."""
    p_token = np.where(ids == tokens[:, None], p, 0.0).max(axis=-1)
    q_token = np.where(q_ids == tokens[:, None], q, 0.0).max(axis=-1)
    possible = (p_token > 0.0) & (q_token > 0.0)
    matches = ids[:, :, None] == q_ids[:, None, :]
    drafted = np.where(matches, q[:, None, :], 0.0).max(axis=-1)
    with np.errstate(over="ignore"):
        scale = np.divide(q_token, p_token, out=np.ones_like(p_token), where=possible)
        shared = np.maximum(drafted, p * scale[:, None])
    # Left to right, so that the padding, and with it the rest of the batch, never changes a bit.
    total = np.cumsum(np.append(shared, np.where(matches.any(axis=1), 0.0, q), axis=-1), axis=-1)[:, -1]
    return np.where(possible, np.minimum(1.0, 1.0 / total), 0.0)

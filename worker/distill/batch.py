"""`Batch`: some sequences side by side, and which of their chains count; `BatchOrder`: which sequences a step sees."""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from worker.distill.corpus import Corpus
from worker.distill.hidden_states import HiddenStates

GROUP = 8  # batches among whose sequences like lengths are put together


@dataclass(frozen=True, eq=False)
class Batch:
    """Sequences padded on the right to T positions. A place is row · T + position.

    A chain counts at depth k when decoding could begin a cycle there (its start is the last prompt token but one, or later) and its target
    precedes a token of the answer.

    Attributes:
        tokens: [B, T + K] int32.
        hidden: [B, T, D] float32, the trunk's, after the final norm.
        targets: [n] int32, places of the target positions, all that precede an answer token.
        log_z: [n] float32, the trunk's normaliser there.
        next_tokens: [n] int32, the answer token behind each target.
        chains: per depth [n_k] int32, places where the chains that count start.
        chain_targets: per depth [n_k] int32, each chain's index in `targets`.
        rows: per target [n] int32, its row in the batch.
    """

    tokens: mx.array
    hidden: mx.array
    targets: mx.array
    log_z: mx.array
    next_tokens: NDArray[np.int32]
    chains: tuple[mx.array, ...]
    chain_targets: tuple[NDArray[np.int32], ...]
    rows: NDArray[np.int32]

    @classmethod
    def of(cls, corpus: Corpus, cache: HiddenStates, indices: Sequence[int], depth: int) -> "Batch":
        """The batch of these sequences of a corpus, with chains of up to `depth` tokens."""
        sequences = [corpus.sequences[index] for index in indices]
        longest = max(sequence.read for sequence in sequences)
        tokens = np.zeros((len(sequences), longest + depth), np.int32)
        hidden = np.zeros((len(sequences), longest, cache.hidden(indices[0]).shape[1]), np.float32)
        places, rows, next_tokens, log_z, room = [], [], [], [], []
        for row, (index, sequence) in enumerate(zip(indices, sequences, strict=True)):
            tokens[row, : len(sequence.ids)] = sequence.ids[: longest + depth]
            hidden[row, : sequence.read] = cache.hidden(index)
            positions = np.arange(sequence.prompt_tokens - 1, sequence.read)
            places.append(row * longest + positions)
            rows.append(np.full(len(positions), row))
            next_tokens.append(sequence.ids[positions + 1])
            log_z.append(cache.log_z(index)[positions])
            room.append(positions - (sequence.prompt_tokens - 2))  # the deepest chain that ends here
        targets, deepest = np.concatenate(places), np.concatenate(room)
        counted = [np.flatnonzero(deepest >= k).astype(np.int32) for k in range(1, depth + 1)]
        return cls(
            tokens=mx.array(tokens),
            hidden=mx.array(hidden),
            targets=mx.array(targets.astype(np.int32)),
            log_z=mx.array(np.concatenate(log_z)),
            next_tokens=np.concatenate(next_tokens).astype(np.int32),
            chains=tuple(mx.array((targets[which] - k).astype(np.int32)) for k, which in enumerate(counted, 1)),
            chain_targets=tuple(counted),
            rows=np.concatenate(rows).astype(np.int32),
        )


class BatchOrder:
    """An endless series of batches over some sequences, a function of the seed: every epoch sees each of them once."""

    def __init__(self, corpus: Corpus, indices: Sequence[int], batch_tokens: int, seed: int) -> None:
        """
        Args:
            corpus: the sequences.
            indices: those to take.
            batch_tokens: positions of a batch, padding included; a longer sequence is a batch of its own.
            seed: of the order.
        """
        self._lengths = {index: corpus.sequences[index].read for index in indices}
        self._batch_tokens = batch_tokens
        self._seed = seed
        self._epochs: list[list[list[int]]] = []
        self._ends: list[int] = []

    def batch(self, step: int) -> list[int]:
        """The sequences of a step, which counts from 0."""
        while not self._ends or step >= self._ends[-1]:
            self._epochs.append(self._epoch(len(self._epochs)))
            self._ends.append((self._ends[-1] if self._ends else 0) + len(self._epochs[-1]))
        epoch = int(np.searchsorted(self._ends, step, side="right"))
        return self._epochs[epoch][step - (self._ends[epoch - 1] if epoch else 0)]

    def epoch(self, step: int) -> float:
        """Passes over the data before a step."""
        self.batch(step)
        epoch = int(np.searchsorted(self._ends, step, side="right"))
        return epoch + (step - (self._ends[epoch - 1] if epoch else 0)) / len(self._epochs[epoch])

    def _epoch(self, number: int) -> list[list[int]]:
        rng = np.random.default_rng([self._seed, number])
        shuffled = rng.permutation(np.array(sorted(self._lengths))).tolist()
        mean = sum(self._lengths.values()) / len(self._lengths)
        group = max(1, round(GROUP * self._batch_tokens / mean))
        batches: list[list[int]] = []
        for start in range(0, len(shuffled), group):
            batches += packed(sorted(shuffled[start : start + group], key=self._lengths.__getitem__), self._lengths, self._batch_tokens)
        return [batches[i] for i in rng.permutation(len(batches))]


def packed(indices: Sequence[int], lengths: dict[int, int], batch_tokens: int) -> list[list[int]]:
    """Cut a series of sequences into batches of at most `batch_tokens` padded positions, in order."""
    batches: list[list[int]] = []
    longest = 0
    for index in indices:
        longest = max(longest, lengths[index])
        if not batches or (len(batches[-1]) + 1) * longest > batch_tokens:
            batches.append([])
            longest = lengths[index]
        batches[-1].append(index)
    return batches

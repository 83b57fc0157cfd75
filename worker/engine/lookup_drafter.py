"""`LookupDrafter`: drafts what followed the last time the row's newest tokens occurred in its own prompt and text.

Prompt lookup decoding: a draft costs nothing, and where a text is rewritten, summarised or quoted it is often right. The proposal is
certain of itself, so q is a one-hot; a row without a match proposes nothing.
"""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from sampling.batched import DraftStep
from sampling.rows import NO_TOKEN, RowBatch
from worker.engine.drafter import Opening
from worker.engine.row import Row

LONGEST = 5  # tokens of the longest n-gram that is looked up


class LookupDrafter:
    """The n-gram indexes of all slots.

    Args:
        depth: K.
        slots: B.
        vocab_size: V.
        shortest: tokens of the shortest n-gram that counts as a match, ≥ 1.
    """

    def __init__(self, depth: int, slots: int, vocab_size: int, shortest: int = 2) -> None:
        self.depth = depth
        self._vocab_size = vocab_size
        self._shortest = shortest
        self._texts: list[NGramIndex | None] = [None] * slots

    def open(self, hidden: mx.array, normed: mx.array) -> "LookupDrafter":
        """The prompt is read when its row is admitted."""
        return self

    def feed(self, start: int, tokens: Sequence[int], hidden: mx.array, normed: mx.array) -> None:
        """Hidden states are not needed."""

    def fork(self, capacity: int) -> "LookupDrafter":
        """Nothing to copy."""
        return self

    def admit(self, slot: int, opening: Opening, row: Row) -> None:
        """Index the prompt."""
        self._texts[slot] = NGramIndex(row.prompt_ids, self._shortest)

    def propose(self, rows: Sequence[Row | None]) -> np.ndarray:
        """Drafts of every slot, [B, K] int64; NO_TOKEN from where nothing is proposed, or the row's mask forbids it."""
        drafts = np.full((len(self._texts), self.depth), NO_TOKEN, np.int64)
        for slot, (text, row) in enumerate(zip(self._texts, rows, strict=True)):
            if text is not None and row is not None:
                continuation = text.continuation(self.depth)
                if row.mask is not None:
                    continuation = continuation[: row.mask.legal(continuation)]
                drafts[slot, : len(continuation)] = continuation
        return drafts

    def draft(self, batch: RowBatch, rows: Sequence[Row | None]) -> list[DraftStep]:
        """One-hot steps."""
        return [DraftStep.one_hot(column, self._vocab_size) for column in self.propose(rows).T]

    def commit(self, offsets: np.ndarray, kept: np.ndarray, tokens: np.ndarray, hidden: mx.array, normed: mx.array) -> None:
        """Index what was committed."""
        for slot, count in enumerate(kept.tolist()):
            text = self._texts[slot]
            if count and text is not None:
                text.extend(tokens[slot, :count].tolist())

    def keep(self, slots: Sequence[int]) -> None:
        """Drop every slot but these, in this order."""
        self._texts = [self._texts[slot] for slot in slots]

    def arrays(self) -> list[mx.array]:
        """None."""
        return []


class NGramIndex:
    """A growing text and, for every n-gram of it, where it ended the last time before the text's end."""

    def __init__(self, tokens: Sequence[int], shortest: int) -> None:
        self._tokens: list[int] = []
        self._lengths = range(LONGEST, shortest - 1, -1)
        self._ends: dict[tuple[int, ...], int] = {}
        self.extend(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens. An n-gram enters the index when a token follows it, so that a match always has a continuation."""
        for token in tokens:
            end = len(self._tokens)
            for length in self._lengths:
                if length <= end:
                    self._ends[tuple(self._tokens[end - length :])] = end
            self._tokens.append(token)

    def continuation(self, count: int) -> list[int]:
        """Up to `count` tokens that followed the latest occurrence of the longest matching suffix; empty without a match."""
        for length in self._lengths:
            end = self._ends.get(tuple(self._tokens[-length:])) if length <= len(self._tokens) else None
            if end is not None:
                return self._tokens[end : end + count]
        return []

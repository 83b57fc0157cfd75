"""`Prefill`: reads the prompts of a cohort's rows in passes of one row each, and every pass that rows share only once."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from worker.engine.cohort_shape import CohortShape
from worker.engine.drafter import Drafter, Opening
from worker.engine.engine import Timings
from worker.engine.layer_cache import LayerCache
from worker.engine.prefix_tree import Beginning, PrefixNode, PrefixTree
from worker.engine.row import Row
from worker.engine.trunk import Trunk


@dataclass(frozen=True)
class Prefilled:
    """What was read of one prompt: the trunk's caches (B = 1) and what the drafter learned."""

    caches: list[LayerCache]
    opening: Opening

    def fork(self, capacity: int) -> "Prefilled":
        """The same, to be read on from; this one stays as it is. Buffers are copied when they are first written."""
        return Prefilled([cache.fork(capacity) for cache in self.caches], self.opening.fork(capacity))

    def evaluate(self) -> None:
        """Compute what was read."""
        mx.eval(*(buffer for cache in self.caches for buffer in cache.buffers), *self.opening.arrays())


@dataclass(frozen=True)
class KnownBeginning:
    """A beginning that many rows share, and what was read of it."""

    beginning: Beginning
    prefilled: Prefilled


class Prefill:
    """The prompts of some rows, and the beginnings that they share.

    Args:
        trunk: the target.
        drafter: learns what the target reads.
        shape: capacity, chunk, and whether cuts change no bit.
        timings: `prefill_tokens` counts the positions that are read.
        rows: all rows that will be read, each once.
        own_cuts: for every row where a pass has to end besides the chunks' ends; a function of the row alone.
        known: from an earlier prefill with the same trunk, kind of drafter and chunk, and where cuts matter the same capacity.

    Attributes:
        order: the rows in the order that keeps least in memory, long prompts first.
        nothing: what has read no token; its caches have the shapes of a slot's.
        most_kept: beginnings that are kept at a time, each as large as a slot. What is not kept is read again, to the same bits.
        known: what most of the rows share, as soon as it is read; before, and if they share nothing, the argument.
    """

    def __init__(
        self,
        trunk: Trunk,
        drafter: Drafter,
        shape: CohortShape,
        timings: Timings,
        rows: Sequence[Row],
        own_cuts: Sequence[Sequence[int]],
        known: KnownBeginning | None = None,
    ) -> None:
        self._trunk = trunk
        self._drafter = drafter
        self._shape = shape
        self._timings = timings
        self.known = known
        prompts = [row.prompt_ids for row in rows]
        chunk = shape.prefill_chunk
        cuts = [[*range(chunk, len(prompt), chunk), *own] for prompt, own in zip(prompts, own_cuts, strict=True)]
        self._tree = PrefixTree(prompts, cuts, elastic=shape.elastic, known=known.beginning if known is not None else None)
        self._index = {id(row): index for index, row in enumerate(rows)}
        self.order = [rows[index] for index in self._tree.order()]
        self.nothing = self._nothing()
        self.most_kept = min(self._tree.shared, max(2, shape.slots // 4)) + 1
        self._kept: dict[PrefixNode, Prefilled] = {self._tree.root: self.nothing}
        if known is not None and self._tree.known_place is not None:
            self._kept[self._tree.known_place] = known.prefilled

    def read(self, row: Row, on_pass: Callable[[int], None] = lambda _: None) -> Prefilled:
        """All of a row's prompt but its last token.

        Args:
            row: one of the prefill's.
            on_pass: called before every pass with the position it begins at; whatever it raises ends the job.
        """
        started = time.perf_counter()
        path = self._tree.path(self._index[id(row)])
        nodes = [self._tree.root, *(node for _, node in path)]
        begin = max(place for place, node in enumerate(nodes) if node in self._kept)
        prefilled = self._kept[nodes[begin]].fork(self._shape.capacity)
        for node in nodes[1:]:
            node.waiting -= 1
            if node.waiting == 0:
                self._kept.pop(node, None)  # before the next pass, which may then write into the buffers themselves
        for tokens, node in path[begin:]:
            on_pass(node.position - len(tokens))
            self._read(prefilled, tokens, node.position - len(tokens))
            if node.waiting > 0 and node.is_shared and len(self._kept) < self.most_kept:
                self._kept[node] = prefilled.fork(self._shape.capacity)
            if self._tree.common is not None and node is self._tree.common[1]:
                self.known = KnownBeginning(self._tree.common[0], prefilled.fork(self._shape.capacity))
        self._timings.prefill += time.perf_counter() - started
        return prefilled

    def _nothing(self) -> Prefilled:
        """Before the first token. The buffers get their shapes from a pass over some token, which is then taken back."""
        caches = self._trunk.make_caches(self._shape.capacity)
        hidden = self._trunk.forward(mx.zeros((1, 1), mx.int32), caches, self._shape.cursor(np.zeros(1, np.int32), 1))
        for cache in caches:
            cache.commit(mx.zeros(1, mx.int32))
        nothing = Prefilled(caches, self._drafter.open(hidden, self._trunk.norm(hidden)))
        nothing.evaluate()
        return nothing

    def _read(self, prefilled: Prefilled, tokens: Sequence[int], start: int) -> None:
        """One pass."""
        count = len(tokens)
        cursor = self._shape.cursor(np.array([start], np.int32), count)
        hidden = self._trunk.forward(mx.array([tokens], mx.int32), prefilled.caches, cursor)
        for cache in prefilled.caches:
            cache.commit(mx.array([count], mx.int32))
        prefilled.opening.feed(start, tokens, hidden, self._trunk.norm(hidden))
        prefilled.evaluate()
        self._timings.prefill_tokens += count

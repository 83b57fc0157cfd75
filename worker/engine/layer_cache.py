"""`LayerCache`: what the cohort asks of a layer's memory, whatever kind of layer it belongs to."""

from typing import Protocol, Self

import mlx.core as mx

from worker.engine.static_cache import Cursor


class LayerCache(Protocol):
    """The memory of one layer for B rows: written by a pass, confirmed or taken back by a commit."""

    cursor: Cursor | None

    def commit(self, kept: mx.array) -> None:
        """Confirm the first kept[b] tokens ([B] int32) of the last pass; the others never happened."""

    def insert(self, slot: int, other: Self) -> None:
        """Replace one slot by the only row of another cache; nothing of the slot's past stays."""

    def keep(self, slots: mx.array) -> None:
        """Drop every slot but these ([n] int32), in this order."""

    def like(self, batch: int) -> Self:
        """An empty cache of `batch` rows with the shapes of this one."""

    def fork(self, capacity: int) -> Self:
        """A memory with the same content for `capacity` positions, which hold it all, that may be written without changing this one."""

    @property
    def buffers(self) -> tuple[mx.array, ...]:
        """The arrays to evaluate."""

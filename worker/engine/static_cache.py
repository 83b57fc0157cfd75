"""`StaticCache`: key/value buffers of fixed shape in which slot index = token position.

There is no left padding. A cursor of per-row offsets says where the next tokens go; they are scattered there, and an explicit mask lets a
token see the positions up to its own. Going back after a rejection is arithmetic on the offsets: what lies behind an offset is never seen
and is overwritten later.
"""

import mlx.core as mx


class Cursor:
    """Where one forward pass writes and what it sees; shared by the caches of all layers, replaced before every pass."""

    def __init__(self, offsets: mx.array, tokens: int, window: int) -> None:
        """
        Args:
            offsets: position of each row's first token, [B] int32.
            tokens: T, tokens per row in this pass.
            window: positions that attention reads, at least every row's offset + T.
        """
        batch = offsets.shape[0]
        self.offsets = offsets
        self.window = window
        self.positions = offsets[:, None] + mx.arange(tokens, dtype=mx.int32)  # [B, T]
        self.rows = mx.arange(batch, dtype=mx.int32)[:, None, None]
        self.mask = (mx.arange(window, dtype=mx.int32) <= self.positions[:, :, None])[:, None]  # [B, 1, T, window]


class StaticCache:
    """One layer's buffers, in the interface that mlx-lm's attention layers expect of a cache.

    Attributes:
        keys, values: [B, heads, capacity, head width], or None before the first pass.
        cursor: set by the owner before each pass.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        self.cursor: Cursor | None = None

    @property
    def offset(self) -> mx.array:
        """Positions of the rows' first tokens, [B] int32: the rotary embedding's offset."""
        assert self.cursor is not None
        return self.cursor.offsets

    def make_mask(self, *_: object, window_size: int | None = None, **__: object) -> mx.array:
        """The pass's mask, [B, 1, T, window] bool; mlx-lm's other wishes are met by the cursor already."""
        assert self.cursor is not None
        assert window_size is None, "sliding-window layers need another cache"
        return self.cursor.mask

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write a pass's keys and values [B, heads, T, width] at the cursor; return the window of both buffers."""
        assert self.cursor is not None
        if self.keys is None or self.values is None:
            batch, heads, _, width = keys.shape
            self.keys = mx.zeros((batch, heads, self.capacity, width), keys.dtype)
            self.values = mx.zeros((batch, heads, self.capacity, values.shape[-1]), values.dtype)
        index = (self.cursor.rows, mx.arange(keys.shape[1], dtype=mx.int32)[None, :, None], self.cursor.positions[:, None, :])
        # In-place item assignment lets mlx write into the buffer itself; a functional update would copy it at every token.
        self.keys[index] = keys
        self.values[index] = values
        window = self.cursor.window
        if window == self.capacity:
            return self.keys, self.values
        return self.keys[:, :, :window], self.values[:, :, :window]

    def commit(self, kept: mx.array) -> None:
        """Nothing to do: the next pass's cursor says how many tokens ([B] int32) were kept."""

    def insert(self, slot: int, other: "StaticCache") -> None:
        """Replace one slot by the only row of another cache of the same capacity; nothing of the slot's past stays."""
        assert self.keys is not None
        assert self.values is not None
        self.keys[slot] = other.keys[0]  # type: ignore[index]
        self.values[slot] = other.values[0]  # type: ignore[index]

    def keep(self, slots: mx.array) -> None:
        """Drop every slot but these ([n] int32), in this order."""
        assert self.keys is not None
        assert self.values is not None
        self.keys = self.keys[slots]
        self.values = self.values[slots]

    def fork(self, capacity: int) -> "StaticCache":
        """A cache with the same content, as far as it fits, that may be written without changing this one."""
        copy = StaticCache(capacity)
        if capacity <= self.capacity:
            # Of equal capacity this copies nothing yet: mlx copies a buffer that is referenced twice when it is first written.
            copy.keys, copy.values = (buffer[:, :, :capacity] for buffer in self.buffers)
        else:
            more = [(0, 0), (0, 0), (0, capacity - self.capacity), (0, 0)]
            copy.keys, copy.values = (mx.pad(buffer, more) for buffer in self.buffers)
        return copy

    def like(self, batch: int) -> "StaticCache":
        """An empty cache of `batch` rows with the shapes of this one."""
        assert self.keys is not None
        assert self.values is not None
        copy = StaticCache(self.capacity)
        copy.keys = mx.zeros((batch, *self.keys.shape[1:]), self.keys.dtype)
        copy.values = mx.zeros((batch, *self.values.shape[1:]), self.values.dtype)
        return copy

    @property
    def buffers(self) -> tuple[mx.array, mx.array]:
        """Both buffers, for evaluation."""
        assert self.keys is not None
        assert self.values is not None
        return self.keys, self.values

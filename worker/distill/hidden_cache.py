"""`HiddenCache`: what the frozen trunk computed of one source, on the disk: read once, used in every pass of the training.

A folder holds, for every position that the trunk reads, its hidden state after the final norm (`hidden.f16`, [N, D] float16) and the
logarithm of the sum of exp of its logits (`log_z.f32`, [N] float32; 0 where no answer token follows). With these two any target probability
is one dot product away. Sequences lie in order of length, so that passes hold rows of like length; `state.json` says how many are there.
Its name is a digest of all that its content depends on.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from schemas.errors import ModelError
from schemas.wire import Json, canonical_json
from worker.distill.corpus import Corpus
from worker.distill.exponentials import log_sum_exp
from worker.engine.static_cache import Cursor
from worker.engine.trunk import Trunk

VERSION = 1
PASS_TOKENS = 2048  # positions of one pass, padding included
LOGITS_AT_ONCE = 256  # positions; bounds the logits in memory to 256 × V float32
FLUSH_TOKENS = 20_000  # positions between two records of the state


class HiddenCache:
    """The hidden states and normalisers of one source; sequences are named by their index in it.

    Attributes:
        positions: that the trunk reads, of all sequences.
        sequences: their number.
    """

    def __init__(self, folder: Path, corpus: Corpus, width: int) -> None:
        lengths = np.array([sequence.read for sequence in corpus.sequences])
        self._folder = folder
        self._corpus = corpus
        self._width = width
        self.sequences = len(lengths)
        self._order = np.argsort(lengths, kind="stable")
        self._starts = np.zeros(len(lengths), np.int64)
        self._starts[self._order] = np.concatenate([[0], np.cumsum(lengths[self._order])[:-1]])
        self.positions = int(lengths.sum())
        folder.mkdir(parents=True, exist_ok=True)
        self._hidden = _mapped(folder / "hidden.f16", np.float16, (self.positions, width))
        self._log_z = _mapped(folder / "log_z.f32", np.float32, (self.positions,))

    @classmethod
    def beneath(cls, folder: Path, corpus: Corpus, trunk: Trunk, model_digest: str, dtype: str) -> "HiddenCache":
        """The cache of a corpus and a model in a folder of many."""
        about: Json = {"v": VERSION, "model": model_digest, "dtype": dtype, "corpus": corpus.digest}
        return cls(folder / hashlib.sha256(canonical_json(about).encode()).hexdigest()[:32], corpus, trunk.width)

    @property
    def bytes(self) -> int:
        """Size on the disk."""
        return self.positions * (2 * self._width + 4)

    def fill(self, trunk: Trunk, on_progress: Callable[[int], None], stopped: Callable[[], bool]) -> bool:
        """Compute what is missing, going on where an earlier call stopped.

        Args:
            trunk: the model that the cache is named for.
            on_progress: receives the number of positions that are there.
            stopped: asked before every pass.

        Returns:
            Whether everything is there.

        Raises:
            ModelError: a hidden state that float16 cannot hold.
        """
        done = self._rows_done()
        unsaved = 0
        readers = _readers()
        run: Callable[..., Iterable[None]] = map  # first here: no other thread may evaluate what the model still holds lazily
        with ThreadPoolExecutor(readers, initializer=_own_stream) as pool:
            while done < len(self._order):
                if stopped():
                    self._save(done)
                    return False
                passes = self._next_passes(done, readers if run is not map else 1)
                for _ in run(partial(self._compute, trunk), passes):
                    pass
                run = pool.map if readers > 1 else map
                rows = np.concatenate(passes)
                done += len(rows)
                last = int(rows[-1])
                present = int(self._starts[last]) + self._corpus.sequences[last].read
                unsaved += sum(self._corpus.sequences[row].read for row in rows)
                if unsaved >= FLUSH_TOKENS:
                    self._save(done)
                    unsaved = 0
                on_progress(present)
        self._save(done)
        return True

    def hidden(self, index: int) -> NDArray[np.float16]:
        """Hidden states after the final norm, [L - 1, D] float16."""
        start = int(self._starts[index])
        return self._hidden[start : start + self._corpus.sequences[index].read]

    def log_z(self, index: int) -> NDArray[np.float32]:
        """log Σ exp of the logits over the whole vocabulary, [L - 1] float32; 0 before the last prompt token."""
        start = int(self._starts[index])
        return self._log_z[start : start + self._corpus.sequences[index].read]

    def _next_passes(self, done: int, count: int) -> list[NDArray[np.int64]]:
        """The sequences of the next passes, at most `count`."""
        passes: list[NDArray[np.int64]] = []
        while len(passes) < count and done < len(self._order):
            passes.append(self._next_rows(done))
            done += len(passes[-1])
        return passes

    def _next_rows(self, done: int) -> NDArray[np.int64]:
        """The next sequences, as many as one pass takes when padded to the longest."""
        count = 1
        while done + count < len(self._order):
            longest = self._corpus.sequences[self._order[done + count]].read
            if (count + 1) * longest > PASS_TOKENS:
                break
            count += 1
        return self._order[done : done + count]

    def _compute(self, trunk: Trunk, rows: NDArray[np.int64]) -> None:
        sequences = [self._corpus.sequences[row] for row in rows]
        longest = max(sequence.read for sequence in sequences)
        tokens = np.zeros((len(rows), longest), np.int32)
        for line, sequence in zip(tokens, sequences, strict=True):
            line[: sequence.read] = sequence.ids[:-1]
        # Padding on the right is seen by nobody: every layer looks back only.
        cursor = Cursor(mx.zeros(len(rows), mx.int32), longest, window=longest)
        normed = trunk.norm(trunk.forward(mx.array(tokens), trunk.make_caches(longest), cursor)).astype(mx.float16)
        mx.eval(normed)
        states = np.array(normed)
        for row, sequence, mine in zip(rows, sequences, states, strict=True):
            start, end = int(self._starts[row]), int(self._starts[row]) + sequence.read
            if not np.isfinite(mine[: sequence.read]).all():
                raise ModelError("the model's hidden states behind its final norm must be finite and below 65,504; received others")
            self._hidden[start:end] = mine[: sequence.read]
            first = start + sequence.prompt_tokens - 1
            for at in range(first, end, LOGITS_AT_ONCE):
                until = min(at + LOGITS_AT_ONCE, end)
                # From the rounded states: p must be a distribution of what is stored.
                self._log_z[at:until] = log_sum_exp(trunk.logits(mx.array(self._hidden[at:until]).astype(mx.float32)))

    def _rows_done(self) -> int:
        try:
            return int(json.loads((self._folder / "state.json").read_text(encoding="utf-8"))["rows"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    def _save(self, rows: int) -> None:
        self._hidden.flush()
        self._log_z.flush()
        temporary = self._folder / f".state-{os.getpid()}.json"
        temporary.write_text(json.dumps({"rows": rows, "of": len(self._order)}), encoding="utf-8")
        temporary.replace(self._folder / "state.json")


def _readers() -> int:
    """Passes that run side by side. On a CPU most of a pass is exponentials, which mlx computes on one core per stream."""
    if mx.default_device() == mx.gpu:
        return 1
    cores = os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("OPENBLAS_NUM_THREADS", cores)))


def _own_stream() -> None:
    mx.set_default_stream(mx.new_stream(mx.default_device()))


def _mapped(path: Path, dtype: type, shape: tuple[int, ...]) -> "np.memmap":
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    fresh = not path.is_file() or path.stat().st_size != size
    return np.memmap(path, dtype, mode="w+" if fresh else "r+", shape=shape)

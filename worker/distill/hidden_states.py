"""`HiddenStates`: what the frozen trunk computed of a corpus, a cache for each of its sources: one that joins later is read alone."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from worker.distill.corpus import Corpus
from worker.distill.hidden_cache import HiddenCache
from worker.engine.trunk import Trunk


class HiddenStates:
    """The hidden states and normalisers of a corpus; sequences are named by their index in it.

    Attributes:
        positions: that the trunk reads, of all sequences.
    """

    def __init__(self, caches: Sequence[HiddenCache]) -> None:
        self._caches = caches
        self._places = [(cache, index) for cache in caches for index in range(cache.sequences)]
        self.positions = sum(cache.positions for cache in caches)

    @classmethod
    def beneath(cls, folder: Path, corpus: Corpus, trunk: Trunk, model_digest: str, dtype: str) -> "HiddenStates":
        """Those of a corpus and a model in a folder of many."""
        return cls([HiddenCache.beneath(folder, source, trunk, model_digest, dtype) for source in corpus.sources])

    @property
    def bytes(self) -> int:
        """Size on the disk."""
        return sum(cache.bytes for cache in self._caches)

    def fill(self, trunk: Trunk, on_progress: Callable[[int], None], stopped: Callable[[], bool]) -> bool:
        """Compute what is missing, going on where an earlier call stopped.

        Args:
            trunk: the model that the caches are named for.
            on_progress: receives the number of positions that are there.
            stopped: asked before every pass.

        Returns:
            Whether everything is there.

        Raises:
            ModelError: a hidden state that float16 cannot hold.
        """
        before = 0
        for cache in self._caches:
            if not cache.fill(trunk, partial(_shifted, on_progress, before), stopped):
                return False
            before += cache.positions
        return True

    def hidden(self, index: int) -> NDArray[np.float16]:
        """Hidden states after the final norm, [L - 1, D] float16."""
        cache, own = self._places[index]
        return cache.hidden(own)

    def log_z(self, index: int) -> NDArray[np.float32]:
        """log Σ exp of the logits over the whole vocabulary, [L - 1] float32; 0 before the last prompt token."""
        cache, own = self._places[index]
        return cache.log_z(own)


def _shifted(on_progress: Callable[[int], None], before: int, done: int) -> None:
    on_progress(before + done)

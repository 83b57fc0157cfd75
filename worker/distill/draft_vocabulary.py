"""The draft vocabulary: the ids that a head may draft, chosen by how often the training answers hold them."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from worker.distill.corpus import TokenSequence


def ranked_ids(sequences: Iterable[TokenSequence], vocab_size: int) -> NDArray[np.int32]:
    """All ids, [V] int32: by falling count in the answers, then rising id, which in a byte-pair vocabulary is falling frequency too."""
    counts = np.zeros(vocab_size, np.int64)
    for sequence in sequences:
        counts += np.bincount(sequence.ids[sequence.prompt_tokens :], minlength=vocab_size)
    return np.argsort(-counts, kind="stable").astype(np.int32)


def draft_ids(ranked: NDArray[np.int32], size: int) -> NDArray[np.int32] | None:
    """The `size` first ids, ascending; None, which is the whole vocabulary, for 0 or a size that reaches it."""
    return np.sort(ranked[:size]) if 0 < size < len(ranked) else None

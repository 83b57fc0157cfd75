"""`StartingHead`: an earlier head that a training goes on from."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from numpy.typing import NDArray

from schemas.errors import HeadError
from worker.distill.recipe import Recipe
from worker.engine.head_contract import HeadContract
from worker.engine.head_file import HeadFile
from worker.engine.mtp_head import MTPHead
from worker.engine.trunk import Trunk


@dataclass(frozen=True)
class StartingHead:
    """What is taken from the earlier head's file: weights and draft vocabulary.

    Attributes:
        path: the file.
        digest: its sha256, hex.
        file: what it holds.
    """

    path: Path
    digest: str
    file: HeadFile

    @classmethod
    def read(cls, path: Path) -> "StartingHead":
        """Read a head in specmill's own layout.

        Raises:
            HeadError: another layout or contract.
        """
        file = HeadFile.read(path)
        if file.layout != "specmill" or file.contract != HeadContract():
            raise HeadError(f"{path} is a head of layout {file.layout}; --init takes a head that `specmill distill` wrote")
        return cls(path, hashlib.sha256(path.read_bytes()).hexdigest(), file)

    def check(self, trunk: Trunk, recipe: Recipe) -> None:
        """Refuse a head of another width, or another number of draft ids than the recipe has.

        Raises:
            HeadError: it cannot be trained on with this trunk and recipe.
        """
        width = self.file.weights["norm.weight"].shape[0]
        if width != trunk.width:
            raise HeadError(f"{self.path} has width {width}; the model's is {trunk.width}")
        size = 0 if self.file.draft_vocab is None else len(self.file.draft_vocab)
        if size != recipe.draft_vocab:
            raise HeadError(f"{self.path} drafts {size or 'all'} ids, which --init keeps; received --draft-vocab {recipe.draft_vocab}")

    def own_ids_first(self, ranked: NDArray[np.int32]) -> NDArray[np.int32]:
        """`ranked` [V] int32 with the ids of this head's draft vocabulary before all others, else in the same order."""
        if self.file.draft_vocab is None:
            return ranked
        own = np.isin(ranked, self.file.draft_vocab)
        return np.concatenate([ranked[own], ranked[~own]])

    def give_weights(self, head: MTPHead) -> None:
        """Load this head's weights, as float32, into a head of the same trunk.

        Raises:
            HeadError: the blocks are of different kinds.
        """
        weights = {name: weight.astype(mx.float32) for name, weight in self.file.weights.items()}
        expected = dict(tree_flatten(head.parameters()))
        shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
        if shapes != {name: tuple(weight.shape) for name, weight in expected.items()}:
            odd = sorted(
                name for name in shapes.keys() | expected.keys() if name not in expected or shapes.get(name) != tuple(expected[name].shape)
            )
            raise HeadError(f"{self.path} does not fit the model: {', '.join(odd[:4])} differ")
        head.load_weights(list(weights.items()))

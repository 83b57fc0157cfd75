"""A training on the disk: weights, best weights and optimizer state as safetensors, the rest as JSON in its metadata.

There is no state of a random generator in it: the order of the batches is a function of the seed and the step.
"""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx

from schemas.errors import DecodeError, HeadError
from worker.distill.evaluation_record import LearningPoint
from worker.distill.recipe import Recipe
from worker.distill.trainer import Progress, Trainer

VERSION = 1


def checkpoint_path(head: Path) -> Path:
    """Where the checkpoint of the head to be written there lies."""
    return head.with_name(f"{head.stem}.checkpoint.safetensors")


def write_checkpoint(path: Path, trainer: Trainer, recipe: Recipe, inputs: dict[str, str]) -> None:
    """Write a checkpoint, whole or not at all.

    Args:
        path: the file.
        trainer: between two steps.
        recipe: its recipe.
        inputs: name → digest or value of what is trained on.
    """
    progress = trainer.progress
    about = {
        "v": VERSION,
        "recipe": recipe.encode(),
        "inputs": inputs,
        "step": progress.step,
        "points": [point.encode() for point in progress.points],
        "loss_sum": progress.loss_sum,
        "loss_count": progress.loss_count,
    }
    write_safetensors(path, trainer.arrays(), {"checkpoint": json.dumps(about)})


def read_recipe(path: Path, inputs: dict[str, str]) -> Recipe:
    """The recipe that a checkpoint was made with.

    Raises:
        HeadError: no checkpoint, or one of another model, corpus or dtype.
        DecodeError: a recipe of another version.
    """
    about = _about(_load(path)[1], path)
    for name, digest in inputs.items():
        if about["inputs"].get(name) != digest:
            raise HeadError(f"{path} belongs to a training with another {name}; move it away, or choose another --out")
    return Recipe.decode(about["recipe"])


def restore_checkpoint(path: Path, trainer: Trainer) -> None:
    """Put a trainer where the checkpoint was taken."""
    arrays, metadata = _load(path)
    about = _about(metadata, path)
    points = [LearningPoint.decode(point) for point in about["points"]]
    trainer.restore(arrays, Progress(about["step"], points, about["loss_sum"], about["loss_count"]))


def write_safetensors(path: Path, arrays: dict[str, mx.array], metadata: dict[str, str]) -> None:
    """Write a safetensors file that appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}.part.safetensors")
    mx.save_safetensors(str(temporary), arrays, metadata)
    temporary.replace(path)


def _load(path: Path) -> tuple[dict[str, mx.array], dict[str, str]]:
    try:
        loaded: Any = mx.load(str(path), format="safetensors", return_metadata=True)
    except (RuntimeError, ValueError) as error:
        raise HeadError(f"{path} is not a readable checkpoint: {error}") from error
    return loaded[0], loaded[1]


def _about(metadata: dict[str, str], path: Path) -> dict[str, Any]:
    try:
        about: dict[str, Any] = json.loads(metadata["checkpoint"])
        version = about["v"]
    except (KeyError, ValueError, TypeError) as error:
        raise HeadError(f"{path} is not a checkpoint of specmill distill") from error
    if version != VERSION:
        raise DecodeError(f"{path} has version {version}; this specmill reads v={VERSION}")
    return about

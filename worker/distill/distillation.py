"""`Distillation`: how a head came to be, kept in its file's metadata. Read without mlx, so that heads can be listed quickly."""

import json
from dataclasses import dataclass
from pathlib import Path

from schemas.wire import Wire, added
from worker.distill.evaluation_record import Evaluation, LearningPoint
from worker.distill.recipe import Recipe

KEY = "distillation"


@dataclass(frozen=True)
class VocabularyChoice(Wire):
    """A draft vocabulary of one size, judged with the trained head restricted to it.

    Attributes:
        size: ids.
        mass: mean probability that the trunk gives them at temperature 1.
        overlap: by depth, at temperature 1.
        tokens_per_cycle: at temperature 1.
    """

    size: int
    mass: float
    overlap: tuple[float, ...]
    tokens_per_cycle: float


@dataclass(frozen=True)
class Distillation(Wire):
    """What the card says and what `specmill model list` reads.

    Attributes:
        model: name of the trunk, as given.
        model_digest: its combined digest.
        corpus_digest: of the sequences.
        sources: datasets or files, as given.
        rows: sequences trained on.
        answer_tokens: their answer tokens.
        skipped: rows that held nothing to learn from.
        recipe: how it was trained.
        steps: updates until the kept weights.
        ending: why training ended.
        whole: whether training ended by itself, so that `command` makes the same head.
        untrained: the head before its first update, on the held-out rows.
        evaluation: the stored weights on all held-out rows.
        points: the learning curve, on some of the held-out rows.
        vocabularies: what smaller draft vocabularies would give.
        sampled_at: the temperature of the rows where all were drawn at one, without filters; else null.
        replayed_tokens_per_cycle: at that temperature, what decoding the held-out rows would have counted; else null.
        command: the shell command that trains the same head again.
        init: sha256 hex of the head's file that the training started from; None where it started from the trunk's last layer.
    """

    model: str
    model_digest: str
    corpus_digest: str
    sources: tuple[str, ...]
    rows: int
    answer_tokens: int
    skipped: int
    recipe: Recipe
    steps: int
    ending: str
    whole: bool
    untrained: Evaluation
    evaluation: Evaluation
    points: tuple[LearningPoint, ...]
    vocabularies: tuple[VocabularyChoice, ...]
    sampled_at: float | None
    replayed_tokens_per_cycle: float | None
    command: str
    init: str | None = added(None)


def read_distillation(path: Path) -> Distillation | None:
    """How the head of a safetensors file came to be; None when the file does not say.

    Raises:
        DecodeError: it says so in another version.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= path.stat().st_size - 8:
            return None
        try:
            metadata = json.loads(file.read(length)).get("__metadata__") or {}
        except (ValueError, AttributeError):
            return None
    return Distillation.from_json(metadata[KEY]) if KEY in metadata else None

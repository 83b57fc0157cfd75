"""`Trainer`: a head, its optimizer and the place in the training; a step is batch, gradient, update."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim
from mlx.utils import tree_flatten, tree_unflatten

from schemas.errors import EngineError
from worker.distill.batch import Batch, BatchOrder
from worker.distill.corpus import Corpus
from worker.distill.evaluation_record import Evaluation, LearningPoint
from worker.distill.hidden_states import HiddenStates
from worker.distill.loss import Teacher, loss_and_gradient
from worker.distill.recipe import Recipe
from worker.engine.mtp_head import MTPHead
from worker.engine.trunk import Trunk

FLOOR = 0.05  # the last learning rate, as a share of the highest


class Ending(Enum):
    """Why `Trainer.run` came back."""

    FINISHED = "all steps are done"
    EARLY = "the held-out rows stopped getting better"
    STOPPED = "it was asked to stop"


@dataclass
class Progress:
    """Where a training is; with weights and optimizer state, all that a checkpoint needs.

    Attributes:
        step: updates so far; the next batch follows from it.
        points: the learning curve.
        loss_sum: training losses since the last point.
        loss_count: their number.
    """

    step: int = 0
    points: list[LearningPoint] = field(default_factory=list)
    loss_sum: float = 0.0
    loss_count: int = 0


class Trainer:
    """Trains one head; the same arguments give the same weights, however often it is stopped in between.

    Attributes:
        progress: where it is.
    """

    def __init__(
        self,
        head: MTPHead,
        trunk: Trunk,
        corpus: Corpus,
        cache: HiddenStates,
        train: list[int],
        recipe: Recipe,
        evaluate: Callable[[MTPHead], Evaluation],
    ) -> None:
        """
        Args:
            head: the head, which is changed in place.
            trunk: its model.
            corpus: the sequences.
            cache: what the trunk computed of them, complete.
            train: indices of the sequences to train on.
            recipe: how.
            evaluate: judges the head on held-out rows at temperature 1.
        """
        self.progress = Progress()
        self._head = head
        self._corpus = corpus
        self._cache = cache
        self._recipe = recipe
        self._evaluate = evaluate
        self._order = BatchOrder(corpus, train, recipe.batch_tokens, recipe.seed)
        ids = mx.arange(trunk.vocab_size) if head.draft_ids is None else mx.array(head.draft_ids)
        self._output_rows = trunk.output_rows(ids).astype(mx.float32)
        self._optimizer = optim.AdamW(learning_rate=0.0, weight_decay=recipe.weight_decay, bias_correction=True)
        self._optimizer.init(head.trainable_parameters())
        self._best = dict(tree_flatten(head.parameters()))

    def run(self, on_step: Callable[[float], None], on_point: Callable[[LearningPoint], None], stopped: Callable[[], bool]) -> Ending:
        """Train to the end.

        Args:
            on_step: receives the loss of every step.
            on_point: receives every evaluation, when the trainer may be saved.
            stopped: asked before every step.

        Raises:
            EngineError: the loss is no longer a finite number.
        """
        progress, recipe = self.progress, self._recipe
        every = max(1, recipe.steps // recipe.evaluations)
        while True:
            due = progress.step % every == 0 or progress.step == recipe.steps
            if due and (not progress.points or progress.points[-1].step != progress.step):
                on_point(self._look())
            if progress.step >= recipe.steps:
                return Ending.FINISHED
            if self._worse_for() >= recipe.patience:
                return Ending.EARLY
            if stopped():
                return Ending.STOPPED
            on_step(self._step())

    def gradient(self, step: int) -> tuple[float, Any]:
        """Loss and gradient of a step's batch at the present weights; changes nothing."""
        batch = Batch.of(self._corpus, self._cache, self._order.batch(step), self._recipe.depth)
        teacher = Teacher.of(batch, self._output_rows)
        loss, gradient = loss_and_gradient(self._head, batch, teacher, self._output_rows, self._recipe)
        mx.eval(gradient)
        return loss, gradient

    def take_best(self) -> LearningPoint:
        """Give the head the weights of the best evaluation; returns that one."""
        self._head.load_weights(list(self._best.items()))
        return max(self.progress.points, key=lambda point: point.tokens_per_cycle)

    def arrays(self) -> dict[str, mx.array]:
        """Everything that a checkpoint holds, by name."""
        parts = {"head": self._head.parameters(), "optimizer": self._optimizer.state}
        flattened: dict[str, mx.array] = dict(tree_flatten(parts))
        return flattened | {f"best.{name}": value for name, value in self._best.items()}

    def restore(self, arrays: dict[str, mx.array], progress: Progress) -> None:
        """Go back to where `arrays` and `progress` were taken."""
        parts: dict[str, list[tuple[str, mx.array]]] = {"head": [], "optimizer": [], "best": []}
        for name, value in arrays.items():
            part, _, rest = name.partition(".")
            parts[part].append((rest, value))
        self._head.load_weights(parts["head"])
        self._optimizer.state = tree_unflatten(parts["optimizer"])
        self._best = dict(parts["best"])
        self.progress = progress

    def _step(self) -> float:
        progress, recipe = self.progress, self._recipe
        loss, gradient = self.gradient(progress.step)
        if not math.isfinite(loss):
            raise EngineError(f"the loss is {loss} at step {progress.step}; a smaller learning rate than {recipe.learning_rate} may help")
        clipped, _ = optim.clip_grad_norm(gradient, recipe.clip)  # type: ignore[no-untyped-call] # mlx has no types there
        self._optimizer.learning_rate = learning_rate(recipe, progress.step)
        self._optimizer.update(self._head, clipped)
        mx.eval(self._head.parameters(), self._optimizer.state)
        progress.step += 1
        progress.loss_sum += loss
        progress.loss_count += 1
        return loss

    def _look(self) -> LearningPoint:
        progress = self.progress
        found = self._evaluate(self._head).at(1.0)
        point = LearningPoint(
            step=progress.step,
            epoch=self._order.epoch(progress.step),
            loss=progress.loss_sum / max(progress.loss_count, 1),
            overlap=found.overlap,
            tokens_per_cycle=found.tokens_per_cycle,
        )
        if all(point.tokens_per_cycle > earlier.tokens_per_cycle for earlier in progress.points):
            # Updates make new arrays, so the old ones may be kept as they are.
            self._best = dict(tree_flatten(self._head.parameters()))
        progress.points.append(point)
        progress.loss_sum, progress.loss_count = 0.0, 0
        return point

    def _worse_for(self) -> int:
        """Evaluations since the best one."""
        scores = [point.tokens_per_cycle for point in self.progress.points]
        return len(scores) - 1 - scores.index(max(scores)) if scores else 0


def learning_rate(recipe: Recipe, step: int) -> float:
    """The rate of a step, which counts from 0: a linear warm-up, then a cosine down to `FLOOR` of the highest."""
    warmup = max(1, round(recipe.warmup * recipe.steps))
    if step < warmup:
        return recipe.learning_rate * (step + 1) / warmup
    share = (step - warmup) / max(1, recipe.steps - warmup)
    return recipe.learning_rate * (FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * share)))

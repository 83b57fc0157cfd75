"""`distill`: datasets to a trained head, its card and a checkpoint on the way."""

import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import mlx.core as mx

from producer.step_display import StepDisplay
from producer.training_data import TrainingData, read_training_data
from schemas.errors import HeadError
from worker.distill.card import card_text
from worker.distill.checkpoint import checkpoint_path, read_recipe, restore_checkpoint, write_checkpoint
from worker.distill.cycle_time import cycle_seconds
from worker.distill.distillation import Distillation, VocabularyChoice, read_distillation
from worker.distill.draft_vocabulary import draft_ids, ranked_ids
from worker.distill.evaluation_record import LearningPoint
from worker.distill.evaluator import Evaluator
from worker.distill.head_writer import round_weights, write_head
from worker.distill.hidden_states import HiddenStates
from worker.distill.new_head import new_head
from worker.distill.recipe import Recipe
from worker.distill.starting_head import StartingHead
from worker.distill.trainer import Ending, Trainer
from worker.engine import model_store
from worker.engine.mtp_head import MTPHead
from worker.engine.trunk import Trunk

TEMPERATURES = (0.0, 0.6, 1.0)
CURVE_POSITIONS = 3000  # held-out positions of the learning curve; the closing evaluation takes all of them
PROBED_STEPS = 2  # timed to turn minutes into steps
UNPLANNED = 1  # steps of a recipe whose number of steps is still to be measured


@dataclass(frozen=True)
class TrainingOptions:
    """What `specmill distill` was asked for.

    Attributes:
        sources: dataset folders, or one file of token ids.
        model: the trunk, as `resolve_model` takes it.
        out: the head's file.
        recipe: how to train; its `steps` count only without `minutes`.
        minutes: of training, from which the steps follow; None takes the recipe's.
        dtype: compute dtype of the trunk.
        stored: dtype of the head's file.
        finish: train no further: write the best head of the checkpoint.
        init: the head to start from; None starts from the trunk's last layer.
        trust_remote_code: code that comes with the model may run.
    """

    sources: tuple[Path, ...]
    model: str
    out: Path
    recipe: Recipe
    minutes: float | None
    dtype: str = "float32"
    stored: str = "float16"
    finish: bool = False
    init: Path | None = None
    trust_remote_code: bool = False

    def command(self, recipe: Recipe) -> str:
        """The shell command that trains the same head again, with everything that it is a function of."""
        words = ["specmill", "distill", *map(str, self.sources), "--model", self.model, "--out", str(self.out)]
        words += ["--init", str(self.init)] if self.init is not None else []
        for name in Recipe.__dataclass_fields__:
            words += [f"--{name.replace('_', '-')}", repr(getattr(recipe, name))]
        return shlex.join([*words, "--dtype", self.dtype, "--stored", self.stored])


def distill(options: TrainingOptions, display: StepDisplay, stopped: Callable[[], bool]) -> Distillation | None:
    """Train a head, or go on training it.

    Returns:
        What the head's file says of itself; None when it was asked to stop, which leaves a checkpoint.

    Raises:
        HeadError: the file or its checkpoint belong to another training, or there is no checkpoint to finish.
        InputError: there is nothing to learn from.
        ModelError: the model cannot be loaded.
    """
    folder = model_store.resolve_model(options.model, report=display.note)
    model_files = model_store.digest_folder(folder)
    trunk = Trunk.load(folder, getattr(mx, options.dtype), trust_remote_code=options.trust_remote_code)
    data = read_training_data(options.sources, trunk, model_files, options.recipe.context, display.note)
    inputs = {"model": model_store.combined_digest(model_files), "corpus": data.corpus.digest, "dtype": options.dtype}
    start = StartingHead.read(options.init) if options.init is not None else None
    if start is not None:
        inputs["init"] = start.digest
    if options.out.exists():
        return _already_there(options, inputs)
    checkpoint = checkpoint_path(options.out)
    recipe = _recipe(options, checkpoint, inputs)
    if start is not None:
        start.check(trunk, recipe)
    cache = HiddenStates.beneath(model_store.cache_dir() / "distill", data.corpus, trunk, inputs["model"], options.dtype)
    display.note(f"hidden states of {cache.positions:,} positions: {cache.bytes / 1e6:,.0f} MB in {model_store.cache_dir() / 'distill'}")
    if not cache.fill(trunk, lambda done: display.step("reading positions", done, cache.positions), stopped):
        return None
    session = _Session(options, recipe, data, trunk, cache, inputs, display, start)
    if checkpoint.exists():
        restore_checkpoint(checkpoint, session.trainer)
        display.note(f"going on at step {session.trainer.progress.step:,} of {recipe.steps:,} ({checkpoint})")
    elif options.minutes is not None:
        session.plan(options.minutes)
    ending = session.train(stopped)
    if ending is Ending.STOPPED and not options.finish:
        return None
    made = session.finish(ending)
    checkpoint.unlink(missing_ok=True)
    return made


class _Session:
    """One call's trunk, data and trainer."""

    def __init__(
        self,
        options: TrainingOptions,
        recipe: Recipe,
        data: TrainingData,
        trunk: Trunk,
        cache: HiddenStates,
        inputs: dict[str, str],
        display: StepDisplay,
        start: StartingHead | None,
    ) -> None:
        self._start = start
        self._options = options
        self._recipe = recipe
        self._data = data
        self._trunk = trunk
        self._cache = cache
        self._inputs = inputs
        self._display = display
        corpus = data.corpus
        self._train, self._held = corpus.split(recipe.held_out, recipe.seed)
        self._ranked = ranked_ids((corpus.sequences[i] for i in self._train), trunk.vocab_size)
        if start is not None:
            self._ranked = start.own_ids_first(self._ranked)
        self._head = self._new_head(recipe.draft_vocab)
        self._everything = Evaluator(trunk, corpus, cache, self._held, recipe.depth)
        self._curve = Evaluator(trunk, corpus, cache, _some(data, self._held), recipe.depth)
        self.trainer = self._make_trainer()

    def plan(self, minutes: float) -> None:
        """Settle how many steps fit, from a few that are timed and thrown away."""
        started = time.monotonic()
        for step in range(PROBED_STEPS):
            self.trainer.gradient(step)
        seconds = (time.monotonic() - started) / PROBED_STEPS
        started = time.monotonic()
        self._curve.evaluate(self._head, [1.0])
        looking = (time.monotonic() - started) * (self._recipe.evaluations + 1)
        steps = max(1, int((60 * minutes - looking) / seconds))
        self._recipe = replace(self._recipe, steps=steps)
        self.trainer = self._make_trainer()
        self._display.note(f"{seconds:.2f} s per step and {looking:.0f} s of evaluation: {steps:,} steps fit into {minutes:g} min")

    def train(self, stopped: Callable[[], bool]) -> Ending:
        """Train to the end, a checkpoint at every point of the curve."""
        recipe, trainer = self._recipe, self.trainer
        for earlier in trainer.progress.points:
            self._display.note(earlier.text())
        self._display.step("training", trainer.progress.step, recipe.steps)

        def on_point(point: LearningPoint) -> None:
            self._display.note(point.text())
            self._save()

        def on_step(loss: float) -> None:
            self._display.step("training", trainer.progress.step, recipe.steps, f"loss {loss:.3f}")

        stop = (lambda: True) if self._options.finish else stopped
        ending = trainer.run(on_step, on_point, stop)
        if ending is Ending.STOPPED:
            self._save()
        return ending

    def finish(self, ending: Ending) -> Distillation:
        """Judge the best weights on every held-out row and write the head and its card."""
        self._display.note("judging the head on all held-out rows")
        untrained = self._everything.evaluate(self._new_head(self._recipe.draft_vocab), TEMPERATURES)
        best = self.trainer.take_best()
        round_weights(self._head, self._options.stored)
        corpus, recipe, sampled_at = self._data.corpus, self._recipe, self._data.temperature
        replay = self._everything.replay(self._head, sampled_at) if sampled_at is not None else None
        made = Distillation(
            model=self._options.model,
            model_digest=self._inputs["model"],
            corpus_digest=self._inputs["corpus"],
            sources=tuple(map(str, self._options.sources)),
            rows=len(self._train),
            answer_tokens=sum(len(s.ids) - s.prompt_tokens for s in (corpus.sequences[i] for i in self._train)),
            skipped=corpus.skipped,
            recipe=recipe,
            steps=best.step,
            ending=ending.value,
            whole=ending is not Ending.STOPPED,
            untrained=untrained,
            evaluation=self._everything.evaluate(self._head, TEMPERATURES),
            points=tuple(self.trainer.progress.points),
            vocabularies=tuple(self._choice(size) for size in self._sizes()),
            sampled_at=sampled_at,
            replayed_tokens_per_cycle=replay.tokens_per_cycle if replay is not None else None,
            command=self._options.command(recipe),
            init=self._inputs.get("init"),
        )
        write_head(self._options.out, self._head, self._options.stored, made)
        # Times are no function of the inputs: they stand in the card and not in the file.
        times = {size: cycle_seconds(self._trunk, self._new_head(size), recipe.depth) for size in self._sizes()}
        self._options.out.with_suffix(".md").write_text(card_text(self._options.out.name, made, times), encoding="utf-8")
        return made

    def _make_trainer(self) -> Trainer:
        return Trainer(
            self._head,
            self._trunk,
            self._data.corpus,
            self._cache,
            self._train,
            self._recipe,
            lambda head: self._curve.evaluate(head, [1.0]),
        )

    def _save(self) -> None:
        write_checkpoint(checkpoint_path(self._options.out), self.trainer, self._recipe, self._inputs)

    def _new_head(self, size: int) -> MTPHead:
        longest = max((self._data.corpus.sequences[i] for i in self._train[:16]), key=lambda sequence: len(sequence.ids))
        head = new_head(self._trunk, draft_ids(self._ranked, size), longest.ids)
        if self._start is not None:
            self._start.give_weights(head)
        return head

    def _sizes(self) -> list[int]:
        """The draft vocabulary's own size, half of it, and a quarter."""
        full = min(self._recipe.draft_vocab or self._trunk.vocab_size, self._trunk.vocab_size)
        return sorted({full // part for part in (4, 2, 1)} - {0})

    def _choice(self, size: int) -> VocabularyChoice:
        """The trained head over the most frequent ids alone."""
        head = self._new_head(size)
        head.update(self._head.parameters())
        found = self._curve.evaluate(head, [1.0])
        return VocabularyChoice(size, found.mass, found.at(1.0).overlap, found.at(1.0).tokens_per_cycle)


def _recipe(options: TrainingOptions, checkpoint: Path, inputs: dict[str, str]) -> Recipe:
    """The recipe asked for, its number of steps taken from a checkpoint that is there.

    Raises:
        HeadError: the checkpoint has another recipe, or there is none to finish.
    """
    if not checkpoint.exists():
        if options.finish:
            raise HeadError(f"there is no checkpoint at {checkpoint} to finish")
        return options.recipe if options.minutes is None else replace(options.recipe, steps=UNPLANNED)
    begun = read_recipe(checkpoint, inputs)
    asked = options.recipe if options.minutes is None else replace(options.recipe, steps=begun.steps)
    if asked != begun:
        names = [name for name in Recipe.__dataclass_fields__ if getattr(asked, name) != getattr(begun, name)]
        differences = "; ".join(f"{name}: {getattr(begun, name)} / {getattr(asked, name)}" for name in names)
        raise HeadError(
            f"{checkpoint} was begun with another recipe ({differences}); use its values, move it away, or choose another --out"
        )
    return begun


def _already_there(options: TrainingOptions, inputs: dict[str, str]) -> Distillation:
    made = read_distillation(options.out)
    asked = options.recipe if made is None or options.minutes is None else replace(options.recipe, steps=made.recipe.steps)
    if (
        made is None
        or (made.model_digest, made.corpus_digest, made.init) != (inputs["model"], inputs["corpus"], inputs.get("init"))
        or made.recipe != asked
    ):
        raise HeadError(f"{options.out} exists and is not what this command would train; move it away, or choose another --out")
    return made


def _some(data: TrainingData, held: Sequence[int]) -> list[int]:
    """The first held-out sequences, up to `CURVE_POSITIONS` answer tokens."""
    chosen: list[int] = []
    tokens = 0
    for index in held:
        chosen.append(index)
        sequence = data.corpus.sequences[index]
        tokens += len(sequence.ids) - sequence.prompt_tokens
        if tokens >= CURVE_POSITIONS:
            break
    return chosen

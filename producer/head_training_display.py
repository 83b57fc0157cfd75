"""What people see while a head is trained: bars on a terminal, a line now and then elsewhere, nothing when quiet. All to standard error."""

import sys
import time
from collections.abc import Callable, Sequence
from typing import Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from producer.progress_display import PLAIN_SECONDS
from worker.distill.evaluation_record import LearningPoint


class TrainingDisplay:
    """Shows notes and progress; this one shows nothing. A context manager."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def note(self, text: str) -> None:
        """Say one line."""

    def reading(self, done: int, total: int) -> None:
        """Positions that the trunk has read."""

    def training(self, points: Sequence[LearningPoint], step: int, steps: int) -> None:
        """Training begins, or goes on, at a step."""

    def step(self, step: int, loss: float) -> None:
        """A step is done."""

    def point(self, point: LearningPoint) -> None:
        """The held-out rows were looked at."""

    def close(self) -> None:
        """Leave the terminal as it was."""


class PlainTrainingDisplay(TrainingDisplay):
    """One plain line every ten seconds, and one per evaluation."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._next = 0.0
        self._steps = 0

    def note(self, text: str) -> None:
        """Say one line."""
        print(text, file=self._stream, flush=True)

    def reading(self, done: int, total: int) -> None:
        """Positions that the trunk has read."""
        self._now_and_then(f"reading: {done:,}/{total:,} positions", last=done == total)

    def training(self, points: Sequence[LearningPoint], step: int, steps: int) -> None:
        """Training begins, or goes on, at a step."""
        self._steps = steps
        for point in points:
            self.point(point)
        self._now_and_then(f"training: step {step:,}/{steps:,}")

    def step(self, step: int, loss: float) -> None:
        """A step is done."""
        self._now_and_then(f"training: step {step:,}/{self._steps:,}, loss {loss:.3f}")

    def point(self, point: LearningPoint) -> None:
        """The held-out rows were looked at."""
        self.note(point_line(point))

    def _now_and_then(self, text: str, *, last: bool = False) -> None:
        if last or self._clock() >= self._next:
            self._next = self._clock() + PLAIN_SECONDS
            self.note(text)


class LiveTrainingDisplay(TrainingDisplay):
    """A bar, redrawn in place; evaluations stay above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (TextColumn("{task.description}"), BarColumn(None), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        self._bars = Progress(*columns, console=console, transient=True, expand=True)
        self._bar: TaskID | None = None
        self._phase = ""

    def note(self, text: str) -> None:
        """Say one line, above the bar."""
        self._console.print(Text(text))

    def reading(self, done: int, total: int) -> None:
        """Positions that the trunk has read."""
        self._show("reading", done, total, "reading")

    def training(self, points: Sequence[LearningPoint], step: int, steps: int) -> None:
        """Training begins, or goes on, at a step."""
        for point in points:
            self.point(point)
        self._show("training", step, steps, "training")

    def step(self, step: int, loss: float) -> None:
        """A step is done."""
        self._show("training", step, None, f"training, loss {loss:.3f}")

    def point(self, point: LearningPoint) -> None:
        """The held-out rows were looked at."""
        self.note(point_line(point))

    def close(self) -> None:
        """Take the bar away."""
        self._bars.stop()

    def _show(self, phase: str, done: int, total: int | None, text: str) -> None:
        if self._bar is None or phase != self._phase:
            if self._bar is not None:
                self._bars.remove_task(self._bar)
            self._bars.start()
            self._bar, self._phase = self._bars.add_task(text, total=total), phase
        self._bars.update(self._bar, completed=done, description=text)


def make_training_display(*, quiet: bool, stream: TextIO | None = None) -> TrainingDisplay:
    """The display that suits a stream (standard error unless given)."""
    if quiet:
        return TrainingDisplay()
    console = Console(file=stream or sys.stderr)
    return LiveTrainingDisplay(console) if console.is_terminal else PlainTrainingDisplay(stream or sys.stderr)


def point_line(point: LearningPoint) -> str:
    """`step 90 (2.1 passes): loss 1.234, acceptance 1: 0.41 2: 0.39, 1.62 tokens/cycle`."""
    depths = " ".join(f"{depth}: {overlap:.3f}" for depth, overlap in enumerate(point.overlap, 1))
    loss = f"loss {point.loss:.3f}, " if point.step else ""
    return f"step {point.step:,} ({point.epoch:.1f} passes): {loss}acceptance {depths}, {point.tokens_per_cycle:.2f} tokens/cycle"

"""What people see of work in steps: a bar on a terminal, a line now and then elsewhere, nothing when quiet. All to standard error."""

import sys
import time
from collections.abc import Callable
from typing import Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from producer.progress_display import PLAIN_SECONDS
from worker.engine.step_report import time_left


class StepDisplay:
    """Shows notes and progress; this one shows nothing. A context manager."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def note(self, text: str) -> None:
        """Say one line."""

    def step(self, what: str, done: int, total: int | None, detail: str = "") -> None:
        """So much of a step is done; `total` None is not known. `detail` is what else there is to say of it now."""

    def close(self) -> None:
        """Leave the terminal as it was."""


class PlainStepDisplay(StepDisplay):
    """One plain line every ten seconds, and one at each end of a step."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._what: str | None = None
        self._began = self._next = 0.0
        self._first = 0

    def note(self, text: str) -> None:
        """Say one line."""
        print(text, file=self._stream, flush=True)

    def step(self, what: str, done: int, total: int | None, detail: str = "") -> None:
        """Say how far the step is, if it is time to."""
        now = self._clock()
        if what != self._what:
            self._what, self._first, self._began, self._next = what, done, now, now + PLAIN_SECONDS
        if now < self._next and done != total:
            return
        self._next = now + PLAIN_SECONDS
        text = f"{what}: {done:,}" + (f" of {total:,} ({100 * done // max(total, 1)}%)" if total is not None else "")
        text += f", {detail}" if detail else ""
        if total is not None and self._first < done < total:
            text += f", about {time_left((now - self._began) * (total - done) / (done - self._first))} left"
        self.note(text)


class LiveStepDisplay(StepDisplay):
    """A bar per step, redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (TextColumn("{task.description}"), BarColumn(None), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        self._bars = Progress(*columns, console=console, transient=True, expand=True)
        self._bar: TaskID | None = None
        self._what = ""

    def note(self, text: str) -> None:
        """Say one line, above the bar."""
        self._console.print(Text(text))

    def step(self, what: str, done: int, total: int | None, detail: str = "") -> None:
        """Redraw."""
        if self._bar is None or what != self._what:
            if self._bar is not None:
                self._bars.remove_task(self._bar)
            self._bars.start()
            self._bar, self._what = self._bars.add_task(what, total=total, completed=done), what
        self._bars.update(self._bar, completed=done, description=f"{what}, {detail}" if detail else what)

    def close(self) -> None:
        """Take the bar away."""
        self._bars.stop()


def make_step_display(*, quiet: bool, stream: TextIO | None = None) -> StepDisplay:
    """The display that suits a stream (standard error unless given)."""
    if quiet:
        return StepDisplay()
    console = Console(file=stream or sys.stderr)
    return LiveStepDisplay(console) if console.is_terminal else PlainStepDisplay(stream or sys.stderr)

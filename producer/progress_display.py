"""What people see while a run goes on: a live display on a terminal, one line now and then elsewhere, nothing when quiet.

All of it goes to standard error; standard output is for the closing summary.
"""

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator
from typing import Self, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from producer.run_progress import RunProgress, WorkerView
from worker.calibration import by_part

PLAIN_SECONDS = 10.0  # between two plain lines
WORKERS_SHOWN = 8


class Display:
    """Shows notes and progress; this one shows nothing. A context manager, so that the terminal is always left in order."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def note(self, text: str) -> None:
        """Say one line."""

    def update(self, progress: RunProgress) -> None:
        """Show where the run is."""

    def close(self) -> None:
        """Leave the terminal as it was; may be called twice and from a signal handler."""


class PlainDisplay(Display):
    """One plain line every ten seconds, and one at each change of phase."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._next = 0.0
        self._phase = ""

    def note(self, text: str) -> None:
        """Say one line."""
        print(text, file=self._stream, flush=True)

    def update(self, progress: RunProgress) -> None:
        """Say where the run is, if it is time to."""
        now = self._clock()
        if progress.phase == self._phase and now < self._next:
            return
        self._phase = progress.phase
        self._next = now + PLAIN_SECONDS
        self.note(plain_line(progress))


class LiveDisplay(Display):
    """A bar of rows, speed and acceptance, and a line per worker, redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=4, transient=True)

    def note(self, text: str) -> None:
        """Say one line, above the live part."""
        self._console.print(Text(text))

    def update(self, progress: RunProgress) -> None:
        """Redraw."""
        if not self._live.is_started:
            self._live.start()
        self._live.update(live_view(progress))

    def close(self) -> None:
        """Take the live part away."""
        if self._live.is_started:
            self._live.stop()


def make_display(*, quiet: bool, stream: TextIO | None = None) -> Display:
    """The display that suits a stream (standard error unless given)."""
    if quiet:
        return Display()
    console = Console(file=stream or sys.stderr)
    return LiveDisplay(console) if console.is_terminal else PlainDisplay(stream or sys.stderr)


class _Notes(logging.Handler):
    def __init__(self, display: Display) -> None:
        super().__init__(logging.WARNING)
        self._display = display

    def emit(self, record: logging.LogRecord) -> None:
        self._display.note(f"{record.levelname.lower()}: {record.getMessage()}")


@contextlib.contextmanager
def log_to(display: Display) -> Iterator[None]:
    """Show the warnings of our own loggers as notes, so that they do not tear the live display."""
    handler = _Notes(display)
    loggers = [logging.getLogger(name) for name in ("producer", "worker")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)


def plain_line(progress: RunProgress) -> str:
    """`generating: 312/480 rows (65%), 3 failed, 412.3 tok/s, acceptance 1: 0.41 2: 0.22, ETA 1:23`."""
    done = _rows_done(progress)
    parts = [f"{progress.phase}: {done:,}/{progress.rows_total:,} rows ({_percent(done, progress.rows_total)})"]
    parts += [f"{progress.rows_failed:,} failed"] if progress.rows_failed else []
    return ", ".join([*parts, *_rates(progress)])


def live_view(progress: RunProgress) -> Group:
    """The live display's content."""
    done = _rows_done(progress)
    bar = Table.grid(padding=(0, 1), expand=True)
    bar.add_column(no_wrap=True)
    bar.add_column(ratio=1)
    bar.add_column(no_wrap=True)
    count = Text(f"{done:,}/{progress.rows_total:,} rows {_percent(done, progress.rows_total)}")
    if progress.rows_failed:
        count.append(f"  {progress.rows_failed:,} failed", style="red")
    waiting = progress.phase not in ("generating", "done") and not done
    bar.add_row(progress.phase, ProgressBar(total=max(progress.rows_total, 1), completed=done, pulse=waiting), count)
    lines: list[Table | Text] = [bar, Text(" · ".join([*_rates(progress), f"elapsed {clock(progress.elapsed)}"]), style="cyan")]
    lines += [Text(_worker_line(view), style="dim", no_wrap=True, overflow="ellipsis") for view in progress.workers[:WORKERS_SHOWN]]
    if len(progress.workers) > WORKERS_SHOWN:
        lines.append(Text(f"… and {len(progress.workers) - WORKERS_SHOWN} more workers", style="dim"))
    return Group(*lines)


def clock(seconds: float) -> str:
    """`83` → `1:23`, `4000` → `1:06:40`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _rows_done(progress: RunProgress) -> int:
    """Landed rows, and those that workers have finished in shards on their way."""
    return min(progress.rows_total, progress.rows_ok + progress.rows_failed + sum(view.tally.rows for view in progress.workers))


def _rates(progress: RunProgress) -> list[str]:
    tally = progress.tally
    parts = [f"{progress.tokens_per_second:,.1f} tok/s"] if progress.tokens_per_second else []
    shares = [
        f"{depth}: {accepted / drafted:.2f}"
        for depth, (drafted, accepted) in enumerate(zip(tally.drafted_by_depth, tally.accepted_by_depth, strict=False), 1)
        if drafted
    ]
    parts += [f"acceptance {' '.join(shares)}"] if shares else []
    parts += [f"{tally.completion_tokens / tally.cycles:.2f} tokens/cycle"] if shares and tally.cycles else []
    z = by_part(tally)["in total"].z
    parts += [f"calibration z {z:+.1f}"] if z is not None else []
    if progress.phase == "reading prompts":
        read, left = tally.prompt_tokens, tally.prompt_tokens_left
        parts.append(f"{read:,} of {read + left:,} prompt tokens in work")
        return parts + ([f"first answers in {clock(progress.eta_seconds)}"] if progress.eta_seconds is not None else [])
    return parts + ([f"ETA {clock(progress.eta_seconds)}"] if progress.eta_seconds is not None and progress.phase == "generating" else [])


def _worker_line(view: WorkerView) -> str:
    where = f" on {', '.join(filter(None, (view.backend.chip, view.backend.blas)))}" if view.backend is not None else ""
    if view.shard is None:
        return f"{view.name}{where}: idle"
    tally = view.tally
    counts = f"{tally.rows:,} rows, {tally.completion_tokens:,} tokens from {tally.prompt_tokens:,} of prompts so far"
    counts += f", {tally.prompt_tokens_left:,} to read" if tally.prompt_tokens_left else ""
    return f"{view.name}{where}: shard {view.shard}, {counts}"


def _percent(done: int, total: int) -> str:
    return f"{100 * done // total if total else 100}%"

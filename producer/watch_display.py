"""What `specmill watch` shows: a table of workers on a terminal, one line elsewhere."""

from pathlib import Path

from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from producer.progress_display import clock
from producer.run_watch import WatchView, acceptance
from schemas.progress import Tally

WORKERS_SHOWN = 40
_STATE_STYLES = {"running": "green", "complete": "green", "finished": "green", "paused": "yellow", "waiting": "yellow"}


def watch_line(view: WatchView) -> str:
    """`running: 312/480 rows (65%), 3 failed, 2 workers, 412.3 tok/s, acceptance 1: 0.41 2: 0.22, ETA 1:23`."""
    parts = [f"{view.state}: {view.rows_done:,}/{view.rows_total:,} rows ({_percent(view)}%)"]
    parts += [f"{view.rows_failed:,} failed"] if view.rows_failed else []
    parts += [f"{len(view.workers)} workers"] if view.workers else []
    parts += [f"{view.tokens_per_second:,.1f} tok/s"] if view.tokens_per_second else []
    parts += [f"acceptance {depths}"] if (depths := _depths(view.tally)) else []
    parts += [f"ETA {clock(view.eta_seconds)}"] if view.eta_seconds is not None and not view.over else []
    parts += [view.why] if view.why else []
    others = len(view.refusing)
    parts += [f"{others} worker{'s' * (others > 1)} of another backend class take{'s' * (others == 1)} no shard"] if others else []
    return ", ".join(parts)


def watch_view(view: WatchView) -> Group:
    """The table for a terminal."""
    bar = Table.grid(padding=(0, 1), expand=True)
    bar.add_column(no_wrap=True)
    bar.add_column(ratio=1)
    bar.add_column(no_wrap=True)
    state = Text(view.state, style=_STATE_STYLES.get(view.state, "red"))
    bar.add_row(state, ProgressBar(total=max(view.rows_total, 1), completed=view.rows_done), f"{_percent(view)}%")
    heading = Text(f"{Path(view.model).name}  run {view.run_id[:12]}", style="bold")
    parts: list[Text | Table] = [heading, bar, Text(watch_line(view), style="cyan")]
    if view.workers:
        parts.append(_workers(view))
    if len(view.workers) > WORKERS_SHOWN:
        parts.append(Text(f"… and {len(view.workers) - WORKERS_SHOWN} more workers", style="dim"))
    return Group(*parts)


def _workers(view: WatchView) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("worker", "chip"):
        table.add_column(name, overflow="ellipsis", no_wrap=True)
    for name in ("shard", "rows", "tokens", "tok/s"):
        table.add_column(name, justify="right")
    table.add_column("acceptance")
    for worker in view.workers[:WORKERS_SHOWN]:
        tally = worker.tally
        numbers = (f"{tally.rows:,}", f"{tally.completion_tokens:,}", f"{worker.tokens_per_second:,.1f}")
        table.add_row(worker.name, worker.chip or "-", "idle" if worker.shard is None else str(worker.shard), *numbers, _depths(tally))
    return table


def _depths(tally: Tally) -> str:
    return " ".join(f"{depth}: {share:.2f}" for depth, share in enumerate(acceptance(tally), 1) if share is not None)


def _percent(view: WatchView) -> int:
    return 100 * view.rows_done // view.rows_total if view.rows_total else 100

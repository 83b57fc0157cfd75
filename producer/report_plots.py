"""The report's plots as SVG that a page can colour: every colour in them is a CSS variable, so one picture serves dark and light."""

import io
import math
import re
from collections.abc import Callable
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from producer.attempts_table import PHASES, Attempts
from producer.dataset_statistics import DatasetStatistics, Ints, quantiles

WORKERS_COLOURED = 6
HISTOGRAM_BARS = 40
TIME_STEPS = 120
TWO_SIDED_95 = 1.96  # standard errors

# Stand-ins for CSS variables; matplotlib writes them into the SVG as they are and `_coloured` replaces them.
_INK, _FAINT = "#010101", "#020202"
_SERIES = [f"#0300{number:02x}" for number in range(1, WORKERS_COLOURED + 1)]
_VARIABLES = {_INK: "var(--ink)", _FAINT: "var(--faint)"} | {colour: f"var(--series-{number})" for number, colour in enumerate(_SERIES, 1)}
_STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.size": 10.0,
    "svg.fonttype": "none",
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": _FAINT,
    "ytick.color": _FAINT,
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
    "grid.color": _FAINT,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}


def acceptance_by_depth(statistics: DatasetStatistics) -> str:
    """Accepted share of the drafts of each depth, with 95 % confidence bars that count rows, not drafts."""

    def draw(axes: Axes) -> None:
        depths = range(1, len(statistics.depths) + 1)
        shares = [depth.share for depth in statistics.depths]
        errors = [0.0 if math.isnan(depth.error) else TWO_SIDED_95 * depth.error for depth in statistics.depths]
        axes.bar(depths, shares, color=_SERIES[0], width=0.6)
        axes.errorbar(depths, shares, yerr=errors, fmt="none", ecolor=_INK, capsize=5, elinewidth=1.4)
        for depth, share, error in zip(depths, shares, errors, strict=True):
            axes.annotate(f"{share:.3f}", (depth, share + error), xytext=(0, 4), textcoords="offset points", ha="center")
        axes.set(xlabel="depth", ylabel="accepted share of drafts", ylim=(0, 1.08), xticks=list(depths), xlim=(0.4, len(depths) + 0.6))

    return _svg(draw, grid="y")


def accepted_lengths(statistics: DatasetStatistics) -> str:
    """How many drafts cycles accepted."""

    def draw(axes: Axes) -> None:
        counts = statistics.accepted_lengths
        shares = np.array(counts) / max(1, sum(counts))
        axes.bar(range(len(counts)), shares, color=_SERIES[1], width=0.6)
        for length, share in enumerate(shares):
            axes.annotate(f"{share:.1%}", (length, share), xytext=(0, 4), textcoords="offset points", ha="center")
        axes.set(xlabel="drafts accepted in a cycle", ylabel="share of cycles", xticks=range(len(counts)), ylim=(0, max(shares) * 1.12))
        axes.yaxis.set_major_formatter(_percent)

    return _svg(draw, grid="y")


def calibration(statistics: DatasetStatistics) -> str:
    """Accepted share against its expectation, by bins of rows; bars of two standard deviations."""

    def draw(axes: Axes) -> None:
        judged, accepted, expected, variance = statistics.calibration[:, statistics.calibration[0] > 0]
        axes.plot([0, 1], [0, 1], color=_FAINT, linewidth=1, linestyle="--")
        axes.errorbar(
            expected / judged, accepted / judged, yerr=2 * np.sqrt(variance) / judged, fmt="o", color=_SERIES[0], ecolor=_INK, capsize=3
        )
        axes.set(xlabel="expected share (mean α of the row)", ylabel="accepted share", xlim=(0, 1), ylim=(0, 1))

    return _svg(draw, grid="both")


def lengths(counts: Ints, what: str, series: int) -> str:
    """Histogram of lengths in tokens, with median and 95th percentile; a bar stands over the whole numbers that it counts."""

    def draw(axes: Axes) -> None:
        values = np.flatnonzero(counts)
        low, high = int(values[0]), int(values[-1])
        width = max(1, math.ceil((high - low + 1) / HISTOGRAM_BARS))
        edges = np.arange(low, high + width + 1, width)
        heights, _ = np.histogram(values, bins=edges, weights=counts[values])
        axes.bar(edges[:-1] + (width - 1) / 2, heights, width=width * 0.92, color=_SERIES[series])
        median, most = quantiles(counts, (0.5, 0.95))
        for value in (median, most):
            axes.axvline(value, color=_INK, linewidth=1, linestyle=":")
        axes.set_title(f"median {median:,}, 95 % up to {most:,}", fontsize=9, loc="left")
        room = 0.5 + max(2, (high - low) // 20)  # so that one bar alone does not fill the picture
        axes.set(xlabel=f"{what}, tokens", ylabel="rows", xlim=(max(low - room, -0.5), edges[-1] - 1 + room))
        for axis, ticks in ((axes.xaxis, 6), (axes.yaxis, 5)):
            axis.set_major_locator(MaxNLocator(nbins=ticks, integer=True))
            axis.set_major_formatter(_whole)

    return _svg(draw, grid="y")


def shares(counts: dict[str, int], what: str, series: int) -> str:
    """A bar per kind, the most frequent on top."""

    def draw(axes: Axes) -> None:
        kinds = sorted(counts, key=lambda kind: (counts[kind], kind))
        total = sum(counts.values())
        axes.barh(kinds, [counts[kind] for kind in kinds], color=_SERIES[series], height=0.6)
        for kind in kinds:
            text = f"{counts[kind]:,} ({counts[kind] / total:.1%})"
            axes.annotate(text, (counts[kind], kind), xytext=(4, 0), textcoords="offset points", va="center")
        axes.set(xlabel=what, xlim=(0, 1.35 * max(counts.values(), default=1)))
        axes.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))

    return _svg(draw, height=1.1 + 0.42 * max(1, len(counts)), grid="x")


def speed(attempts: Attempts) -> str:
    """Tokens per second of every worker over time, and of all together; long pauses are cut out of the axis."""

    def draw(axes: Axes) -> None:
        *_, ends = attempts.busy_time()
        unit, scale = ("hours", 3600.0) if ends[-1] > 7200 else ("minutes", 60.0) if ends[-1] > 120 else ("seconds", 1.0)
        edges = np.linspace(0.0, max(ends[-1], 1e-3), min(TIME_STEPS, 4 + 2 * len(attempts)) + 1)
        workers = attempts.by_worker()
        for number, (worker, mine) in enumerate(workers.items()):
            named = number < WORKERS_COLOURED
            colour = _SERIES[number] if named else _FAINT
            label = worker if named else None
            axes.stairs(attempts.rates(edges, mine), edges / scale, baseline=None, color=colour, linewidth=1.5, label=label)
        if len(workers) > 1:
            together = attempts.rates(edges, [*range(len(attempts))])
            axes.stairs(together, edges / scale, baseline=None, color=_INK, linewidth=1.8, label="together")
        for end in ends[:-1]:
            axes.axvline(end / scale, color=_FAINT, linestyle=":", linewidth=1.2)
        axes.set(xlabel=f"{unit} at work", ylabel="tokens per second", ylim=(0, None), xlim=(0, edges[-1] / scale))
        axes.yaxis.set_major_formatter(_whole)
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=9)

    return _svg(draw, width=10.4, height=3.4, grid="y")


def time_spent(attempts: Attempts) -> str:
    """What the workers' time went into."""

    def draw(axes: Axes) -> None:
        left = 0.0
        total = max(float(attempts.seconds.sum()), 1e-9)
        for number, phase in enumerate(PHASES):
            share = float(attempts.phases[phase].sum()) / total
            colour = _SERIES[number] if number < len(_SERIES) else _FAINT
            axes.barh([0], [share], left=left, color=colour, label=f"{phase} {share:.1%}", height=0.5)
            left += share
        axes.set(xlim=(0, 1), yticks=[], xlabel="share of the workers' time")
        axes.xaxis.set_major_formatter(_percent)
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(PHASES), fontsize=9)

    return _svg(draw, width=10.4, height=1.6, grid="x")


_percent = FuncFormatter(lambda value, _: f"{value:.0%}")
_whole = FuncFormatter(lambda value, _: f"{value:,.0f}")


def _svg(draw: Callable[[Axes], None], *, grid: str, width: float = 3.9, height: float = 2.9) -> str:
    """One figure as an `<svg>` element, size in inches."""
    style: Any = {**_STYLE, "svg.hashsalt": draw.__qualname__}  # keys are literals to matplotlib's stubs
    with mpl.rc_context(style):
        figure = Figure(figsize=(width, height))
        axes = figure.add_subplot()
        axes.grid(axis=grid)  # type: ignore[arg-type]  # "x", "y" or "both"
        draw(axes)
        sink = io.StringIO()
        figure.savefig(sink, format="svg", transparent=True, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _coloured(sink.getvalue())


def _coloured(text: str) -> str:
    """The `<svg>` element alone, scalable, its colours as CSS variables, without the groups' ids (a page holds several figures)."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    text = re.sub(r'(<svg[^>]*?) width="[\d.]+pt" height="[\d.]+pt"|(<svg[^>]*?) height="[\d.]+pt"', r"\1\2", text)
    return re.sub("|".join(_VARIABLES), lambda match: _VARIABLES[match.group()], text)

"""`Report`: what `specmill report` says of a dataset: numbers for the terminal, and the same with plots as one HTML page."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from producer.attempts_table import PHASES, Attempts
from producer.counted import counted
from producer.dataset import Dataset
from producer.dataset_statistics import MIN_JUDGED, DatasetStatistics, quantiles
from producer.row_detail import RowDetail, row_details
from producer.run_summary import RunSummary, duration
from producer.visible_text import visible
from schemas.errors import InputError
from schemas.wire import Json
from worker.remote_path import Place

_TEMPLATES = Path(__file__).parent / "templates"
_SHARDS_LISTED = 10
_ROW_COLUMNS = ("row", "cycles", "tokens", "accepted", "different", "ends", "completion")
_QUANTILES = (0.5, 0.95, 1.0)


@dataclass(frozen=True)
class Plot:
    """A picture on the page; `wide` takes a line of its own."""

    title: str
    svg: str
    caption: str = ""
    wide: bool = False


@dataclass(frozen=True)
class Table:
    """A table on the page; columns named in `numeric` are set right."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    text: str = ""
    numeric: tuple[str, ...] = ()


@dataclass(frozen=True)
class Section:
    """A heading with what stands below it."""

    title: str
    text: str = ""
    plots: list[Plot] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)


@dataclass(frozen=True)
class Report:
    """Everything that the report shows, read from the dataset's folder and nothing else."""

    dataset: Dataset
    summary: RunSummary
    statistics: DatasetStatistics
    attempts: Attempts
    slowest: list[RowDetail]
    lowest: list[RowDetail]
    highest: list[RowDetail]

    @classmethod
    def of_dataset(cls, out: Place) -> "Report":
        """Read a dataset, finished or not.

        Raises:
            InputError: no dataset, or nothing of it has landed.
            LandingError: a part file or a log file is missing or broken.
        """
        dataset = Dataset.open(out)
        if not dataset.manifest.shards:
            raise InputError(f"nothing of {out} has landed yet; specmill watch {out} shows how far it is")
        statistics = DatasetStatistics.of_dataset(dataset)
        lists = [row_details(dataset, places) for places in (statistics.slowest, statistics.lowest, statistics.highest)]
        return cls(dataset, RunSummary.of_dataset(out, dataset.manifest), statistics, Attempts.of_dataset(out), *lists)

    def text(self) -> str:
        """The numbers, for a terminal."""
        statistics = self.statistics
        lines = [self.summary.text(), f"  status      {self._status()}", *(f"              {line}" for line in self.dataset.unfinished())]
        for name, counts in (("prompts", statistics.prompt_lengths), ("answers", statistics.completion_lengths)):
            median, high, most = quantiles(counts, _QUANTILES)
            lines.append(f"  {name:<11} median {counted(median, 'token')}, 95 % up to {high:,}, longest {most:,}")
        if lengths := statistics.accepted_lengths:
            parts = "  ".join(f"{length}: {count / max(1, sum(lengths)):.3f}" for length, count in enumerate(lengths))
            lines.append(f"  accepted    drafts per cycle {parts}")
        if len(self.attempts):
            spent = self.attempts.phases
            total = max(sum(float(spent[phase].sum()) for phase in PHASES), 1e-9)
            shares = ", ".join(f"{phase} {float(spent[phase].sum()) / total:.0%}" for phase in PHASES)
            lines.append(f"  time        {duration(total)} of work: {shares}")
            labelled = "  worker      {0}: {1} shards, {2} rows, {3} tokens, {4} tok/s, peak {5}, {6}"
            lines += [labelled.format(*row) for row in self._worker_rows()]
        for name, rows in (("low", self.lowest[:3]), ("high", self.highest[:3])):
            lines += [f"  {name + ' accept':<11} {row.name}: {row.share:.2f} of {row.judged} drafts; {row.excerpt[:80]}" for row in rows]
        return visible("\n".join(lines))

    def json(self) -> dict[str, Json]:
        """The same numbers as a JSON object."""
        statistics = self.statistics
        return {
            "out": str(self.summary.out),
            "status": self.dataset.state,
            "unfinished": list(self.dataset.unfinished()),
            "rows": self.summary.rows,
            "failures": dict(self.summary.failures),
            "finish_reasons": dict(self.summary.finish_reasons),
            "prompt_tokens": self.summary.prompt_tokens,
            "completion_tokens": self.summary.completion_tokens,
            "cycles": statistics.cycles,
            "acceptance_by_depth": [_finite(depth.share) for depth in statistics.depths],
            "acceptance_error_by_depth": [_finite(depth.error) for depth in statistics.depths],
            "accepted_lengths": list(statistics.accepted_lengths),
            "tokens_per_cycle": self.summary.tokens_per_cycle,
            "z": self.summary.z,
            "prompt_length_quantiles": list(quantiles(statistics.prompt_lengths, _QUANTILES)),
            "completion_length_quantiles": list(quantiles(statistics.completion_lengths, _QUANTILES)),
            "seconds_by_phase": {phase: float(self.attempts.phases[phase].sum()) for phase in PHASES},
            "slowest": [_detail(row) for row in self.slowest],
            "lowest_acceptance": [_detail(row) for row in self.lowest],
            "highest_acceptance": [_detail(row) for row in self.highest],
        }

    def html(self) -> str:
        """The page: self-contained, no script, dark where the reader's system is."""
        environment = Environment(loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined)
        spec = self.dataset.manifest.spec
        sampler = spec.sampler
        head = f"with the MTP head {Path(spec.head.name).name}, depth {spec.profile.depth}" if spec.head else "without an MTP head"
        sampling = f"temperature {sampler.temperature:g}, top-p {sampler.top_p:g}, top-k {sampler.top_k}, run seed {spec.seed}"
        sampling += f", rows' own {', '.join(spec.per_row)}" if spec.per_row else ""
        subtitle = f"{Path(spec.model.name).name} {head} · {sampling} · {self._status()}"
        return environment.get_template("report.html.j2").render(
            title=self.summary.out.resolve().name, subtitle=subtitle, numbers=self._numbers(), sections=self._sections()
        )

    def _status(self) -> str:
        manifest = self.dataset.manifest
        return f"{self.dataset.state}, {len(manifest.shards):,} of {counted(manifest.spec.shards, 'shard')}"

    def _numbers(self) -> list[dict[str, object]]:
        summary = self.summary
        seconds = sum(end - start for start, end in self.attempts.spans())
        shown = [("rows", f"{summary.rows:,}", False), ("failed rows", f"{summary.failed:,}", summary.failed > 0)]
        shown += [("tokens generated", f"{summary.completion_tokens:,}", False), ("tokens of prompts", f"{summary.prompt_tokens:,}", False)]
        if seconds > 0:
            shown.append(("tokens per second at work", f"{float(self.attempts.tokens.sum()) / seconds:,.1f}", False))
        if self.statistics.depths and summary.tokens_per_cycle:
            shown.append(("tokens per cycle", f"{summary.tokens_per_cycle:.2f}", False))
        if summary.z is not None:
            broken = any(part.broken for part in summary.calibrations.values())
            shown.append(("calibration z", f"{summary.z:+.2f}", broken))
        return [{"name": name, "value": value, "bad": bad} for name, value, bad in shown]

    def _sections(self) -> list[Section]:
        speculation = [self._speculation()] if self.statistics.depths else []
        return [*speculation, self._speed(), self._rows(), *([self._worth_a_look()] if self.slowest else [])]

    def _speculation(self) -> Section:
        from producer import report_plots as plots

        statistics = self.statistics
        by_depth = Plot(
            "Acceptance by depth",
            plots.acceptance_by_depth(statistics),
            "Bars: 95 % confidence, rows taken as independent and drafts within a row not.",
        )
        by_length = Plot("Accepted length", plots.accepted_lengths(statistics), "Every cycle commits these drafts and one token more.")
        calibration = Plot(
            "Calibration",
            plots.calibration(statistics),
            "Exact sampling accepts as often as it says it will: the points lie on the line, within two standard deviations (bars).",
        )
        return Section("How speculation went", plots=[by_depth, by_length, calibration])

    def _speed(self) -> Section:
        from producer import report_plots as plots

        if not len(self.attempts):
            return Section("Speed", "The log of attempts is empty.")
        attempts = self.attempts
        pauses = len(attempts.spans()) - 1
        caption = f"Dotted lines: {pauses} longer pauses, cut out." if pauses else ""
        columns = ("worker", "shards", "rows", "tokens", "tok/s", "peak memory", "where")
        slow_columns = ("shard", "seconds", "tokens", "tok/s", "worker")
        return Section(
            "Speed",
            plots=[
                Plot("Tokens per second", plots.speed(attempts), caption, wide=True),
                Plot("Where the time went", plots.time_spent(attempts), wide=True),
            ],
            tables=[
                Table("Workers", columns, self._worker_rows(), numeric=columns[1:6]),
                Table("Slowest shards", slow_columns, self._slow_shards(), numeric=slow_columns[:4]),
            ],
        )

    def _slow_shards(self) -> list[tuple[str, ...]]:
        attempts = self.attempts
        order = sorted(range(len(attempts)), key=lambda attempt: -attempts.seconds[attempt])[:_SHARDS_LISTED]
        numbers = [(f"{attempts.seconds[i]:,.1f}", f"{attempts.tokens[i]:,.0f}", f"{attempts.rate[i]:,.1f}") for i in order]
        return [(str(attempts.shard[i]), *number, attempts.worker[i]) for i, number in zip(order, numbers, strict=True)]

    def _rows(self) -> Section:
        from producer import report_plots as plots

        shown = []
        if self.summary.failed < self.summary.rows:
            shown.append(Plot("Prompt lengths", plots.lengths(self.statistics.prompt_lengths, "prompt", 2)))
            shown.append(Plot("Completion lengths", plots.lengths(self.statistics.completion_lengths, "completion", 1)))
        reasons = plots.shares(dict(self.summary.finish_reasons), "rows", 0)
        shown.append(Plot("Finish reasons", reasons, "length: the token budget ran out."))
        if self.summary.failed:
            shown.append(Plot("Errors by kind", plots.shares(dict(self.summary.failures), "rows", 4)))
        return Section("Rows", plots=shown)

    def _worth_a_look(self) -> Section:
        tables = []
        if self.lowest:
            about = f"Smallest accepted share among rows with {MIN_JUDGED} judged drafts or more; often garbled text."
            tables.append(_row_table("Lowest acceptance", self.lowest, about))
            about = "Largest accepted share; with few different tokens often a loop."
            tables.append(_row_table("Highest acceptance", self.highest, about))
        text = "specmill show DATASET --row ID shows one whole."
        counts, least = self.statistics.cycle_counts, self.slowest[-1].cycles
        if np.count_nonzero(counts) > 1:
            about = "Most cycles, that is, most passes of the model."
            more = int(counts[least]) - sum(row.cycles == least for row in self.slowest)
            about += f" There are {more:,} more of {counted(least, 'cycle')}." if more else ""
            tables.append(_row_table("Slowest rows", self.slowest, about))
        elif self.summary.rows - self.summary.failed > 1:
            text += f" Every row took {counted(least, 'cycle')}: none was slower than the others."
        return Section("Rows worth a look", text, tables=tables)

    def _worker_rows(self) -> list[tuple[str, ...]]:
        attempts = self.attempts
        rows: list[tuple[str, ...]] = []
        for worker, mine in attempts.by_worker().items():
            seconds = max(sum(attempts.seconds[i] - attempts.phases["load"][i] for i in mine), 1e-9)
            tokens = sum(attempts.tokens[i] for i in mine)
            peak = max(attempts.peak_bytes[i] for i in mine)
            where = " / ".join(sorted({attempts.chip[i] for i in mine}))
            counts = (f"{len(mine):,}", f"{sum(attempts.rows[i] for i in mine):,.0f}", f"{tokens:,.0f}", f"{tokens / seconds:,.1f}")
            rows.append((worker, *counts, f"{peak / 1e9:,.2f} GB", where))
        return rows


def _row_table(title: str, rows: Iterable[RowDetail], text: str) -> Table:
    cells: list[tuple[str, ...]] = []
    for row in rows:
        accepted = "" if math.isnan(row.share) else f"{row.share:.2f}"
        numbers = (f"{row.cycles:,}", f"{row.tokens:,}", accepted, f"{row.distinct:.0%}")
        cells.append((visible(row.name), *numbers, row.finish_reason, visible(row.excerpt)))
    return Table(title, _ROW_COLUMNS, cells, text, numeric=_ROW_COLUMNS[1:5])


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _detail(row: RowDetail) -> dict[str, Json]:
    return {**asdict(row), "share": _finite(row.share)}

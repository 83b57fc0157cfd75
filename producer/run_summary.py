"""`RunSummary`: what a finished dataset holds, counted from its part files and nothing else."""

import math
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from producer.counted import counted
from producer.visible_text import visible
from schemas.manifest import Manifest
from schemas.progress import Tally
from worker.calibration import Calibration, by_part
from worker.engine.blas import REFERENCE
from worker.remote_path import Place, look_through, parquet_source, size_of

FAILURES_SHOWN = 5
SLOW_BLAS = (
    "MLX's reference BLAS, which is 20 to 80 times slower than OpenBLAS: apt-get install libopenblas0-pthread, leave OPENBLAS_CORETYPE "
    "unset, and `specmill doctor` says whether it is used"
)
_COLUMNS = ("record_id", "sample", "error", "prompt_tokens", "completion_tokens", "finish_reason", "acceptance")


@dataclass
class RunSummary:
    """Counts over a dataset, and how the session that finished it went.

    Attributes:
        out: the dataset's folder.
        files: part files.
        size: of the part files, in bytes.
        rows: output rows, failed ones included.
        failures: error type → rows.
        first_failures: the first few failed rows, as text.
        finish_reasons: finish reason → rows.
        prompt_tokens: over all rows.
        completion_tokens: over all rows.
        cycles: draft-verify-commit cycles over all rows.
        drafted_by_depth: drafts at depth 1, 2, …
        accepted_by_depth: accepted ones among them.
        expected_accepted: Σα over the judged drafts.
        accepted_variance: Σα(1-α) over the judged drafts.
        expected_by_depth: Σα at depth 1, 2, …
        variance_by_depth: Σα(1-α) likewise.
        seconds: wall time of this session's generation; None when nothing was left to do.
        tokens_per_second: completion tokens per second of this session; None likewise.
        warnings: what the user should know, about their columns or about the machine.
    """

    out: Place
    files: int = 0
    size: int = 0
    rows: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    first_failures: list[str] = field(default_factory=list)
    finish_reasons: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cycles: int = 0
    drafted_by_depth: list[int] = field(default_factory=list)
    accepted_by_depth: list[int] = field(default_factory=list)
    expected_accepted: float = 0.0
    accepted_variance: float = 0.0
    expected_by_depth: list[float] = field(default_factory=list)
    variance_by_depth: list[float] = field(default_factory=list)
    seconds: float | None = None
    tokens_per_second: float | None = None
    warnings: list[str] = field(default_factory=list)

    @classmethod
    def of_dataset(cls, out: Place, manifest: Manifest) -> "RunSummary":
        """Count the part files that a manifest names, a few at a time."""
        summary = cls(out)
        for size, table in look_through((out / shard.file for shard in manifest.shards), _read):
            summary._add(size, table)
        slow = sum(shard.backend.blas == REFERENCE for shard in manifest.shards)
        if slow:
            summary.warnings.append(f"{slow:,} of {counted(len(manifest.shards), 'shard')} were computed on {SLOW_BLAS}")
        return summary

    @property
    def failed(self) -> int:
        """Error rows."""
        return self.failures.total()

    @property
    def acceptance_by_depth(self) -> list[float]:
        """Accepted share of the drafts at depth 1, 2, …; NaN where nothing was drafted."""
        return [a / d if d else math.nan for a, d in zip(self.accepted_by_depth, self.drafted_by_depth, strict=True)]

    def acceptance_text(self, separator: str, decimals: int = 3) -> str:
        """`1: 0.750, 2: 0.500` with the separator `, `; empty where nothing was drafted."""
        shares = enumerate(self.acceptance_by_depth, 1)
        return separator.join(f"{depth}: {share:.{decimals}f}" for depth, share in shares if not math.isnan(share))

    @property
    def tokens_per_cycle(self) -> float | None:
        """Mean completion tokens per cycle."""
        return self.completion_tokens / self.cycles if self.cycles else None

    @property
    def z(self) -> float | None:
        """(accepted - Σα) / √Σα(1-α); None without a draft whose fate was open."""
        return Calibration(sum(self.accepted_by_depth), self.expected_accepted, self.accepted_variance).z

    @property
    def calibrations(self) -> dict[str, Calibration]:
        """In total, and at every depth."""
        return by_part(
            Tally(
                accepted_by_depth=tuple(self.accepted_by_depth),
                expected_accepted=self.expected_accepted,
                accepted_variance=self.accepted_variance,
                expected_by_depth=tuple(self.expected_by_depth),
                variance_by_depth=tuple(self.variance_by_depth),
            )
        )

    def text(self) -> str:
        """The closing summary, for people."""
        lines = [f"{self.out}: {counted(self.rows - self.failed, 'row')} ok, {self.failed:,} failed"]
        if self.failed:
            lines.append("  failed      " + ", ".join(f"{kind} {count:,}" for kind, count in sorted(self.failures.items())))
            lines += [f"    {failure}" for failure in self.first_failures]
            if self.failed > len(self.first_failures):
                lines.append(f"    … and {self.failed - len(self.first_failures):,} more: rows with a non-null `error`")
        lines.append(f"  tokens      {self.completion_tokens:,} generated, {self.prompt_tokens:,} of prompts")
        if self.tokens_per_second and self.seconds:
            speed = f"{self.tokens_per_second:,.1f} generated tok/s of all workers together, from the first token on"
            lines.append(f"  speed       {speed}; the session took {duration(self.seconds)}")
        if self.drafted_by_depth:
            depths = self.acceptance_text("  ")
            per_cycle = f", {self.tokens_per_cycle:.2f} tokens per cycle" if self.tokens_per_cycle else ""
            lines.append("  acceptance  " + (f"by depth {depths}" if depths else "nothing was drafted") + per_cycle)
        if self.z is not None:
            parts = self.calibrations
            broken = [where for where, calibration in parts.items() if calibration.broken]
            verdict = (
                f"BROKEN {', '.join(broken)}: the engine is broken, do not use this dataset" if broken else "as exact sampling expects"
            )
            depths = "  ".join(f"{where[9:]}: {c.z:+.2f}" for where, c in parts.items() if where != "in total" and c.z is not None)
            lines.append(f"  calibration z = {self.z:+.2f}, {verdict}" + (f"; by depth {depths}" if depths else ""))
        lines += [f"  note        {warning}" for warning in self.warnings]
        data = self.out / "data"
        lines.append(f"  files       {self.files:,} in {data}, {self.size / 1e6:,.1f} MB")
        lines.append(f"  load it     pandas.read_parquet({str(data)!r})   or   duckdb.sql(\"from '{data}/*.parquet'\")")
        return visible("\n".join(lines))

    def _add(self, size: int, table: pa.Table) -> None:
        self.files += 1
        self.size += size
        self.rows += table.num_rows
        self.prompt_tokens += pc.sum(table["prompt_tokens"]).as_py() or 0
        self.completion_tokens += pc.sum(table["completion_tokens"]).as_py() or 0
        self.finish_reasons.update(table["finish_reason"].drop_null().to_pylist())
        failed = table.filter(pc.is_valid(table["error"])).select(["record_id", "sample", "error"]).to_pylist()
        self.failures.update(row["error"]["type"] for row in failed)
        for row in failed[: FAILURES_SHOWN - len(self.first_failures)]:
            where = f"{row['record_id']}, sample {row['sample']}" if row["sample"] else row["record_id"]
            self.first_failures.append(f"{where}: {row['error']['type']}: {_one_line(row['error']['message'])}")
        acceptance = pa.chunked_array(table["acceptance"]).combine_chunks()
        field_of = dict(zip([f.name for f in acceptance.type], acceptance.flatten(), strict=True))
        self.cycles += pc.sum(field_of["cycles"]).as_py() or 0
        self.expected_accepted += math.fsum(field_of["expected_accepted"].drop_null().to_pylist())
        self.accepted_variance += math.fsum(field_of["accepted_variance"].drop_null().to_pylist())
        for name in ("drafted_by_depth", "accepted_by_depth"):
            setattr(self, name, [int(total) for total in _add(getattr(self, name), _by_depth(field_of[name]))])
        for name in ("expected_by_depth", "variance_by_depth"):
            if name in field_of:  # datasets of the first versions have the totals only
                setattr(self, name, _add(getattr(self, name), _by_depth(field_of[name])))


def _read(file: Place) -> tuple[int, pa.Table]:
    return size_of(file), pq.read_table(parquet_source(file), columns=list(_COLUMNS))


def _by_depth(lists: pa.Array) -> list[float]:
    """Sums over rows of the lists' first, second, … entries."""
    lists = lists.drop_null()
    values = lists.flatten().to_numpy(zero_copy_only=False).astype(np.float64)
    lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False).astype(np.int64)
    depth = np.arange(len(values)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return [float(total) for total in np.bincount(depth, weights=values)] if len(values) else []


def _add(left: list[float], right: list[float]) -> list[float]:
    width = max(len(left), len(right))
    padded = [[*side, *[0.0] * (width - len(side))] for side in (left, right)]
    return [a + b for a, b in zip(*padded, strict=True)]


def _one_line(text: str) -> str:
    first = " ".join(text.split())
    return first if len(first) <= 160 else first[:157] + "…"


def duration(seconds: float) -> str:
    """`1.5 s`, `3 min 20 s`, `2 h 05 min`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{seconds:.1f} s"

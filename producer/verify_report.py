"""`VerifyReport`: what `specmill verify` found, as text, as JSON and as an exit code."""

from dataclasses import dataclass, field

from producer.counted import counted
from schemas.wire import Json
from worker.remote_path import Place

Z_LIMIT = 5.0
EQUAL, DIFFERENT, NOT_COMPARABLE = 0, 1, 3  # 2 is: it could not be tried
SHOWN = 20


@dataclass(frozen=True)
class RowVerdict:
    """One verified row.

    Attributes:
        name: how people call it.
        row: record number.
        sample: sample number.
        file: its part file.
        mode: `regenerated` or `teacher-forced`.
        problems: one line each; none for a row that holds.
    """

    name: str
    row: int
    sample: int
    file: str
    mode: str
    problems: tuple[str, ...]


@dataclass
class VerifyReport:
    """Everything that was compared.

    Attributes:
        out: the dataset's folder.
        rows_total: rows in it.
        files: part files that were checked; None if they were not.
        file_problems: one line each.
        environment: what differs from the manifest, one line each, and what follows.
        blocked: why rows could not be compared with the manifest's own model or head; empty when they could.
        verdicts: one per chosen row.
        seconds: mode → wall time in seconds, loading aside.
        tokens: mode → completion tokens.
        skipped: rows whose engine died; they cannot be repeated.
        edges: tokens just outside the kept candidates, within the tolerance.
        surprise_z: z of the teacher-forced tokens as draws from the target; None where none was open.
        calibration: lines about accepted drafts against their expected number, over the whole dataset.
        calibration_broken: whether one of them lies beyond 5.
    """

    out: Place
    rows_total: int
    files: int | None = None
    file_problems: list[str] = field(default_factory=list)
    environment: list[str] = field(default_factory=list)
    blocked: list[str] = field(default_factory=list)
    verdicts: list[RowVerdict] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    skipped: int = 0
    edges: int = 0
    surprise_z: float | None = None
    calibration: list[str] = field(default_factory=list)
    calibration_broken: bool = False

    @property
    def bad(self) -> list[RowVerdict]:
        """Rows that do not hold."""
        return [verdict for verdict in self.verdicts if verdict.problems]

    @property
    def exit_code(self) -> int:
        """0 all equal, 1 something differs, 3 nothing differs but the model or the head here is not the manifest's."""
        surprised = self.surprise_z is not None and abs(self.surprise_z) > Z_LIMIT
        if self.file_problems or self.bad or surprised or self.calibration_broken:
            return DIFFERENT
        return NOT_COMPARABLE if self.blocked else EQUAL

    def text(self) -> str:
        """The report for people."""
        lines = [f"{self.out}: {_VERDICTS[self.exit_code]}"]
        if self.files is not None:
            state = counted(len(self.file_problems), "problem") if self.file_problems else "as the manifest lists them"
            lines.append(f"  files         {counted(self.files, 'part file')}: {state}")
        lines += [f"    {problem}" for problem in _cut(self.file_problems)]
        lines += [f"  environment   {line}" for line in self.environment]
        lines += [f"  not compared  {line}" for line in self.blocked]
        for mode in _MODES:
            chosen = [verdict for verdict in self.verdicts if verdict.mode == mode]
            if chosen:
                bad = sum(bool(verdict.problems) for verdict in chosen)
                speed = f"{counted(self.tokens.get(mode, 0), 'token')} in {self.seconds.get(mode, 0.0):.1f} s"
                lines.append(f"  rows          {len(chosen):,} of {self.rows_total:,} {mode}: {_count(len(chosen), bad, mode)} ({speed})")
        shown = [f"    {v.name} ({v.file}): {problem}" for v in self.bad for problem in v.problems]
        lines += _cut(shown)
        if self.skipped:
            lines.append(f"  skipped       {counted(self.skipped, 'row')} whose engine died then; they cannot be repeated")
        if self.edges:
            lines.append(f"  edges         {self.edges:,} tokens lie just outside the kept candidates here, within the tolerance")
        if self.surprise_z is not None:
            verdict = "as draws from the target" if abs(self.surprise_z) <= Z_LIMIT else "BEYOND 5: not drawn from this target and sampler"
            lines.append(f"  surprise      z = {self.surprise_z:+.2f}, {verdict}")
        lines += [f"  calibration   {line}" for line in self.calibration]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Json]:
        """The report for programs; a stable object."""
        return {
            "out": str(self.out),
            "exit_code": self.exit_code,
            "rows_total": self.rows_total,
            "rows_checked": len(self.verdicts),
            "rows_bad": len(self.bad),
            "file_problems": list(self.file_problems),
            "environment": list(self.environment),
            "blocked": list(self.blocked),
            "rows": [
                {"name": v.name, "row": v.row, "sample": v.sample, "file": v.file, "mode": v.mode, "problems": list(v.problems)}
                for v in self.verdicts
            ],
            "seconds": dict(self.seconds),
            "tokens": dict(self.tokens),
            "skipped": self.skipped,
            "edges": self.edges,
            "surprise_z": self.surprise_z,
            "calibration": list(self.calibration),
        }


_MODES = ("regenerated", "teacher-forced")
_VERDICTS = {
    EQUAL: "verified",
    DIFFERENT: "DIFFERENT from what it claims",
    NOT_COMPARABLE: "not comparable with the model or head that is here",
}


def _count(rows: int, bad: int, mode: str) -> str:
    if not bad:
        return "all equal" if mode == "regenerated" else "all hold"
    return f"{bad:,} {'differ' if mode == 'regenerated' else 'do not hold'}, {rows - bad:,} {'equal' if mode == 'regenerated' else 'hold'}"


def _cut(lines: list[str]) -> list[str]:
    return lines if len(lines) <= SHOWN else [*lines[:SHOWN], f"    … and {len(lines) - SHOWN:,} more"]

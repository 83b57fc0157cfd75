"""docs/benchmarks.md, made of the results in a folder.

Run: python bench/table.py bench/results > docs/benchmarks.md
"""

import sys
from pathlib import Path

from measurement import Measure, Result, spread

HEAD = """# Benchmarks

Made of the numbers in `bench/results` by `make benchmarks-page`; `make bench-full` measures them anew. `make bench` runs a short form of
all on your machine and shows its own tables.

Triples are min / median / max over the rounds. Product and peer take turns in every round, and a ratio is product ÷ peer, round by round:
for a time, below 1 is faster than the peer; for a rate, above 1. A goal is what the project aims at, whether or not it is reached here.
Where the load average is above the number of cores, other work shared the machine; ratios and processor time then say more than wall time.
"""


def table(results: list[Result]) -> str:
    """The whole page."""
    return "\n".join([HEAD, *map(_section, results)])


def _section(result: Result) -> str:
    machine = ", ".join(f"{name} {value}" for name, value in result.machine.items())
    versions = ", ".join(f"{name} {value}" for name, value in result.versions.items())
    lines = [f"## {result.title}", "", result.how, "", f"{result.date}; {machine}; {versions}.", ""]
    compared = any(measure.theirs for measure in result.measures)
    columns = ["", "specmill", *(["peer", "its value", "ratio"] if compared else []), "goal"]
    lines += [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    lines += [f"| {' | '.join(_cells(measure, compared))} |" for measure in result.measures]
    return "\n".join([*lines, ""])


def _cells(measure: Measure, compared: bool) -> list[str]:
    cells = [measure.what, f"{spread(measure.ours)} {measure.unit}".strip()]
    if compared:
        cells += [measure.peer, spread(measure.theirs), f"**{spread(measure.ratios)}**"] if measure.theirs else ["", "", ""]
    return [cell.replace("|", "\\|") for cell in [*cells, measure.goal]]


def main() -> None:
    folder = Path(sys.argv[1])
    files = sorted(folder.glob("*.json"))
    if not files:
        sys.exit(f"{folder} holds no results; run a benchmark with --results {folder}")
    print(table([Result.read(path) for path in files]), end="")


if __name__ == "__main__":
    main()

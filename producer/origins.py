"""`Origins`: what people call a line of the prompts: `line 3`, `row 3` of a table, `b.csv row 3` among several files."""

from bisect import bisect_right
from dataclasses import dataclass


@dataclass(frozen=True)
class Origin:
    """Where one file's part begins among all lines.

    Attributes:
        first: its first line's number, from 1.
        file: the file's name, or empty where there is one file only.
        unit: what its lines are: `line` or `row`.
    """

    first: int
    file: str = ""
    unit: str = "line"


@dataclass(frozen=True)
class Origins:
    """The files behind a run of lines, in order; one plain file unless given."""

    parts: tuple[Origin, ...] = (Origin(1),)

    def name(self, line: int) -> str:
        """What to call a line, given by its number from 1."""
        part = self.parts[bisect_right([origin.first for origin in self.parts], line) - 1]
        return f"{part.file} {part.unit} {line - part.first + 1}".strip()

"""`ColumnPath`: which value of a record an option means, `prompt`, `turns[0]` or `meta.question[1].text`."""

import re
from dataclasses import dataclass

from schemas.errors import InputError

_FIRST = re.compile(r"[^.\[\]]+")
_PART = re.compile(r"\.(?P<name>[^.\[\]]+)|\[(?P<index>-?[0-9]{1,9})\]")


@dataclass(frozen=True)
class ColumnPath:
    """A column's name, then any number of `.name` and `[integer]` steps into its value.

    Attributes:
        text: the expression as it was given; messages quote it.
        column: the top-level column.
        steps: names of objects and positions in lists (negative ones count from the end), outermost first.
    """

    text: str
    column: str
    steps: tuple[str | int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "ColumnPath":
        """The path that an expression means.

        Raises:
            InputError: not a name followed by `.name` and `[integer]` parts.
        """
        first = _FIRST.match(text)
        steps: list[str | int] = []
        at = first.end() if first else 0
        while first and at < len(text):
            part = _PART.match(text, at)
            if part is None:
                break
            steps.append(part["name"] if part["name"] is not None else int(part["index"]))
            at = part.end()
        if first is None or at < len(text):
            raise InputError(f"a column must be a name, then .name or [integer] parts, like turns[0]; received {text!r}")
        return cls(text, first.group(), tuple(steps))

    @property
    def plain(self) -> bool:
        """Whether the path is a column as it stands."""
        return not self.steps

    def of(self, record: dict[str, object]) -> object:
        """The value that the path leads to in one record.

        Raises:
            InputError: the path leads nowhere; the message says at which part.
        """
        value: object = record
        at = ""
        for step in (self.column, *self.steps):
            if isinstance(step, str):
                if not isinstance(value, dict):
                    raise InputError(f"{self.text!r} leads nowhere: {at or 'the line'} is {kind(value)}, not an object")
                if step not in value:
                    raise InputError(f"no column {step!r}" if not at else f"{self.text!r} leads nowhere: {at} has no {step!r}")
                value = value[step]
                at = f"{at}.{step}" if at else step
            else:
                if not isinstance(value, list):
                    raise InputError(f"{self.text!r} leads nowhere: {at} is {kind(value)}, not a list")
                if not -len(value) <= step < len(value):
                    raise InputError(f"{self.text!r} leads nowhere: {at} has {len(value)} items")
                value = value[step]
                at = f"{at}[{step}]"
        return value


def kind(value: object) -> str:
    """What JSON calls a value, with its article."""
    if value is None:
        return "null"
    for types, name in ((bool, "a boolean"), (int | float, "a number"), (str, "text"), (list, "a list")):
        if isinstance(value, types):
            return name
    return "an object"

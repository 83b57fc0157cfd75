"""Two versions of one dataset row, field by field."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

TEXT_SHOWN = 60  # characters of a value in a message


@dataclass(frozen=True)
class Difference:
    """One field in which two rows differ.

    Attributes:
        field: column name.
        text: what differs, for people.
    """

    field: str
    text: str

    def __str__(self) -> str:
        return f"{self.field}: {self.text}"


def compare_rows(left: dict[str, Any], right: dict[str, Any], fields: Iterable[str]) -> list[Difference]:
    """The fields of two rows that are not exactly equal, floats bit by bit; of structs, what both have is compared.

    A field that a row lacks counts as null.
    """
    found = []
    for name in fields:
        mine, theirs = left.get(name), right.get(name)
        if _equal(mine, theirs):
            continue
        found.append(Difference(name, _text(mine, theirs)))
    return found


def _equal(mine: object, theirs: object) -> bool:
    if isinstance(mine, dict) and isinstance(theirs, dict):
        # Another version of specmill may know more of a row; what both know must be the same.
        return all(_equal(mine[key], theirs[key]) for key in mine.keys() & theirs.keys())
    return bool(mine == theirs or (mine != mine and theirs != theirs))


def first_difference(left: Sequence[Any], right: Sequence[Any]) -> int | None:
    """Index of the first item in which two lists differ, one that is longer included; None for equal lists."""
    for index, (mine, theirs) in enumerate(zip(left, right, strict=False)):
        if mine != theirs:
            return index
    return None if len(left) == len(right) else min(len(left), len(right))


def _text(mine: object, theirs: object) -> str:
    if isinstance(mine, list) and isinstance(theirs, list):
        index = first_difference(mine, theirs)
        assert index is not None
        return f"{_item(mine, index)} / {_item(theirs, index)} at {index}"
    if isinstance(mine, dict) and isinstance(theirs, dict):
        return "; ".join(
            f"{key} {_shown(mine.get(key))} / {_shown(theirs.get(key))}" for key in mine if key in theirs and mine[key] != theirs[key]
        )
    if isinstance(mine, str) and isinstance(theirs, str):
        index = first_difference(mine, theirs)
        return f"{_shown(mine[index:])} / {_shown(theirs[index:])} at character {index}"
    return f"{_shown(mine)} / {_shown(theirs)}"


def _item(values: list[Any], index: int) -> str:
    return _shown(values[index]) if index < len(values) else "end"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= TEXT_SHOWN else text[: TEXT_SHOWN - 1] + "…"

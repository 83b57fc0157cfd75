"""Rows are equal bit by bit, differences say where, and another version's additional struct fields are no difference."""

import math

import pytest

from producer.row_comparison import compare_rows, first_difference


@pytest.mark.parametrize(
    ("mine", "theirs", "text"),
    [
        ([1, 2, 3], [1, 5, 3], "2 / 5 at 1"),
        ([1, 2], [1, 2, 3], "end / 3 at 2"),
        ("abc", "abd", "'c' / 'd' at character 2"),
        (0.1 + 0.2, 0.3, "0.30000000000000004 / 0.3"),
        ({"cycles": 2, "bonus": 1}, {"cycles": 3, "bonus": 1}, "cycles 2 / 3"),
        (None, {"type": "E"}, "None / {'type': 'E'}"),
        ("x" * 100, "y", "'" + "x" * 58 + "… / 'y' at character 0"),
    ],
)
def test_a_difference_says_where(mine: object, theirs: object, text: str) -> None:
    (found,) = compare_rows({"a": mine, "same": 1}, {"a": theirs, "same": 1}, ["a", "same"])
    assert (found.field, found.text, str(found)) == ("a", text, f"a: {text}")


def test_what_is_the_same_is_no_difference() -> None:
    old, new = {"acceptance": {"cycles": 1, "z": math.nan}}, {"acceptance": {"cycles": 1, "z": math.nan, "since_later": 5}}
    assert compare_rows(old, new, ["acceptance", "absent"]) == []
    assert compare_rows({"x": None}, {}, ["x"]) == []


def test_the_first_difference_of_lists() -> None:
    assert [first_difference(*pair) for pair in (([], []), ([1], []), ([1, 2], [1, 3]))] == [None, 0, 1]

import pytest

from producer.column_path import ColumnPath
from schemas.errors import InputError

RECORD = {"prompt": "p", "turns": ["first", "second"], "meta": {"question": [{"text": "deep"}]}, "none": None}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("prompt", "p"),
        ("turns[0]", "first"),
        ("turns[-1]", "second"),
        ("meta.question[0].text", "deep"),
        ("none", None),
    ],
)
def test_a_path_leads_to_its_value(text, value):
    assert ColumnPath.parse(text).of(RECORD) == value


@pytest.mark.parametrize(
    "text", ["", "[0]", ".a", "a.", "a[", "a[x]", "a[0", "a]", "a..b", "a[0]b", "a[1.5]", "a[]", "a[99999999999]", "a['b']"]
)
def test_what_is_no_path_is_refused_with_the_received_text(text):
    with pytest.raises(InputError, match="like turns") as caught:
        ColumnPath.parse(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("other", "no column 'other'"),
        ("turns[2]", "turns has 2 items"),
        ("turns[-3]", "turns has 2 items"),
        ("turns.a", "turns is a list, not an object"),
        ("prompt[0]", "prompt is text, not a list"),
        ("meta.answer", "meta has no 'answer'"),
        ("meta.question[0].text.x", r"meta.question\[0\].text is text"),
        ("none.x", "none is null"),
    ],
)
def test_a_path_that_leads_nowhere_says_where_it_ends(text, says):
    with pytest.raises(InputError, match=says):
        ColumnPath.parse(text).of(RECORD)


def test_only_a_column_as_it_stands_is_plain():
    assert ColumnPath.parse("turns").plain
    assert not ColumnPath.parse("turns[0]").plain

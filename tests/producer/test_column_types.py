import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from producer.column_types import MAX_FIELDS, ColumnType

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | st.text("ab", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
    max_leaves=8,
)


def typed(values):
    column = ColumnType()
    for value in values:
        column.see(value)
    return column


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([True, None, False], pa.bool_()),
        ([1, -(2**63), 2**63 - 1], pa.int64()),
        ([1, 2.5], pa.float64()),
        ([2.5, 1], pa.float64()),
        (["a", None], pa.string()),
        ([None, None], pa.string()),
        ([[1], [], None], pa.list_(pa.int64())),
        ([[1], [0.5]], pa.list_(pa.float64())),
        ([[]], pa.list_(pa.string())),
        ([{"a": 1}, {"b": "x", "a": None}], pa.struct([("a", pa.int64()), ("b", pa.string())])),
        ([[{"a": [True]}]], pa.list_(pa.struct([("a", pa.list_(pa.bool_()))]))),
    ],
)
def test_values_that_share_a_type_keep_it(values, expected):
    column = typed(values)
    assert column.arrow() == expected
    assert not column.is_json_text
    assert column.array(values).to_pylist() == pa.array(values, expected).to_pylist()


@pytest.mark.parametrize(
    "values",
    [
        [1, "a"],
        [True, 1],
        [[1], 1],
        [{"a": 1}, [1]],
        [[1, "a"]],
        [{"a": 1}, {"a": "x"}],
        [{}],
        [[{}]],
        [2**63],
        [2**53 + 1, 0.5],
        [0.5, 2**53 + 1],
        [{str(key): 1} for key in range(MAX_FIELDS + 1)],
    ],
)
def test_values_without_a_common_type_are_json_text_that_gives_them_back(values):
    column = typed(values)
    assert column.is_json_text
    assert column.arrow() == pa.string()
    assert [json.loads(text) for text in column.array(values).to_pylist()] == values


@given(st.lists(JSON_VALUES, max_size=6))
def test_any_values_of_a_column_fit_its_type_and_none_is_lost(values):
    column = typed(values)
    array = column.array(values)
    assert array.type == column.arrow()
    back = array.to_pylist()
    if column.is_json_text:
        back = [None if text is None else json.loads(text) for text in back]
    assert [without_nulls(value) for value in back] == [without_nulls(value) for value in values]


@given(st.lists(JSON_VALUES, max_size=6), st.randoms())
def test_whether_a_column_is_json_text_does_not_depend_on_the_order_of_rows(values, random):
    shuffled = list(values)
    random.shuffle(shuffled)
    assert typed(values).is_json_text == typed(shuffled).is_json_text


def without_nulls(value):
    """An absent key and a null one are the same in a struct."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


@given(st.lists(JSON_VALUES, max_size=12), st.integers(0, 12))
def test_types_of_two_parts_join_to_the_type_of_the_whole(values, at):
    joined = typed(values[:at])
    joined.join(typed(values[at:]))
    assert (joined.arrow(), joined.is_json_text) == (typed(values).arrow(), typed(values).is_json_text)

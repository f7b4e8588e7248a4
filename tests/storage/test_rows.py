"""The catalogue's rows: every kind comes back as it was, and as FORMAT.md has it."""

import cbor2
import pytest
from hypothesis import given, strategies as st

from durastreamd.storage.log import Placement
from durastreamd.storage.rows import (
    BucketEndRow,
    BucketRow,
    Row,
    StrangeRow,
    StreamEndRow,
    StreamRow,
    decode_row,
    encode_row,
    latest,
)

NUMBERS = st.integers(0, 2**62)
PLACES = st.builds(Placement, NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.booleans())
ROWS: st.SearchStrategy[Row] = st.one_of(
    st.builds(
        lambda number, name, place: StreamRow([number, name], place), NUMBERS, st.text(), PLACES
    ),
    st.builds(StreamEndRow, NUMBERS),
    st.builds(BucketRow, st.text(), NUMBERS),
    st.builds(BucketEndRow, st.text()),
)


@given(ROWS)
def test_a_row_comes_back_as_it_was(row: Row) -> None:
    found = decode_row(cbor2.loads(cbor2.dumps(encode_row(row))))
    assert (type(found), found) == (type(row), row)


def test_rows_stand_in_the_file_as_format_md_says() -> None:
    place = Placement(10, 20, 30, 0, made=True)
    assert encode_row(StreamRow([7, "/a"], place)) == [0, [7, "/a"], [10, 20, 30, 0, True]]
    assert encode_row(StreamEndRow(7)) == [1, 7]
    assert encode_row(BucketRow("logs", 5)) == [2, "logs", 5]
    assert encode_row(BucketEndRow("logs")) == [3, "logs"]


@pytest.mark.parametrize(
    "item",
    [
        None,
        7,
        [],
        [4, "logs"],
        [1, "seven"],
        [2, "logs"],
        [3, 7],
        [0, [7, "/a"]],
        [0, [], [10, 20, 30, 0, True]],
        [0, ["seven"], [10, 20, 30, 0, True]],
        [0, [7, "/a"], [10, 20, 30, 0]],
        [0, [7, "/a"], [10, 20, 30, 0, True, 1]],
        [0, [7, "/a"], ["10", 20, 30, 0, True]],
    ],
)
def test_what_is_no_row_is_kept_as_it_stands(item: object) -> None:
    found = decode_row(item)
    assert found == StrangeRow(item)
    assert isinstance(found, StrangeRow)
    assert encode_row(found) == item


def test_a_later_row_takes_the_place_of_an_earlier_one() -> None:
    place = Placement(0, 0, 0, 0, made=False)
    old, other, new = StreamRow([7, "a"], place), BucketRow("logs", 1), StreamEndRow(7)
    assert list(latest([old, other, new]).items()) == [("logs", other), (7, new)]
    both = latest([StrangeRow(["a"]), StrangeRow(["b"]), BucketRow("['a']", 1)])
    assert len(both) == 3

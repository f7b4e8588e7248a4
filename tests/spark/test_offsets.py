"""Places, offsets and shares: pure arithmetic, any values."""

import json

import pytest
from hypothesis import given, strategies as st

from durastreamd.protocol.offsets import mint
from durastreamd.spark.errors import CheckpointError
from durastreamd.spark.server.offsets import (
    Begin,
    Cut,
    Offset,
    StreamPlace,
    initial,
    ranges,
    shares,
)

NUMBERS = st.integers(0, 10**12)
TOLD = st.builds(
    lambda token, n, b, life: StreamPlace(token or mint(b), n, b, incarnation=life),
    st.text(),
    NUMBERS,
    NUMBERS,
    st.text(),
)
COUNTED = st.builds(
    lambda t, n, k: StreamPlace(t, n + k, token_number=n), st.text(), NUMBERS, NUMBERS
)
PLACES = st.dictionaries(st.text(min_size=1), TOLD | COUNTED, max_size=4)
CUTS = st.builds(Cut, *[st.integers(0, 10**9)] * 4)


@given(PLACES, CUTS, st.text())
def test_an_offset_comes_back_from_the_checkpoint(
    places: dict[str, StreamPlace], cut: Cut, snapshot: str
) -> None:
    begins = {name: Begin(place, snapshot) for name, place in [*places.items()][:2]}
    made = Offset(places, begins, cut, leaving={*[*places][:1]})
    assert Offset.of(json.loads(json.dumps(made.to_json()))) == made


def test_an_offset_of_the_first_version_is_read_with_the_layout_it_had() -> None:
    entry = {"t": mint(9), "n": 3, "b": 9, "from": {"t": mint(0), "n": 0, "b": 0}}
    found = Offset.of({"v": 1, "cut": [2, 7], "streams": {"a": entry}})
    assert found.cut == Cut(2, 7, 0, 0), "each stream has a task of its own"
    assert found.places == {"a": StreamPlace(mint(9), 3, 9)}
    assert found.begins == {"a": Begin(StreamPlace(mint(0), 0, 0))}


@given(PLACES)
def test_the_text_does_not_depend_on_the_order_of_discovery(places: dict[str, StreamPlace]) -> None:
    turned = dict(reversed(places.items()))
    assert json.dumps(Offset(places).to_json()) == json.dumps(Offset(turned).to_json())


def test_the_first_offset_is_a_constant() -> None:
    assert initial() == {"v": 2, "streams": {}}
    assert Offset.of(initial()).first
    assert not Offset.of(Offset().to_json()).first


@pytest.mark.parametrize(
    "found", [{}, {"v": 3, "streams": {}}, {"v": 1, "streams": {"a": {"t": "x"}}}, {"v": 1}]
)
def test_what_is_not_ours_is_refused(found: dict[str, object]) -> None:
    with pytest.raises(CheckpointError):
        Offset.of(found)


def test_a_range_begins_where_its_end_says_or_where_the_last_one_ended() -> None:
    start = Offset({"a": StreamPlace("a1", 1, 10), "b": StreamPlace("b2", 2, 20)})
    end = Offset(
        {
            "a": StreamPlace("a5", 5, 50),
            "b": StreamPlace("b2", 2, 20),
            "c": StreamPlace("c3", 3, 30),
        },
        {"c": Begin(StreamPlace("c0", 0, 0)), "b": Begin(StreamPlace("b2", 2, 20), "snap")},
    )
    found = ranges(start, end)
    assert [(each.stream, each.messages, each.begin.snapshot) for each in found] == [
        ("a", 4, ""),
        ("b", 0, "snap"),
        ("c", 3, ""),
    ]


def test_a_range_that_goes_back_or_has_no_beginning_fails_loudly() -> None:
    end = Offset({"a": StreamPlace("a1", 1, 10)})
    with pytest.raises(CheckpointError, match="from message 9 back to 1"):
        ranges(Offset({"a": StreamPlace("a9", 9, 90)}), end)
    with pytest.raises(CheckpointError, match="does not say where stream a begins"):
        ranges(Offset(), end)


@given(st.integers(1, 10**9), st.dictionaries(st.text(), st.integers(0, 10**9), max_size=20))
def test_shares_serve_everyone_and_keep_the_limit_as_near_as_that_allows(
    limit: int, available: dict[str, int]
) -> None:
    found = shares(limit, available)
    assert found.keys() == available.keys()
    for name, size in available.items():
        assert (found[name] > 0) == (size > 0)
        assert found[name] <= size
    assert sum(found.values()) <= max(limit, 0) + len(available)
    if sum(available.values()) <= limit:
        assert found == available

"""The census: catalogue and journal together give the streams the server has; ranges are exact."""

from itertools import pairwise

from hypothesis import given, settings, strategies as st

from durastreamd.model.records import Create
from durastreamd.model.stream_state import Stream
from durastreamd.offline.verify.census import (
    Census,
    Ranges,
    Readers,
    joined,
    stream_in,
    take_census,
    without,
)
from durastreamd.offline.verify.verification import survey
from tests.support.damage import random_world

RANGES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=6)


def points(ranges: Ranges) -> set[int]:
    return {point for low, high in ranges for point in range(low, high)}


@given(RANGES, RANGES)
def test_ranges_are_sets_of_positions(some: Ranges, taken: Ranges) -> None:
    assert points(joined(some)) == points(some)
    assert points(without(some, taken)) == points(some) - points(taken)
    for found in (joined(some), without(some, taken)):
        assert all(low < high for low, high in found)
        assert all(one[1] <= two[0] for one, two in pairwise(found))


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 40))
def test_the_census_of_a_whole_directory_is_the_server_s(seed: int, steps: int) -> None:
    world = random_world(seed, steps)
    space = world.engine.namespace
    census = take_census(survey(world.disk))
    assert census.findings == []
    assert census.buckets == set(space.buckets)
    assert {s.id: (s.key, s.tail, s.messages, s.gone) for s in census.streams.values()} == {
        s.id: (s.key, s.tail, s.messages, s.gone) for s in space.by_id.values()
    }
    for stream in space.by_id.values():
        assert stream_in(census, stream.key) == stream.id


def made(number: int, tail: int, source: int = 0, position: int = 0) -> Stream:
    stream = Stream(Create(number, 0, 0, 1000, 0, 0, [], f"/{number}", "text/plain"))
    stream.source, stream.fork_position, stream.tail = source, position, tail
    return stream


def test_a_deleted_ancestor_goes_with_the_last_that_needs_it() -> None:
    census = Census()
    first, second, third = made(1, 10), made(2, 20, 1, 6), made(3, 30, 2, 15)
    for stream in (first, second, third):
        census.add(stream)
    first.gone = second.gone = True
    census.remove(third)
    assert census.streams == {}


def test_one_that_is_not_deleted_stays() -> None:
    census = Census()
    first, second = made(1, 10), made(2, 20, 1, 6)
    census.add(first)
    census.add(second)
    census.remove(second)
    assert list(census.streams) == [1]


def test_who_reads_a_stream_s_own_bytes() -> None:
    first, second, third = made(1, 10), made(2, 20, 1, 6), made(3, 30, 2, 15)
    first.gone = second.gone = True
    third.floor = 3
    readers = Readers({1: first, 2: second, 3: third})
    assert readers.ranges(first) == [(3, 6)]
    assert readers.ranges(second) == [(6, 15)]
    assert readers.ranges(third) == [(15, 30)]

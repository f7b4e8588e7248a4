"""Whose bytes a fork shows: each byte has one holder, whatever the chain looks like."""

from hypothesis import given, strategies as st

from durastreamd.model.lineage import Lineage
from durastreamd.model.records import Create
from durastreamd.model.stream_state import Stream


def made(number: int, tail: int, source: int = 0, position: int = 0) -> Stream:
    stream = Stream(Create(number, 0, 0, 1000, 0, 0, [], f"/{number}", "text/plain"))
    stream.source, stream.fork_position, stream.tail = source, position, tail
    return stream


def told(lineage: Lineage, stream: Stream) -> list[tuple[int, int, int]]:
    return [(part.holder.id, part.low, part.high) for part in lineage.parts(stream)]


def test_a_stream_that_is_no_fork_holds_all_of_itself() -> None:
    alone = made(1, 10)
    lineage = Lineage({1: alone})
    assert told(lineage, alone) == [(1, 0, 10)]
    assert lineage.depth(alone) == 0


def test_an_ancestor_that_holds_nothing_below_a_fork_is_passed_over() -> None:
    # 3 forked 2 where 2 begins, so that all below is 1's.
    streams = {1: made(1, 10), 2: made(2, 20, 1, 6), 3: made(3, 9, 2, 6)}
    lineage = Lineage(streams)
    assert told(lineage, streams[3]) == [(3, 6, 9), (1, 0, 6)]
    assert told(lineage, streams[2]) == [(2, 6, 20), (1, 0, 6)]
    assert lineage.depth(streams[3]) == 2


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5)), min_size=1, max_size=12))
def test_parts_join_without_gap_and_each_holder_has_its_own(steps: list[tuple[int, int]]) -> None:
    streams = {1: made(1, 10)}
    for number, (position, own) in enumerate(steps, 2):
        at = min(position, streams[number - 1].tail)
        streams[number] = made(number, at + own, number - 1, at)
    lineage = Lineage(streams)
    for stream in streams.values():
        found = told(lineage, stream)
        assert found[0] == (stream.id, stream.fork_position, stream.tail)
        assert [high for _, _, high in found[1:]] == [low for _, low, _ in found[:-1]]
        assert found[-1][1] == 0
        assert all(low < high for _, low, high in found[1:])
        assert lineage.depth(stream) == stream.id - 1


def test_a_source_that_is_gone_ends_the_parts_and_a_circle_ends_at_all() -> None:
    orphan = made(2, 20, 1, 6)
    assert told(Lineage({2: orphan}), orphan) == [(2, 6, 20)]
    one, other = made(1, 10, 2, 5), made(2, 10, 1, 5)
    lineage = Lineage({1: one, 2: other})
    assert lineage.depth(one) >= 1
    assert len(told(lineage, one)) <= 2


def test_what_ceased_to_exist_is_forgotten() -> None:
    streams = {1: made(1, 10), 2: made(2, 20, 1, 6)}
    lineage = Lineage(streams)
    assert lineage.depth(streams[2]) == 1
    lineage.forget(streams[2])
    streams[2] = made(2, 20)  # the id is never used again, but nothing relies on it
    assert lineage.depth(streams[2]) == 0
    assert told(lineage, streams[2]) == [(2, 0, 20)]

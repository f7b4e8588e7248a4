"""What a lost range means: nothing lost is served, and as much as can be is."""

from hypothesis import given, strategies as st

from durastreamd.model.lineage import Lineage
from durastreamd.model.records import Create
from durastreamd.model.stream_state import Stream
from durastreamd.offline.repair.losses import Verdict, judge, lost_of
from durastreamd.offline.verify.census import Ranges, joined


def made(number: int, tail: int, source: int = 0, position: int = 0, floor: int = 0) -> Stream:
    stream = Stream(Create(number, 0, 0, 1000, 0, 0, [], f"/{number}", "text/plain"))
    stream.source, stream.fork_position = source, position
    stream.tail, stream.floor = tail, floor
    return stream


def test_each_row_of_the_rule() -> None:
    stream = made(1, 100, floor=10)
    assert judge(stream, [], "newer") == Verdict(10, 100, [], [])
    # What follows the loss is kept, and what precedes it is whole but served no longer.
    assert judge(stream, [(40, 50)], "newer") == Verdict(50, 100, [(40, 50)], [(10, 40)])
    assert judge(stream, [(40, 50)], "older") == Verdict(10, 40, [(40, 50)], [(50, 100)])
    # Nothing follows: the tail is cut back. Nothing is left: empty at the old tail.
    assert judge(stream, [(40, 100)], "newer") == Verdict(10, 40, [(40, 100)], [])
    assert judge(stream, [(10, 100)], "newer") == Verdict(100, 100, [(10, 100)], [])
    assert judge(stream, [(10, 20)], "older") == Verdict(20, 100, [(10, 20)], [])


def test_a_fork_s_tail_is_never_cut_below_its_fork() -> None:
    fork = made(2, 100, 1, 40)
    assert judge(fork, [(30, 100)], "newer") == Verdict(100, 100, [(30, 100)], [(0, 30)])


LOST = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=5)


@given(LOST, st.integers(0, 60), st.integers(0, 60), st.sampled_from(("newer", "older")))
def test_nothing_lost_is_served_and_every_byte_is_accounted_for(
    some: Ranges, low: int, high: int, keep: str
) -> None:
    floor, tail = min(low, high), max(low, high)
    lost = joined([(max(first, floor), min(last, tail)) for first, last in some])
    found = judge(made(1, tail, floor=floor), lost, keep)
    assert floor <= found.floor <= found.tail <= tail
    served = set(range(found.floor, found.tail))
    gone = {at for first, last in found.destroyed for at in range(first, last)}
    hidden = {at for first, last in found.hidden for at in range(first, last)}
    assert not served & gone
    assert not hidden & (served | gone)
    assert served | gone | hidden == set(range(floor, tail))


def test_what_a_fork_inherited_is_lost_with_its_source() -> None:
    source, fork = made(1, 50), made(2, 80, 1, 40)
    both = Lineage({1: source, 2: fork})
    whole: dict[int, Ranges] = {1: [(0, 50)], 2: [(40, 80)]}
    assert lost_of(both, whole, fork) == []
    assert lost_of(both, {**whole, 1: [(0, 30)]}, fork) == [(30, 40)]
    assert lost_of(both, {**whole, 2: [(40, 60)]}, fork) == [(60, 80)]
    assert lost_of(both, {**whole, 1: [(0, 45)]}, fork) == [], "past the fork it reads nothing"
    assert lost_of(Lineage({2: fork}), whole, fork) == [(0, 40)]
    fork.floor = 35
    assert lost_of(both, {**whole, 1: [(0, 30)]}, fork) == [(35, 40)]

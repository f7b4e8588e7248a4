"""What a lost range means: nothing lost is served, and as much as can be is."""

from hypothesis import given, strategies as st

from durastreamd.model.lineage import Lineage
from durastreamd.model.records import Create, Snapshot
from durastreamd.model.stream_state import Stream
from durastreamd.offline.repair.losses import SIDES, judge, lost_of
from durastreamd.offline.verify.census import Ranges, joined


def made(number: int, tail: int, source: int = 0, position: int = 0, floor: int = 0) -> Stream:
    stream = Stream(Create(number, 0, 0, 1000, 0, 0, [], f"/{number}", "text/plain"))
    stream.source, stream.fork_position = source, position
    stream.tail, stream.floor = tail, floor
    return stream


def judged(stream: Stream, lost: Ranges, side: str) -> tuple[tuple[int, int], Ranges]:
    """Return what is served, and what is given up."""
    found = judge(stream, lost, lost, side)
    return found.served, found.given_up


def test_each_row_of_the_rule() -> None:
    stream = made(1, 100, floor=10)
    assert judged(stream, [(40, 50)], "newer") == ((50, 100), [(10, 40)])
    assert judged(stream, [(40, 50)], "older") == ((10, 40), [(50, 100)])
    assert judged(stream, [(40, 50)], "larger") == ((50, 100), [(10, 40)])
    assert judged(stream, [(90, 91)], "larger") == ((10, 90), [(91, 100)])
    # Of equals the newest; of three the longest.
    assert judged(stream, [(50, 60)], "larger") == ((60, 100), [(10, 50)])
    assert judged(stream, [(20, 21), (90, 91)], "larger") == ((21, 90), [(10, 20), (91, 100)])
    # Nothing follows: the tail is cut back. Nothing is left: empty at the old tail.
    assert judged(stream, [(40, 100)], "newer") == ((10, 40), [])
    assert judged(stream, [(10, 100)], "larger") == ((100, 100), [])
    assert judged(stream, [(10, 20)], "older") == ((20, 100), [])


def test_a_snapshot_is_the_beginning_of_the_older_side() -> None:
    stream = made(1, 100, floor=10)
    stream.snapshot = Snapshot(1, 10, 1, "text/plain", 0, 0)
    assert judged(stream, [(10, 100)], "larger") == ((10, 10), [])
    assert judged(stream, [(10, 20)], "older") == ((10, 10), [(20, 100)])
    assert judged(stream, [(10, 20)], "larger") == ((20, 100), [])
    assert judged(stream, [(50, 60)], "larger") == ((10, 50), [(60, 100)]), "it joins"
    stream.snapshot = Snapshot(1, 5, 1, "text/plain", 0, 0)  # with a hole before the floor
    assert judged(stream, [(10, 100)], "larger") == ((100, 100), [])


def test_the_other_choices_are_told() -> None:
    found = judge(made(1, 100), [(20, 30), (80, 90)], [], "larger")
    assert found.served == (30, 80)
    assert found.instead == {"older": (0, 20), "newer": (90, 100)}


LOST = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=5)


@given(
    some=LOST,
    low=st.integers(0, 60),
    high=st.integers(0, 60),
    side=st.sampled_from(SIDES),
    folded=st.booleans(),
)
def test_nothing_lost_is_served_and_every_byte_is_accounted_for(
    *, some: Ranges, low: int, high: int, side: str, folded: bool
) -> None:
    floor, tail = min(low, high), max(low, high)
    lost = joined([(max(first, floor), min(last, tail)) for first, last in some])
    if not lost:
        return
    stream = made(1, tail, floor=floor)
    if folded:
        stream.snapshot = Snapshot(1, floor, 1, "text/plain", 0, 0)
    found = judge(stream, lost, lost, side)
    assert floor <= found.served[0] <= found.served[1] <= tail
    served = set(range(*found.served))
    gone = {at for first, last in lost for at in range(first, last)}
    given_up = {at for first, last in found.given_up for at in range(first, last)}
    assert not served & gone
    assert not given_up & (served | gone)
    assert served | gone | given_up == set(range(floor, tail))
    if side == "larger":
        assert all(last - first <= len(served) for first, last in found.instead.values())


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

"""A view against the naive computation: over memory, segments and forks, JSON and binary."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given, settings, strategies as st

from durastreamd.engine.view import View
from durastreamd.model.draft import AppendCommand, Draft, Payload
from durastreamd.model.namespace import ForkPoint
from durastreamd.model.stream_state import Stream
from durastreamd.protocol.json_mode import page
from durastreamd.protocol.outcomes import Appended, Created
from tests.support.plain_model import cut
from tests.support.world import NOW, TINY, World


class Told(NamedTuple):
    """A record as it was written."""

    start: int
    size: int
    time_ms: int
    ordinal: int


@dataclass
class Naive:
    """A stream as two lists."""

    messages: list[bytes] = field(default_factory=list)
    records: list[Told] = field(default_factory=list)
    floor: int = 0

    @property
    def data(self) -> bytes:
        return b"".join(self.messages)

    @property
    def ends(self) -> list[int]:
        found = [0]
        for message in self.messages:
            found.append(found[-1] + len(message))
        return found


class Bench:
    """A world and the naive twin of each of its streams."""

    def __init__(self, *, json: bool) -> None:
        self.json = json
        self.world = World()
        self.twins: dict[str, Naive] = {}
        kind = "application/json" if json else "application/octet-stream"
        self.world.create("/0", content_type=kind)
        self.twins["/0"] = Naive()

    def stream(self, key: str) -> Stream:
        found = self.world.engine.namespace.by_key[key]
        assert isinstance(found, Stream)
        return found

    def view(self, key: str) -> View:
        return self.world.engine.view(self.stream(key))

    def each(self) -> Iterator[tuple[Naive, View]]:
        """Yield every stream's twin and a view of it."""
        for key, twin in self.twins.items():
            yield twin, self.view(key)

    def append(self, key: str, bodies: list[bytes]) -> None:
        """Append each body by a command of its own, all in one record."""
        self.world.now_ms += 10
        if self.json:
            bodies = [b'"%s",\n' % body.hex().encode() for body in bodies]
        twin, stream = self.twins[key], self.stream(key)
        draft = Draft(stream, TINY.producers_max)
        for body in bodies:
            outcome = draft.decide(AppendCommand(Payload(body), stream.content_type))
            assert isinstance(outcome, Appended)
        size = sum(map(len, bodies))
        told = Told(len(twin.data), size, self.world.now_ms, len(twin.messages))
        twin.records.append(told)
        twin.messages += bodies
        self.world.commit([draft.record(self.world.now_ms)])

    def fork(self, key: str, source: str, place: int, inside: int) -> None:
        """Fork at a retained boundary, or, where that is allowed, inside the message after it."""
        self.world.now_ms += 10
        twin = self.twins[source]
        anchors = [end for end in twin.ends if end >= twin.floor]
        anchor = anchors[place % len(anchors)]
        room = min((end for end in twin.ends if end > anchor), default=anchor) - anchor
        position = anchor + (inside if inside < room and not self.json else 0)
        ordinal = self.view(source).ordinal_at(anchor) + (position > anchor)
        point = ForkPoint(source, position, ordinal, anchor, position - anchor)
        assert isinstance(self.world.create(key, fork=point), Created)
        inherited = [told for told in twin.records if told.start < position]
        self.twins[key] = Naive(cut(twin.messages, position), inherited, twin.floor)

    def publish(self, key: str, place: int) -> None:
        self.world.now_ms += 10
        twin = self.twins[key]
        ends = [end for end in twin.ends if end >= twin.floor]
        twin.floor = ends[place % len(ends)]
        self.world.publish(key, twin.floor, b"folded")


# Binary messages are full of what separates JSON ones: it must mean nothing there.
BODY = st.one_of(
    st.binary(min_size=1, max_size=60),
    st.sampled_from([b",\n", b",", b"\n", b"a,\nb,\n", b"x" * 150]),
)
WHICH = st.integers(0, 3)
STEP = st.one_of(
    st.tuples(st.just("append"), WHICH, st.lists(BODY, min_size=1, max_size=4)),
    st.tuples(st.just("append"), WHICH, st.lists(BODY, min_size=1, max_size=4)),
    st.tuples(st.just("fork"), WHICH, st.integers(0, 20), st.integers(0, 3)),
    st.tuples(st.sampled_from(["flush", "checkpoint"])),
)
PUBLISH = st.tuples(st.just("publish"), WHICH, st.integers(0, 6))
KEPT = st.lists(STEP, min_size=3, max_size=14)
TRIMMED = st.lists(STEP | PUBLISH, min_size=3, max_size=14)
Steps = list[tuple[object, ...]]


def built(steps: Steps, *, json: bool) -> Bench:
    """Return a bench on which the steps were done; a number names one of the streams there are."""
    bench = Bench(json=json)
    for step in steps:
        keys = list(bench.twins)
        match step:
            case ("append", int(which), list(bodies)):
                bench.append(keys[which % len(keys)], bodies)
            case ("fork", int(which), int(place), int(inside)):
                bench.fork(f"/{len(keys)}", keys[which % len(keys)], place, inside)
            case ("publish", int(which), int(place)):
                bench.publish(keys[which % len(keys)], place)
            case ("flush",):
                bench.world.flush()
            case _:
                bench.world.checkpoint()
    return bench


quick = settings(max_examples=80)


@given(steps=TRIMMED, json=st.booleans(), low=st.integers(0, 500), size=st.integers(0, 500))
@quick
def test_any_range_reads_as_it_was_written(
    steps: Steps,
    json: bool,  # noqa: FBT001  # hypothesis calls by name
    low: int,
    size: int,
) -> None:
    for twin, view in built(steps, json=json).each():
        tail = len(twin.data)
        assert (view.floor, view.tail) == (twin.floor, tail)
        start = min(twin.floor + low, tail)
        assert view.read(start, min(start + size, tail)) == twin.data[start : start + size]
        if start < min(start + size, tail):
            lent = view.lend(start, min(start + size, tail), memoryview(bytearray(size)))
            assert bytes(lent) == twin.data[start : start + size]
        assert view.read(twin.floor, tail) == twin.data[twin.floor :]


@given(steps=TRIMMED, json=st.booleans())
@quick
def test_boundaries_are_where_messages_end(
    steps: Steps,
    json: bool,  # noqa: FBT001
) -> None:
    for twin, view in built(steps, json=json).each():
        ends = [end for end in twin.ends if end >= twin.floor]
        places = range(twin.floor, len(twin.data) + 1)
        assert [place for place in places if view.is_boundary(place)] == ends
        assert list(view.messages(twin.floor)) == list(pairwise(ends))
        assert not view.is_boundary(len(twin.data) + 1)


@given(steps=TRIMMED, json=st.booleans(), bytes_max=st.integers(1, 250))
@quick
def test_page_ends_after_the_last_message_that_fits(
    steps: Steps,
    json: bool,  # noqa: FBT001
    bytes_max: int,
) -> None:
    for twin, view in built(steps, json=json).each():
        for start in [end for end in twin.ends if twin.floor <= end < len(twin.data)]:
            fitting = [end for end in twin.ends if start < end <= start + bytes_max]
            following = min(end for end in twin.ends if end > start)
            assert view.page_end(start, bytes_max) == max(fitting, default=following)


@given(steps=TRIMMED, json=st.booleans())
@quick
def test_ordinal_counts_the_messages_before_a_boundary(
    steps: Steps,
    json: bool,  # noqa: FBT001
) -> None:
    for twin, view in built(steps, json=json).each():
        for ordinal, end in enumerate(twin.ends):
            if end >= twin.floor:
                assert view.ordinal_at(end) == ordinal


@given(steps=TRIMMED, json=st.booleans())
@quick
def test_a_message_is_found_by_its_number(
    steps: Steps,
    json: bool,  # noqa: FBT001
) -> None:
    for twin, view in built(steps, json=json).each():
        for number, end in enumerate(twin.ends):
            assert view.position_of_message(number) == max(end, twin.floor)
        assert view.position_of_message(len(twin.ends) + 5) == len(twin.data)


@given(steps=TRIMMED, json=st.booleans())
@quick
def test_span_is_the_record_that_holds_the_byte(
    steps: Steps,
    json: bool,  # noqa: FBT001
) -> None:
    for twin, view in built(steps, json=json).each():
        for place in range(twin.floor, len(twin.data)):
            span = view.span_at(place)
            told = [told for told in twin.records if told.start <= place][-1]
            assert span is not None
            assert Told(*span[:4]) == told
        assert view.span_at(len(twin.data)) is None
        spans = [Told(*span[:4]) for span in view.spans(twin.floor)]
        ends = [*(told.start for told in twin.records[1:]), len(twin.data)]
        kept = zip(twin.records, ends, strict=False)
        assert spans == [told for told, end in kept if end > twin.floor]


@given(steps=KEPT, json=st.booleans())
@quick
def test_time_is_found_where_the_first_record_at_or_after_it_begins(
    steps: Steps,
    json: bool,  # noqa: FBT001
) -> None:
    bench = built(steps, json=json)
    for twin, view in bench.each():
        for time_ms in range(NOW, bench.world.now_ms + 10, 5):
            later = [told.start for told in twin.records if told.time_ms >= time_ms]
            assert view.position_at(time_ms) == min(later, default=len(twin.data))


@pytest.mark.parametrize("forked", [False, True])
def test_time_is_found_in_what_retention_has_left(
    forked: bool,  # noqa: FBT001
) -> None:
    bench = Bench(json=False)
    for number in range(8):
        bench.append("/0", [b"x" * 60])
        if number % 2:
            bench.world.flush()
    bench.publish("/0", 5)
    bench.world.checkpoint()
    key = "/0"
    if forked:
        bench.fork("/1", "/0", 2, 0)
        key = "/1"
    twin, view = bench.twins[key], bench.view(key)
    assert twin.floor == 300
    for time_ms in range(NOW, bench.world.now_ms + 10, 5):
        later = [told.start for told in twin.records if told.time_ms >= time_ms]
        expected = max(min(later, default=len(twin.data)), twin.floor)
        assert max(view.position_at(time_ms), twin.floor) == expected


@given(steps=KEPT, more=st.lists(BODY, min_size=1, max_size=6))
@quick
def test_view_does_not_see_what_came_after_it(steps: Steps, more: list[bytes]) -> None:
    bench = built(steps, json=False)
    views = {key: bench.view(key) for key in bench.twins}
    before = {key: (twin.data, twin.ends) for key, twin in bench.twins.items()}
    for key in views:
        for body in more:
            bench.append(key, [body])
            bench.world.flush()
    for key, view in views.items():
        data, ends = before[key]
        assert view.read(0, view.tail) == data
        assert list(view.messages(0)) == list(pairwise(ends))


@given(steps=TRIMMED, bytes_max=st.integers(1, 300))
@quick
def test_pages_of_json_are_arrays_without_gap_or_overlap(steps: Steps, bytes_max: int) -> None:
    for twin, view in built(steps, json=True).each():
        at = twin.floor
        pages: list[bytes] = []
        while at < view.tail:
            end = view.page_end(at, bytes_max)
            pages.append(page(view.read(at, end)))
            at = end
        inner = b"".join(got[1:-1] + b",\n" for got in pages)
        assert inner == twin.data[twin.floor :]
        assert all(got.startswith(b"[") and got.endswith(b"]") for got in pages)


def test_large_json_message_is_found_across_strides() -> None:
    bench = Bench(json=True)
    sizes = [70_000, 3, 32_767, 140_000, 1, 65_000]
    for size in sizes:
        bench.append("/0", [b"x" * (size // 2 + 1)])
    twin, view = bench.twins["/0"], bench.view("/0")
    for start, end in pairwise(twin.ends):
        assert view.page_end(start, 10) == end
        assert view.page_end(start, end - start) == end
        assert view.page_end(start, max(end - start - 1, 1)) == end
    for bytes_max in (65_535, 65_536, 65_537, 131_072, 200_000):
        fitting = [end for end in twin.ends if 0 < end <= bytes_max]
        assert view.page_end(0, bytes_max) == max(fitting, default=twin.ends[1])


def test_separator_across_two_strides_is_found() -> None:
    bench = Bench(json=True)
    for size in (2, 32_770, 40_000, 10):
        bench.append("/0", [b"x" * size])
    _, small, large, third, _ = bench.twins["/0"].ends
    view = bench.view("/0")
    stride = 64 * 1024
    for around in range(-4, 5):
        # Looking back from a limit inside the large message to the end of the small one.
        assert view.page_end(0, min(small + stride + around, large - 1)) == small
        # Looking ahead from it to the large one's own end.
        ahead = large - small - stride + around
        assert 0 < ahead < large - small
        assert view.page_end(small, ahead) == large
        assert view.page_end(large, ahead) == third


def test_place_just_above_a_trimmed_floor_is_no_boundary() -> None:
    bench = Bench(json=True)
    bench.append("/0", [b"x" * 150])
    bench.publish("/0", 1)
    bench.world.checkpoint()
    bench.append("/0", [b"y"])
    view = bench.view("/0")
    assert view.floor == bench.twins["/0"].ends[1]
    assert [view.is_boundary(view.floor + above) for above in (0, 1, 2)] == [True, False, False]

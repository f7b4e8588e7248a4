"""Live reads: nothing is skipped, nothing comes twice, every wait has an end."""

import base64
import json

import h11
import pytest
import trio
from hypothesis import given, settings, strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from durastreamd.service.limits import Limits, ReadLimits
from tests.service.events import Follow, Parser
from tests.service.harness import BINARY, CLOSE, JSON, TEXT, HungUpError, Site, serving
from tests.support.patience import PATIENCE_S

Clock = MockClock
LONG_POLL_S = 2.0
SMALL = ReadLimits(event_bytes_max=4096, piece_bytes=4096)


# --- long-poll ---


@pytest.mark.parametrize("closing", [False, True])
async def test_append_around_the_time_out_is_never_skipped(
    autojump_clock: Clock, *, closing: bool
) -> None:
    """The append lands a little before, at, and a little after the moment the poll gives up."""
    async with serving(Limits(reads=ReadLimits(long_poll_s=LONG_POLL_S))) as site:
        answered = {await race(site, number, closing=closing) for number in range(200)}
    assert answered == {200, 204}


async def race(site: Site, number: int, *, closing: bool) -> int:
    """Have one append meet the end of one poll; return the poll's status."""
    name = f"s{number}"
    start = (await site.make(name, TEXT, b"hello")).next
    poll = await site.open(f"{name}?offset={start}&live=long-poll")
    await wait_all_tasks_blocked()
    await trio.sleep(LONG_POLL_S + (number % 21 - 10) * 1e-9 * 10 ** (number // 25))
    appending = site.connect()
    head = {**TEXT, **CLOSE} if closing else TEXT
    await appending.send("POST", f"/v1/stream/{name}", head, b"world!")
    reply = await poll.whole()
    assert (await appending.whole()).status == 204
    if reply.status == 204:
        assert reply.next == start
        assert reply.get("Stream-Closed") is None, "closed, but not at this offset"
    else:
        assert (reply.status, reply.body, reply.next) == (200, b"world!", f"{11:016d}")
    assert (await site.get(f"{name}?offset={start}")).body == b"world!"
    poll.hang_up()
    appending.hang_up()
    return reply.status


async def test_append_is_not_shown_before_it_is_durable(autojump_clock: Clock, site: Site) -> None:
    start = (await site.make("s")).next
    await site.bench.hold()
    poll = await site.open(f"s?offset={start}&live=long-poll")
    follow = Follow(await site.open(f"s?offset={start}&live=sse"))
    assert (await follow.pair())[0] == b""
    appending = site.connect()
    await appending.send("POST", "/v1/stream/s", TEXT, b"later")
    await trio.sleep(5)
    assert (await site.get("s?offset=-1")).body == b""
    assert poll.reply.status == 0
    site.bench.writer.release()
    assert (await poll.whole()).body == b"later"
    assert (await follow.pair())[0] == b"later"
    assert (await appending.whole()).status == 204


async def test_long_poll_of_an_offset_past_the_end_waits_at_the_end(
    autojump_clock: Clock, site: Site
) -> None:
    await site.make("s", TEXT, b"hello")
    poll = await site.open(f"s?offset={999:016d}&live=long-poll")
    await wait_all_tasks_blocked()
    await site.add("s", b"more")
    assert (await poll.whole()).body == b"more"


@pytest.mark.parametrize("anew", [False, True])
async def test_long_poll_of_a_stream_that_is_deleted_is_told(
    autojump_clock: Clock, site: Site, *, anew: bool
) -> None:
    await site.make("s", TEXT, b"hello")
    poll = await site.open("s?offset=now&live=long-poll")
    await wait_all_tasks_blocked()
    begun = trio.current_time()
    await site.ask("DELETE", "s")
    if anew:
        await site.make("s", TEXT, b"other bytes")
    assert (await poll.whole()).status == 404
    assert trio.current_time() - begun < 1


async def test_reader_that_hangs_up_leaves_nothing_behind(site: Site) -> None:
    await site.make("s")
    readers = [await site.open(f"s?offset=-1&live={live}") for live in ("sse", "long-poll")]
    while site.bench.streams.follower_count() < len(readers):
        await trio.lowlevel.checkpoint()
    for reader in readers:
        reader.hang_up()
    with trio.fail_after(PATIENCE_S):
        while site.bench.streams.follower_count():
            await trio.sleep(0.001)


async def test_drain_answers_polls_and_ends_events(autojump_clock: Clock, site: Site) -> None:
    await site.make("s", TEXT, b"hello")
    polls = [await site.open("s?offset=now&live=long-poll") for _ in range(5)]
    follows = [Follow(await site.open("s?offset=-1&live=sse")) for _ in range(5)]
    await wait_all_tasks_blocked()
    begun = trio.current_time()
    site.app.live.end_all()
    for poll in polls:
        reply = await poll.whole()
        assert (reply.status, reply.next) == (204, f"{5:016d}")
    for follow in follows:
        assert [event.kind for event in await follow.to_the_end()] == ["data", "control"]
    assert trio.current_time() == begun
    at_once = await site.get("s?offset=now&live=long-poll")
    assert (at_once.status, at_once["Retry-After"]) == (503, "1")


# --- events: the same bytes on the other side ---

LINES = st.sampled_from(["\r", "\n", "\r\n", " ", "  ", "data:", "event: control", ":", "id: 9"])
TEXTS = st.lists(LINES | st.text(st.characters(exclude_categories=["Cs"])), min_size=1).map("".join)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner),
    max_leaves=5,
)


async def sent_and_read(head: dict[str, str], bodies: list[bytes]) -> list[bytes]:
    """Append bodies, half before and half after a reader came; return what it got, by event."""
    async with serving() as site:
        await site.make("s", head)
        half = len(bodies) // 2
        for body in bodies[:half]:
            await site.add("s", body, head)
        follow = Follow(await site.open("s?offset=-1&live=sse"))
        found: list[bytes] = []
        data, control = await follow.pair()
        if half:
            found.append(data)
        for body in bodies[half:]:
            assert control["upToDate"] is True
            tail = (await site.add("s", body, head)).next
            data, control = await follow.pair()
            assert control["streamNextOffset"] == tail
            found.append(data)
        await site.add("s", b"", CLOSE)
        assert (await follow.pair())[1]["streamClosed"] is True
        assert await follow.event() is None
        kinds = [event.kind for event in follow.events]
        assert kinds.count("data") == len(found)
        assert all(kinds[at + 1] == "control" for at, kind in enumerate(kinds) if kind == "data")
        return found


def run(head: dict[str, str], bodies: list[bytes]) -> list[bytes]:
    return trio.run(sent_and_read, head, bodies, clock=MockClock(autojump_threshold=0))


def as_lines(text: str) -> str:
    """Return text as events can carry it: they know one line end."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


@settings(max_examples=60)
@given(st.lists(TEXTS.filter(bool), min_size=1, max_size=4))
def test_text_passes_through_events(texts: list[str]) -> None:
    found = run(TEXT, [text.encode() for text in texts])
    half = len(texts) // 2
    expected = ["".join(texts[:half]), *texts[half:]] if half else texts
    assert [data.decode() for data in found] == [as_lines(text) for text in expected]


@settings(max_examples=40)
@given(st.lists(st.binary(min_size=1), min_size=1, max_size=4))
def test_bytes_pass_through_events(bodies: list[bytes]) -> None:
    assert b"".join(run(BINARY, bodies)) == b"".join(bodies)


@settings(max_examples=40)
@given(st.lists(st.lists(VALUES, min_size=1, max_size=3), min_size=1, max_size=4))
def test_json_passes_through_events(batches: list[list[object]]) -> None:
    found = run(JSON, [json.dumps(batch, indent=1).encode() for batch in batches])
    values = [value for data in found for value in json.loads(data)]
    assert values == [value for batch in batches for value in batch]


@given(TEXTS, st.integers(1, 9))
def test_parser_does_not_depend_on_how_bytes_arrive(text: str, step: int) -> None:
    data = f"event: data\ndata:{text}\n\n: c\n\n".encode()
    whole, pieces = Parser(), Parser()
    expected = whole.feed(data)
    found = [each for at in range(0, len(data), step) for each in pieces.feed(data[at : at + step])]
    assert found == expected


# --- events: time and place ---


@pytest.mark.parametrize("body", [b"", b"the end"])
async def test_closure_ends_the_events_at_once(
    autojump_clock: Clock, site: Site, body: bytes
) -> None:
    await site.make("s", TEXT, b"hello")
    follow = Follow(await site.open("s?offset=now&live=sse"))
    await follow.pair()
    begun = trio.current_time()
    await site.add("s", body, {**TEXT, **CLOSE})
    data, control = await follow.pair()
    assert (data, control["streamClosed"]) == (body, True)
    assert "streamCursor" not in control
    assert await follow.event() is None
    assert trio.current_time() == begun


async def test_quiet_events_have_a_heartbeat_and_an_end(autojump_clock: Clock, site: Site) -> None:
    await site.make("s", TEXT, b"hello")
    follow = Follow(await site.open("s?offset=-1&live=sse"))
    begun = trio.current_time()
    beats = []
    while not follow.connection.reply.ended:
        seen = len(follow.parser.comments)
        follow.events += follow.parser.feed(await follow.connection.step())
        if len(follow.parser.comments) > seen:
            beats.append(round(trio.current_time() - begun))
    assert beats == [15, 30, 45]
    assert 59 <= trio.current_time() - begun <= 61
    assert [event.kind for event in follow.events] == ["data", "control"]


async def test_events_go_on_where_the_last_id_says(autojump_clock: Clock, site: Site) -> None:
    await site.make("s", TEXT, b"one")
    follow = Follow(await site.open("s?offset=-1&live=sse"))
    await follow.pair()
    last = follow.events[-1].last_id
    follow.connection.hang_up()
    await site.add("s", b"two")
    again = Follow(await site.open("s?offset=-1&live=sse", {"Last-Event-ID": last}))
    assert (await again.pair())[0] == b"two"
    for odd in ("", "x", "-1", "now"):  # not ours: the URL counts
        other = Follow(await site.open("s?offset=-1&live=sse", {"Last-Event-ID": odd}))
        assert (await other.pair())[0] == b"onetwo"


async def test_reader_at_the_end_gets_one_control_first(autojump_clock: Clock, site: Site) -> None:
    await site.make("s", TEXT, b"hello")
    follow = Follow(await site.open("s?offset=now&live=sse&cursor=999999999"))
    data, control = await follow.pair()
    assert (data, control["upToDate"]) == (b"", True)
    assert int(control["streamCursor"]) > 999999999
    await site.add("s", b"x")
    assert (await follow.pair())[0] == b"x"


@pytest.mark.parametrize("anew", [False, True])
async def test_events_of_a_stream_that_is_deleted_end(
    autojump_clock: Clock, site: Site, *, anew: bool
) -> None:
    await site.make("s", TEXT, b"hello")
    follow = Follow(await site.open("s?offset=-1&live=sse"))
    await follow.pair()
    begun = trio.current_time()
    await site.ask("DELETE", "s")
    if anew:
        await site.make("s", TEXT, b"other bytes, and more of them")
    assert await follow.event() is None
    assert trio.current_time() == begun
    assert all("streamClosed" not in event.data for event in follow.events)


@pytest.mark.parametrize("head", [TEXT, BINARY, JSON])
async def test_slow_reader_gets_every_byte_once(
    autojump_clock: Clock, head: dict[str, str]
) -> None:
    async with serving(Limits(reads=SMALL)) as site:
        await site.make("s", head)
        follow = Follow(await site.open("s?offset=-1&live=sse", buffer_bytes=4096))
        await follow.pair()
        bodies = [b'"%04d%b"' % (number, b"x" * (number * 37 % 900)) for number in range(200)]
        for body in bodies:
            await site.add("s", body, head)
        await site.add("s", b"", CLOSE)
        positions, found = [0], b""
        closed = False
        while not closed:
            data, control = await follow.pair()
            closed = "streamClosed" in control
            positions.append(int(control["streamNextOffset"]))
            found += data[1:-1] + b",\n" if data and head is JSON else data
            await trio.sleep(0.01)
        assert positions == sorted(positions)
        assert found == b"".join(body + b",\n" if head is JSON else body for body in bodies)


async def test_delivery_on_the_spot_and_by_the_task_interleave(autojump_clock: Clock) -> None:
    """Small batches go out directly, big ones through the reader's task; order must hold."""
    async with serving(Limits(reads=SMALL)) as site:
        await site.make("s", BINARY)
        follows = [
            Follow(await site.open("s?offset=-1&live=sse", buffer_bytes=size))
            for size in (4096, 8192, 65536, None)
        ]
        for follow in follows:
            await follow.pair()
        sizes = [10, 5000, 20, 30, 9000, 4096, 4097, 1, 2, 3, 6000, 40]
        total = b""
        for number, size in enumerate(sizes * 6):
            total += bytes([number]) * size
            await site.add("s", bytes([number]) * size, BINARY)
            for follow in follows[number % 4 :]:
                with trio.move_on_after(0.001):
                    await follow.pair()
        await site.add("s", b"", CLOSE)
        for follow in follows:
            await follow.to_the_end()
            assert joined(follow) == total


async def test_delivery_waits_for_the_rest_of_the_one_before(autojump_clock: Clock) -> None:
    """The kernel took a part, then its buffer is emptied just when the next batch is committed."""
    async with serving() as site:
        await site.make("s", BINARY)
        follow = Follow(await site.open("s?offset=-1&live=sse", buffer_bytes=4096))
        await follow.pair()
        bodies = [bytes([number]) * 30_000 for number in range(80)]
        for first, second in zip(bodies[::2], bodies[1::2], strict=True):
            await site.add("s", first, BINARY)  # more than the buffer holds
            await site.bench.hold()
            appending = site.connect()
            await appending.send("POST", "/v1/stream/s", BINARY, second)
            await wait_all_tasks_blocked()
            follow.connection.take_nowait()
            site.bench.writer.release()
            assert (await appending.whole()).status == 204
            with trio.move_on_after(1):
                await follow.pair()
                await follow.pair()
        await site.add("s", b"", CLOSE)
        await follow.to_the_end()
        assert joined(follow) == b"".join(bodies)


def joined(follow: Follow) -> bytes:
    """Return the bytes of all data events; controls must say the same place."""
    found = b""
    for data, control in zip(follow.events, follow.events[1:], strict=False):
        if data.kind == "data":
            assert control.kind == "control"
            found += base64.b64decode(data.data)
            assert int(control.last_id) == len(found)
    return found


async def test_response_that_ends_while_its_reader_stalls_is_not_taken_for_complete(
    autojump_clock: Clock,
) -> None:
    """After 60 s a send may be under way: a cut event must not be followed by a proper end."""
    async with serving(Limits(reads=ReadLimits(sse_s=5))) as site:
        await site.make("s", TEXT, b"x" * 200_000)
        follow = Follow(await site.open("s?offset=-1&live=sse", buffer_bytes=4096))
        await follow.connection.head()
        await trio.sleep(10)
        with pytest.raises((HungUpError, h11.RemoteProtocolError)):
            await follow.to_the_end()
        assert follow.events == []


async def test_reader_that_stalls_during_the_closure_is_told_of_it(autojump_clock: Clock) -> None:
    async with serving() as site:
        await site.make("s", TEXT, b"x" * 100_000)
        follow = Follow(await site.open("s?offset=-1&live=sse", buffer_bytes=4096))
        await follow.connection.head()
        await wait_all_tasks_blocked()
        await site.add("s", b"", CLOSE)
        assert "streamClosed" in (await follow.to_the_end())[-1].data

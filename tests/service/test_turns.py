"""No request holds the event loop for more than a turn's work, whatever a stream holds.

Work is counted, not timed: bytes that are read, scanned, parsed, encoded, copied, summed or handed
to the kernel between two turns of the loop. What a thread would do, the writer's included, is not
counted: here it runs inline.
"""

import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from durastreamd.engine import engine, view as views
from durastreamd.engine.view import TURN_BYTES, View
from durastreamd.http.gathering import LARGE_BYTES, Gathering
from durastreamd.http.transport import PlainTransport
from durastreamd.protocol import Data, json_mode, offsets, sse
from durastreamd.service.limits import Limits, ReadLimits, WriteLimits
from durastreamd.storage import journal
from durastreamd.storage.blobs import BlobWriter
from durastreamd.streams import committer
from durastreamd.streams.registry import Streams
from tests.service.harness import BINARY, JSON, NOW, PREFIX, TEXT, Reply, Site, serving
from tests.support.held_writer import HeldWriter, append

pytestmark = pytest.mark.slow

MIB = 1024 * 1024
MESSAGE_BYTES = 6 * MIB
# A job's work, what follows from it (a piece encoded), and what is handed to the kernel.
TURN_BYTES_MAX = 2 * TURN_BYTES
BODY_BYTES = 16 * MIB  # the largest body here, to have the tests short
LIMITS = Limits(
    reads=ReadLimits(gzip_bytes_max=64 * MIB), writes=WriteLimits(append_bytes_max=BODY_BYTES)
)
COPIED_BYTES = 256 * 1024  # of a batch, what is longer is written from where it is
GZIP = {"Accept-Encoding": "gzip"}
LINES = {"Accept": "application/x-ndjson"}
FRAMED = {"Accept": "application/vnd.durastream.messages"}


class Turns(trio.abc.Instrument):
    """Counts the work of each turn."""

    def __init__(self) -> None:
        self.most = 0
        self.total = 0
        self.aside = 0  # done in threads
        self._turn = 0
        self._threads = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._turn = 0

    def add(self, size: int) -> None:
        if self._threads:
            self.aside += size
            return
        self._turn += size
        self.total += size
        self.most = max(self.most, self._turn)

    def begin(self) -> None:
        """Forget what was counted."""
        self.most = self.total = self.aside = 0

    def here(self, size: int) -> None:
        """Count work that was done on the loop for a thread that goes on with it."""
        threads, self._threads = self._threads, 0
        self.add(size)
        self._threads = threads

    @contextmanager
    def thread(self) -> Iterator[None]:
        """Be a thread."""
        self._threads += 1
        try:
            yield
        finally:
            self._threads -= 1

    async def blocking(self, _streams: Streams, job: Callable[[], Any]) -> Any:
        """Run a job as a thread would."""
        await trio.lowlevel.checkpoint()
        try:
            with self.thread():
                return job()
        finally:
            await trio.lowlevel.checkpoint()


def gathered(gathering: Gathering, piece: bytes) -> int:
    """Return how many bytes are copied when a body gets another piece."""
    size = gathering.size + len(piece)
    if gathering.size > LARGE_BYTES:
        return len(piece)
    return size if size > LARGE_BYTES else 0


def joined(parts: Sequence[Data]) -> int:
    """Return how many bytes are copied when parts are joined."""
    return sum(map(len, parts))


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Turns:
    made = Turns()

    def counted(kind: Any, name: str, cost: Callable[..., int]) -> None:
        real = getattr(kind, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            made.add(cost(*args))
            return real(*args, **kwargs)

        monkeypatch.setattr(kind, name, call)

    counted(View, "_spend", lambda _, size: size)
    counted(json_mode, "split", lambda body, *_: len(body))
    counted(sse.DataEvent, "_lines", lambda _, payload: len(payload))
    counted(base64, "b64encode", len)
    counted(PlainTransport, "send", lambda _, *pieces: sum(map(len, pieces)))
    counted(PlainTransport, "send_nowait", lambda _, data: len(data))
    counted(Gathering, "add", gathered)
    counted(Gathering, "whole", lambda body: body.size if body.size <= LARGE_BYTES else 0)
    counted(engine, "payload_sum", lambda data, *_: len(data))
    counted(committer, "joined", joined)
    counted(journal, "coalesce", lambda parts: sum(n for n in map(len, parts) if n <= COPIED_BYTES))
    write, do_one = BlobWriter.write, HeldWriter.do_one

    def write_blob(writer: BlobWriter, data: bytes) -> None:
        made.here(len(data))  # its pieces were joined on the loop
        made.add(len(data))
        write(writer, data)

    def do_one_aside(writer: HeldWriter) -> None:
        with made.thread():
            do_one(writer)

    monkeypatch.setattr(BlobWriter, "write", write_blob)
    monkeypatch.setattr(HeldWriter, "do_one", do_one_aside)
    monkeypatch.setattr(Streams, "blocking", lambda self, job: made.blocking(self, job))
    return made


@asynccontextmanager
async def holding(turns: Turns, kind: dict[str, str], bodies: list[bytes]) -> AsyncIterator[Site]:
    async with serving(LIMITS) as site:
        await site.make("s", kind)
        for body in bodies:
            await site.add("s", body, kind)
        turns.begin()
        trio.lowlevel.add_instrument(turns)
        try:
            yield site
        finally:
            trio.lowlevel.remove_instrument(turns)


async def events(site: Site) -> None:
    reader = await site.open("s?offset=-1&live=sse")
    found = b""
    while b'"upToDate":true' not in found:
        found = (found + await reader.step())[-200:]
    reader.hang_up()


async def catch_up(site: Site, head: dict[str, str]) -> None:
    assert (await site.get("s?offset=-1", head)).status == 200


async def long_poll(site: Site) -> None:
    assert (await site.get("s?offset=-1&live=long-poll")).status == 200


async def find(site: Site, lookup: str) -> None:
    assert (await site.head(f"s?{lookup}")).status == 200


async def fork(site: Site, offset: int, sub: int) -> None:
    fields = {"Stream-Forked-From": PREFIX + "s", "Stream-Fork-Offset": offsets.mint(offset)}
    fields["Stream-Fork-Sub-Offset"] = str(sub)
    made = await site.ask("PUT", f"fork-{offset}-{sub}", fields)
    assert made.status == 201, made.body


def told(reply: Reply) -> list[tuple[str, str]]:
    """Return what an answer says, but when."""
    return [field for field in reply.fields if field[0] != "date"]


def content_of(part: bytes) -> bytes:
    return part.partition(b"\r\n\r\n")[2]


def parts_of(reply: Reply) -> list[bytes]:
    """Return the parts of a multipart answer, none of another one."""
    if "boundary=" not in (reply.get("Content-Type") or ""):
        return []
    boundary = reply["Content-Type"].partition("boundary=")[2].encode()
    first, *parts, last = reply.body.split(b"--" + boundary)
    assert (first, last) == (b"", b"--\r\n")
    return [part.removesuffix(b"\r\n") for part in parts]


TINY = b"[" + b"0," * 700_000 + b"0]"
LONG = b'["' + b"x" * MESSAGE_BYTES + b'"]'
ENDLESS = b"\n" * MESSAGE_BYTES
STREAMS: dict[str, tuple[dict[str, str], list[bytes]]] = {
    "tiny": (JSON, [TINY, b"1"]),
    "long": (JSON, [b"0", LONG, b"1"]),
    "binary": (BINARY, [b"a", bytes(MESSAGE_BYTES), b"b"]),
    "lines": (TEXT, [b"a", ENDLESS, b"b"]),
}
FIRST = {"tiny": 0, "long": 3, "binary": 1, "lines": 1}  # where the large one, or the first, begins
ENDS = {  # a boundary as late as it can be
    "tiny": 3 * 700_001,
    "long": 3 + MESSAGE_BYTES + 4,
    "binary": 1 + MESSAGE_BYTES,
    "lines": 1 + MESSAGE_BYTES,
}
FURTHER = {"tiny": 699_000, "long": 1, "binary": MESSAGE_BYTES - 1, "lines": MESSAGE_BYTES - 1}
ASKED: dict[str, Callable[[Site, str], Awaitable[None]]] = {
    "plain": lambda site, _: catch_up(site, {}),
    "gzip": lambda site, _: catch_up(site, GZIP),
    "apart": lambda site, _: catch_up(site, LINES | FRAMED),
    "lines": lambda site, _: catch_up(site, LINES),
    "long-poll": lambda site, _: long_poll(site),
    "events": lambda site, _: events(site),
    "at message": lambda site, _: find(site, "at-message=2"),
    "at byte": lambda site, _: find(site, f"at-byte={MESSAGE_BYTES - 7}"),
    "at time": lambda site, _: find(site, "at=2027-01-15T08:00:01Z"),
    "at offset": lambda site, kind: find(site, f"at-offset={ENDS[kind]:016d}"),
    "fork": lambda site, kind: fork(site, ENDS[kind], 0),
    "fork further": lambda site, kind: fork(site, FIRST[kind], FURTHER[kind]),
}


@pytest.mark.parametrize("where", ["hot", "flushed"])
@pytest.mark.parametrize("kind", STREAMS)
async def test_no_request_does_more_than_a_turns_work_at_once(
    turns: Turns, autojump_clock: MockClock, kind: str, where: str
) -> None:
    assert NOW == 1_800_000_000_000, "at time: a second after the streams are made"
    async with holding(turns, *STREAMS[kind]) as site:
        if where == "flushed":
            await site.bench.streams.checkpoint()
            turns.most = 0
        for name, asked in ASKED.items():
            turns.most = 0
            await asked(site, kind)
            assert 0 < turns.most <= TURN_BYTES_MAX, f"{name}: {turns.most} bytes in one turn"
        assert turns.total + turns.aside > 2 * MESSAGE_BYTES, "the work was counted"


async def test_bootstrap_does_no_more_than_a_turns_work_at_once(
    turns: Turns, autojump_clock: MockClock
) -> None:
    async with holding(turns, *STREAMS["tiny"]) as site:
        assert (await site.raw("PUT", "/agents")).status == 201
        assert (await site.raw("PUT", "/agents/run", JSON, LONG)).status == 201
        await site.raw("POST", "/agents/run", JSON, b"[1,2]")
        turns.most = 0
        reply = await site.raw("GET", "/agents/run/bootstrap")
        assert [content_of(part) for part in parts_of(reply)] == [
            b"",
            LONG[1:-1],
            b"1",
            b"2",
        ]
        assert 0 < turns.most <= TURN_BYTES_MAX


async def test_snapshots_do_no_more_than_a_turns_work_at_once(
    turns: Turns, autojump_clock: MockClock
) -> None:
    blob = bytes(MESSAGE_BYTES)
    async with holding(turns, *STREAMS["binary"]) as site:
        target = f"s/snapshot/{ENDS['binary']:016d}"
        for asked in (
            ("PUT", target, BINARY, blob),
            ("GET", target),
            ("GET", "s/bootstrap"),
        ):
            turns.begin()
            reply = await site.ask(*asked)
            assert reply.status in (200, 201, 204), reply
            assert blob in (*asked[3:], reply.body, *map(content_of, parts_of(reply)))
            assert 0 < turns.most <= TURN_BYTES_MAX, f"{asked[:2]}: {turns.most} in one turn"
            assert turns.total + turns.aside >= MESSAGE_BYTES, "the work was counted"


# --- what is written ---

BODIES = {
    "octets": (BINARY, bytes(BODY_BYTES)),
    "one message": (JSON, b'"' + b"x" * (BODY_BYTES - 2) + b'"'),
    "tiny messages": (JSON, b"[" + b"0," * 2_000_000 + b"0]"),
    "nesting": (JSON, b"[" + (b"[" * 120 + b"]" * 120 + b",") * (BODY_BYTES // 250) + b"0]"),
}


@pytest.mark.parametrize("kind", BODIES)
async def test_the_largest_body_is_taken_and_stored_without_more_than_a_turns_work(
    turns: Turns, autojump_clock: MockClock, kind: str
) -> None:
    """Received, taken apart, decided, joined, summed, encoded, applied."""
    head, body = BODIES[kind]
    async with holding(turns, head, []) as site:
        for method, name in (("POST", "s"), ("PUT", "with-a-body")):
            turns.begin()
            reply = await site.ask(method, name, head, body)
            assert reply.status in (201, 204), reply
            assert 0 < turns.most <= TURN_BYTES_MAX, f"{method}: {turns.most} bytes in one turn"
            assert turns.aside >= len(body), "summed by the writer"


async def batch(site: Site, names: int, times: int, size: int) -> None:
    """Have one batch with so many appends to each of so many streams."""
    bench = site.bench
    for number in range(names):
        await bench.make(f"/{number}")
    await bench.hold()
    first = bench.streams.post("/s", append(b"-"))
    await wait_all_tasks_blocked()
    tickets = [
        bench.streams.post(f"/{number}", append(b"x" * size))
        for number in range(names)
        for _ in range(times)
    ]
    await wait_all_tasks_blocked()
    bench.writer.release()
    for ticket in (first, *tickets):
        await ticket.outcome()
    assert [bench.stream(f"/{number}").tail for number in range(names)] == [times * size] * names


async def test_a_large_batch_is_made_by_the_writer(turns: Turns, autojump_clock: MockClock) -> None:
    """However many streams and appends it is of: all are joined, summed and encoded there."""
    async with holding(turns, TEXT, []) as site:
        await batch(site, 40, 40, 10_000)
        assert turns.most < MIB // 64, f"{turns.most} bytes in one turn"
        assert turns.aside > 2 * 40 * 40 * 10_000


async def test_a_small_batch_is_made_on_the_loop_with_less_than_a_turns_work(
    turns: Turns, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many bytes as are let: each of them is joined, summed and copied once."""
    size = committer.STAGE_BYTES_MAX // 16
    async with holding(turns, TEXT, []) as site:
        await batch(site, 4, 4, size)
        assert 3 * 16 * size <= turns.most <= TURN_BYTES_MAX
    monkeypatch.setattr(committer, "STAGE_BYTES_MAX", 16 * MIB)
    async with holding(turns, TEXT, []) as site:
        await batch(site, 40, 40, 10_000)
        assert turns.most > TURN_BYTES_MAX, "it is this bound that holds"


async def test_a_job_that_is_too_long_goes_to_a_thread_and_is_done(
    turns: Turns, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The allowance is what bounds a turn: with more of it, more is done at once."""
    async with holding(turns, *STREAMS["tiny"]) as site:
        reply = await site.head("s?at-message=600000")
        assert reply["Stream-At-Byte"] == str(3 * 600_000)
        assert turns.most <= TURN_BYTES_MAX
        assert turns.aside > TURN_BYTES
        turns.aside = 0
        monkeypatch.setattr(views, "TURN_BYTES", 64 * MIB)
        again = await site.head("s?at-message=600000")
        assert told(again) == told(reply)
        assert turns.aside == 0
        assert turns.most > TURN_BYTES

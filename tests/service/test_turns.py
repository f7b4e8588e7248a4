"""No request holds the event loop for more than a turn's work, whatever a stream holds.

Work is counted, not timed: bytes that are read, scanned, parsed, encoded or handed to the kernel
between two turns of the loop. What a thread would do is not counted: here it runs inline.
"""

import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from durastreamd.engine import view as views
from durastreamd.engine.view import TURN_BYTES, View
from durastreamd.http.transport import PlainTransport
from durastreamd.protocol import json_mode, offsets, sse
from durastreamd.service.limits import Limits, ReadLimits
from durastreamd.streams.registry import Streams
from tests.service.harness import BINARY, JSON, NOW, PREFIX, TEXT, Reply, Site, serving

pytestmark = pytest.mark.slow

MIB = 1024 * 1024
MESSAGE_BYTES = 6 * MIB
# A job's work, what follows from it (a piece encoded), and what is handed to the kernel.
TURN_BYTES_MAX = 2 * TURN_BYTES
LIMITS = Limits(reads=ReadLimits(gzip_bytes_max=64 * MIB))
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

    async def blocking(self, _streams: Streams, job: Callable[[], Any]) -> Any:
        """Run a job as a thread would."""
        await trio.lowlevel.checkpoint()
        self._threads += 1
        try:
            return job()
        finally:
            self._threads -= 1
            await trio.lowlevel.checkpoint()


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
    monkeypatch.setattr(Streams, "blocking", lambda self, job: made.blocking(self, job))
    return made


@asynccontextmanager
async def holding(turns: Turns, kind: dict[str, str], bodies: list[bytes]) -> AsyncIterator[Site]:
    async with serving(LIMITS) as site:
        await site.make("s", kind)
        for body in bodies:
            await site.add("s", body, kind)
        turns.most = turns.total = turns.aside = 0
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


async def find(site: Site, lookup: str) -> None:
    assert (await site.head(f"s?{lookup}")).status == 200


async def fork(site: Site, offset: int, sub: int) -> None:
    fields = {"Stream-Forked-From": PREFIX + "s", "Stream-Fork-Offset": offsets.mint(offset)}
    fields["Stream-Fork-Sub-Offset"] = str(sub)
    made = await site.ask("PUT", f"fork-{offset}-{sub}", fields)
    assert made.status == 201, made.body


def parts_of(reply: Reply) -> list[bytes]:
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
        assert [part.partition(b"\r\n\r\n")[2] for part in parts_of(reply)] == [
            b"",
            LONG[1:-1],
            b"1",
            b"2",
        ]
        assert 0 < turns.most <= TURN_BYTES_MAX


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
        assert again.fields == reply.fields
        assert turns.aside == 0
        assert turns.most > TURN_BYTES

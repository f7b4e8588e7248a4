"""Everybody at once: producers that are cut off and retry, readers of every kind that come and go.

All of it from one seed. What must hold: every message exactly once and in its producer's order,
and what any reader has at any time is a prefix of the log, to the byte.
"""

import random
from collections.abc import Awaitable, Callable

import h11
import pytest
import trio
from trio.testing import MockClock

from durastreamd.service.limits import Limits, ReadLimits
from tests.service.events import Follow
from tests.service.harness import (
    BINARY,
    CLOSE,
    PREFIX,
    Connection,
    HungUpError,
    Site,
    producer as producer_head,
    serving,
)

MESSAGES = 60
READERS = 20
PATH = PREFIX + "s"
BROKEN = (HungUpError, h11.RemoteProtocolError, OSError)
LIMITS = Limits(
    reads=ReadLimits(long_poll_s=0.2, sse_s=2.0, page_bytes_max=3000, event_bytes_max=1500)
)

Attempt = Callable[[Connection], Awaitable[None]]


class Party:
    """One run: the site, the seed's stream of chance, and what everybody found."""

    def __init__(self, site: Site, seed: int) -> None:
        self.site = site
        self.chance = random.Random(seed)
        self.read: list[bytearray] = [bytearray() for _ in range(READERS)]
        self.ended = 0
        self.cut = 0
        self.duplicates = 0

    async def cut_off(self, attempt: Attempt) -> bool:
        """Make an attempt on a connection of its own, perhaps cut off; False if it was."""
        buffer = self.chance.choice((None, None, 4096))
        connection = self.site.connect(buffer)
        patience = self.chance.choice((0.0005, 0.003, 0.05, 1.0, 30.0))
        done = False
        with trio.move_on_after(self.chance.random() * patience):
            try:
                await attempt(connection)
                done = True
            except BROKEN:
                pass
        self.cut += not done
        connection.hang_up()
        return done

    # --- writing ---

    async def produce(self, name: str) -> None:
        for seq in range(MESSAGES):
            body = f"<{name}{seq:03d}:".encode() + b"." * self.chance.randrange(200) + b">"

            async def attempt(connection: Connection, body: bytes = body, seq: int = seq) -> None:
                head = {**BINARY, **producer_head(name, 0, seq)}
                reply = await connection.ask("POST", PATH, head, body)
                assert reply.status in (200, 204), reply
                self.duplicates += reply.status == 204

            while not await self.cut_off(attempt):
                pass
            await trio.sleep(self.chance.random() * 0.02)

    # --- reading ---

    async def read_to_the_end(self, number: int) -> None:
        """Read by changing means until the stream's end was seen."""
        finished = False

        async def attempt(connection: Connection) -> None:
            nonlocal finished
            way = self.chance.choice((self.page, self.poll, self.events))
            finished = await way(connection, number)

        while not finished:
            await self.cut_off(attempt)
        self.ended += 1

    def take(self, number: int, data: bytes, told: str) -> None:
        self.read[number] += data
        assert int(told) == len(self.read[number]), "the place told is not the end of the bytes"

    async def page(self, connection: Connection, number: int, live: str = "") -> bool:
        at = len(self.read[number])
        reply = await connection.ask("GET", f"{PATH}?offset={at:016d}{live}")
        assert reply.status in (200, 204), reply
        self.take(number, reply.body, reply.next)
        return reply.get("Stream-Closed") == "true"

    async def poll(self, connection: Connection, number: int) -> bool:
        return await self.page(connection, number, "&live=long-poll")

    async def events(self, connection: Connection, number: int) -> bool:
        await connection.send("GET", f"{PATH}?offset={len(self.read[number]):016d}&live=sse", None)
        await connection.head()
        follow = Follow(connection)
        while True:
            data, control = await follow.pair()
            self.take(number, data, control["streamNextOffset"])
            if control.get("streamClosed"):
                return True
            if self.chance.random() < 0.05:
                return False

    async def disk(self) -> None:
        """Let batches through as a disk would: after a while, one after the other."""
        writer = self.site.bench.writer
        writer.holding = True
        while True:
            await trio.sleep(self.chance.random() * 0.004)
            if writer.held:
                writer.do_one()

    async def run(self) -> None:
        async with trio.open_nursery() as disk:
            disk.start_soon(self.disk)
            await self.everybody()
            disk.cancel_scope.cancel()
        self.site.bench.writer.release()

    async def everybody(self) -> None:
        async with trio.open_nursery() as readers:
            for number in range(READERS):
                readers.start_soon(self.read_to_the_end, number)
            async with trio.open_nursery() as producers:
                producers.start_soon(self.produce, "a")
                producers.start_soon(self.produce, "b")
            await self.site.add("s", b"", CLOSE)


def check_log(log: bytes) -> None:
    """Every message of both producers, once, in order."""
    messages = log.removesuffix(b">").split(b">")
    for name in (b"a", b"b"):
        mine = [message[1:5] for message in messages if message[1:2] == name]
        assert mine == [b"%b%03d" % (name, seq) for seq in range(MESSAGES)]
    assert len(messages) == 2 * MESSAGES


@pytest.mark.parametrize("seed", range(8))
async def test_every_reader_has_the_log_and_every_message_is_in_it_once(
    autojump_clock: MockClock, seed: int
) -> None:
    async with serving(LIMITS) as site:
        await site.make("s", BINARY)
        party = Party(site, seed)
        await party.run()
        stream = site.bench.stream("/s")
        log = site.bench.engine.view(stream).read(0, stream.tail)
        check_log(log)
        assert party.ended == READERS
        assert party.duplicates > 5, "no retry met its original"
        assert party.cut > 50, "too little was cut off to prove anything"
        for found in party.read:
            assert bytes(found) == log


async def test_what_survives_a_kill_in_the_middle_is_what_readers_saw(
    autojump_clock: MockClock,
) -> None:
    async with serving(LIMITS) as site:
        await site.make("s", BINARY)
        party = Party(site, 99)
        with trio.move_on_after(1.5):
            await party.run()
        seen = max(party.read, key=len)
        assert seen
        engine = site.bench.after_kill()
        stream = engine.namespace.by_key["/s"]
        log = engine.view(stream).read(0, stream.tail)
        for found in party.read:
            assert log.startswith(bytes(found))

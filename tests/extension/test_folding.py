"""Whatever happens to a stream, a client that folds it comes to the state of a full replay.

Clients append operations on a set of numbers, publish snapshots of it, fork and delete streams;
the server is killed, loses power and takes checkpoints; followers read on from where they were
and start again with /bootstrap when they are told 410, which must be exactly when the floor of the
plain model lies above them.
"""

import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import trio
from hypothesis import given, strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from durastreamd.engine.opening import open_engine
from durastreamd.http.server import Server
from durastreamd.service.app import App
from durastreamd.streams.registry import Streams
from tests.extension.tools import BUCKET, bootstrapped, files, make, publish, token
from tests.service.harness import JSON, PREFIX, Site, now_ms, request_bytes
from tests.support.held_writer import Bench, FullDisk, HeldWriter
from tests.support.sim_disk import SimDisk, crash_images
from tests.support.world import TINY

URLS = (PREFIX + "a/set", f"/{BUCKET}/set", PREFIX + "b")
Operation = dict[str, int]
State = list[int]


def fold(state: State, operations: list[Operation]) -> State:
    """Apply operations to a set, kept as the sorted list that its snapshot is."""
    found = set(state)
    for operation in operations:
        for name, number in operation.items():
            (found.add if name == "add" else found.discard)(number)
    return sorted(found)


@dataclass
class Plain:
    """What a stream must be: every operation it ever had, and where it is retained from."""

    operations: list[Operation] = field(default_factory=list)
    ends: list[int] = field(default_factory=lambda: [0])
    floor: int = 0  # a number of operations
    snapshot: int = -1

    def add(self, operations: list[Operation]) -> bytes:
        """Note an append and return its body."""
        texts = [json.dumps(operation) for operation in operations]
        for operation, text in zip(operations, texts, strict=True):
            self.operations.append(operation)
            self.ends.append(self.ends[-1] + len(text) + 2)
        return f"[{', '.join(texts)}]".encode()

    def twin(self, count: int) -> "Plain":
        return replace(self, operations=self.operations[:count], ends=self.ends[: count + 1])


@dataclass
class Follower:
    """A client: the state it has folded so far, and where it goes on."""

    url: str
    state: State = field(default_factory=list)
    offset: str = "-1"

    async def catch_up(self, site: Site, plain: Plain) -> None:
        """Read on; begin anew with /bootstrap where that is what the server asks for."""
        at = 0 if self.offset == "-1" else int(self.offset)
        reply = await site.raw("GET", f"{self.url}?offset={self.offset}")
        assert (reply.status == 410) == (at < plain.ends[plain.floor]), (reply, at, plain)
        if reply.status == 410:
            assert reply.next == token(plain.ends[plain.floor])
            await self.begin(site, plain)
            return
        assert reply.status == 200, reply
        self.state = fold(self.state, reply.json)
        self.offset = reply.next
        assert self.state == fold([], plain.operations)
        assert self.offset == token(plain.ends[-1])

    async def begin(self, site: Site, plain: Plain) -> None:
        reply = await site.raw("GET", f"{self.url}/bootstrap")
        first, *rest = bootstrapped(reply)
        if plain.snapshot < 0:
            assert (reply["Stream-Snapshot-Offset"], first.body) == ("-1", b"")
        else:
            assert reply["Stream-Snapshot-Offset"] == token(plain.ends[plain.snapshot])
            assert first.content_type == "application/x-set"
        operations = [json.loads(part.body) for part in rest]
        assert operations == plain.operations[plain.floor :]
        self.state = fold(json.loads(first.body or b"[]"), operations)
        self.offset = reply.next
        assert self.state == fold([], plain.operations)
        assert self.offset == token(plain.ends[-1])


class Reborn(Bench):
    """Streams on a disk that another process left behind; without one, on a new disk."""

    def __init__(self, disk: SimDisk | None = None) -> None:
        found: Any = disk or FullDisk()
        self.disk = found
        self.options = TINY
        self.engine, report = open_engine(
            found, TINY, lambda: b"\x07" * 16, now_ms(), create=disk is None
        )
        assert report
        self.streams = Streams(self.engine, now_ms, None, threads=False)
        self.writer = HeldWriter()
        self.streams._writer = self.writer
        self.streams.committer._writer = self.writer


@asynccontextmanager
async def served(bench: Bench) -> AsyncIterator[Site]:
    app = App(bench.streams)
    server = Server([], None, common_headers=app.admission.visitors.common, quick=app.quick)
    async with bench.running(), trio.open_nursery() as nursery:
        await nursery.start(server.serve, app)
        site = Site(bench, app, server)
        yield site
        for connection in site.connections:
            connection.hang_up()
        server.drain()


class Run:
    """One history: the plain streams, their followers, and the site of the day."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.plain: dict[str, Plain] = {}
        self.followers: list[Follower] = []
        self.disk: SimDisk | None = None

    async def live(self, steps: list[str]) -> None:
        """Live one life of the server, to the end of these steps."""
        bench = Reborn(self.disk)
        async with served(bench) as site:
            if self.disk is None:
                assert (await site.raw("PUT", f"/{BUCKET}")).status == 201
            for step in ["check", *steps]:
                await getattr(self, f"do_{step}")(site)
            # What follows, the orderly end included, the next life must not need.
            self.disk = bench.disk.survivor()

    def cut_power(self) -> None:
        assert self.disk is not None
        images = list(crash_images(self.disk, self.rng, cap=12))
        self.disk = self.rng.choice(images)

    def some(self) -> str | None:
        return self.rng.choice(sorted(self.plain)) if self.plain else None

    async def do_make(self, site: Site) -> None:
        url = self.rng.choice(URLS)
        if url in self.plain:
            return
        reply = await site.raw("PUT", url, JSON)
        if reply.status == 409:  # the name is held by forks of a deleted stream
            return
        assert reply.status == 201, reply
        self.plain[url] = Plain()

    async def do_append(self, site: Site) -> None:
        url = self.some()
        if url is None:
            return
        count = self.rng.choice((1, 1, 2, 5, 20))
        some = [{self.rng.choice(("add", "del")): self.rng.randrange(30)} for _ in range(count)]
        reply = await site.raw("POST", url, JSON, self.plain[url].add(some))
        assert (reply.status, reply.next) == (204, token(self.plain[url].ends[-1]))

    async def do_snapshot(self, site: Site) -> None:
        url = self.some()
        if url is None or not self.plain[url].operations:
            return
        plain = self.plain[url]
        count = self.rng.randint(max(plain.floor, 1), len(plain.operations))
        blob = json.dumps(fold([], plain.operations[:count])).encode()
        head = {"Content-Type": "application/x-set"}
        await publish(site, url, token(plain.ends[count]), blob, head)
        plain.floor = plain.snapshot = count

    async def do_refused(self, site: Site) -> None:
        """Publish where it is not allowed: nothing may change by it."""
        url = self.some()
        if url is None:
            return
        plain = self.plain[url]
        wrong = {plain.ends[-1] + 1: 409, plain.ends[-1] - 1: 400}
        if plain.floor:
            wrong[plain.ends[plain.floor] - 1] = 410
        for position, status in wrong.items():
            if position >= 0:
                target = f"{url}/snapshot/{token(position)}"
                got = (await site.raw("PUT", target, JSON, b"[]")).status
                below = position < plain.ends[plain.floor]
                assert got == (410 if below else status), (position, plain)

    async def do_fork(self, site: Site) -> None:
        source = self.some()
        free = [url for url in URLS if url not in self.plain]
        if source is None or not free:
            return
        plain = self.plain[source]
        count = self.rng.randint(plain.floor, len(plain.operations))
        url = self.rng.choice(free)
        head = {"Stream-Forked-From": source, "Stream-Fork-Offset": token(plain.ends[count])}
        reply = await site.raw("PUT", url, head)
        if reply.status == 409:  # the name is held by forks of a deleted stream
            return
        assert reply.status == 201, reply
        self.plain[url] = plain.twin(count)

    async def do_delete(self, site: Site) -> None:
        url = self.some()
        if url is not None and self.rng.random() < 0.5:
            assert (await site.raw("DELETE", url)).status == 204
            del self.plain[url]
            self.followers = [each for each in self.followers if each.url != url]

    async def do_checkpoint(self, site: Site) -> None:
        await site.bench.streams.checkpoint()

    async def do_follow(self, site: Site) -> None:
        url = self.some()
        if url is not None:
            self.followers.append(Follower(url))
        for follower in self.followers:
            if self.rng.random() < 0.7:
                await follower.catch_up(site, self.plain[follower.url])

    async def do_check(self, site: Site) -> None:
        """A new client with /bootstrap, and the metadata, on every stream."""
        for url, plain in self.plain.items():
            await Follower(url).begin(site, plain)
            reply = await site.raw("HEAD", url)
            at = token(plain.ends[plain.snapshot]) if plain.snapshot >= 0 else None
            assert reply.get("Stream-Snapshot-Offset") == at
            assert reply.next == token(plain.ends[-1])


_OFTEN = ["append", "append", "append", "snapshot", "snapshot", "follow", "follow"]
_SELDOM = ["make", "refused", "fork", "delete", "checkpoint", "check"]
STEPS = st.sampled_from([*_OFTEN, *_SELDOM])
LIVES = st.lists(st.tuples(st.lists(STEPS, min_size=4, max_size=25), st.booleans()), max_size=4)


@given(lives=LIVES, seed=st.integers(0, 2**32))
def test_bootstrap_and_tail_rebuild_the_state_of_a_full_replay(
    lives: list[tuple[list[str], bool]], seed: int
) -> None:
    async def main() -> None:
        run = Run(seed)
        for steps, power in lives:
            await run.live(["make", *steps])
            if power:
                run.cut_power()
        await run.live(["follow", "check"])

    trio.run(main, clock=MockClock(autojump_threshold=0))


@pytest.mark.usefixtures("autojump_clock")
async def test_a_snapshot_half_uploaded_when_the_server_is_killed_is_gone_afterwards() -> None:
    bench = Reborn()
    async with served(bench) as site:
        await make(site, URLS[2], JSON, b"1")
        await publish(site, URLS[2], token(3), b"[1]")
        upload = site.connect()
        target = f"{URLS[2]}/snapshot/{token(3)}"
        head = {"Content-Length": "1000000"}
        await upload.send_bytes(request_bytes("PUT", target, head, bytes(600_000)), "PUT")
        await wait_all_tasks_blocked()
        assert len(files(bench.disk, ".snap")) == 2
        disk = bench.disk.survivor()
    bench = Reborn(disk)
    async with served(bench) as site:
        reply = await site.raw("GET", f"{URLS[2]}/snapshot/{token(3)}")
        assert (reply.status, reply.body) == (200, b"[1]")
        await make(site, URLS[0], JSON, b"1")
        await bench.streams.checkpoint()
        assert list(files(disk, ".snap").values()) == [3]

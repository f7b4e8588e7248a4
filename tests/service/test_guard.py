"""Who is refused when nothing may be written, or when there is no room; and for how long."""

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from durastreamd.service.limits import DiskOptions
from durastreamd.service.operating.space import Room, Space
from tests.service.harness import CLOSE, TEXT, Reply, Site, producer
from tests.support.patience import PATIENCE_S

OPTIONS = DiskOptions(free_bytes_min=100, free_bytes_resume=150, check_s=1.0)
WRITES = [
    ("PUT", "/v1/stream/s"),
    ("PUT", "/v1/stream/new"),
    ("POST", "/v1/stream/s"),
    ("DELETE", "/v1/stream/s"),
    ("PUT", "/bucket"),
    ("DELETE", "/bucket"),
    ("PUT", "/bucket/one"),
    ("PUT", "/bucket/one/snapshot/0000000000000000"),
    ("DELETE", "/bucket/one/snapshot/0000000000000000"),
    ("PATCH", "/v1/stream/s"),
]


@pytest.mark.parametrize(("method", "target"), WRITES)
@pytest.mark.parametrize("head", [TEXT, {**TEXT, **CLOSE}], ids=["data", "closure"])
async def test_a_read_only_server_answers_every_write_with_405(
    site: Site, method: str, target: str, head: dict[str, str]
) -> None:
    await site.make("s", TEXT, b"kept")
    assert (await site.raw("PUT", "/bucket")).status == 201
    assert (await site.raw("PUT", "/bucket/one", TEXT, b"x")).status == 201
    records = site.bench.streams.committer.records
    site.app.admission.guard.read_only = True
    reply = await site.raw(method, target, head, b"more")
    assert (reply.status, reply["Allow"]) == (405, "GET, HEAD, OPTIONS")
    assert (reply.json["code"], reply.json["status"]) == ("METHOD_NOT_ALLOWED", 405)
    assert "read-only" in reply.json["detail"]
    assert (await site.get("s?offset=-1")).body == b"kept"
    assert (await site.raw("GET", "/bucket/one/bootstrap")).status == 200
    preflight = await site.raw("OPTIONS", target)
    assert preflight["Access-Control-Allow-Methods"] == "GET, HEAD, OPTIONS"
    assert site.bench.streams.committer.records == records


class Disk:
    """A disk with as much room as the test says."""

    def __init__(self, free: int = 1000) -> None:
        self.free = free
        self.broken = False

    def room(self) -> Room:
        if self.broken:
            raise OSError(5, "Input/output error")
        return Room(2000, self.free, 7)


def test_between_the_two_thresholds_nothing_changes() -> None:
    disk = Disk()
    space = Space(disk.room, OPTIONS)
    told = []
    for free in (1000, 150, 100, 99, 100, 149, 150, 149, 100, 99, 0, 2000):
        disk.free = free
        space.look()
        told.append(space.low)
    assert told == [False] * 3 + [True] * 3 + [False] * 3 + [True] * 2 + [False]
    assert (space.free_bytes, space.total_bytes, space.reclaimed_bytes) == (2000, 2000, 7)


def test_a_threshold_of_zero_is_never_reached() -> None:
    disk = Disk(0)
    space = Space(disk.room, DiskOptions(free_bytes_min=0))
    space.look()
    assert not space.low


async def off_loop(measure: object) -> Room:
    assert callable(measure)
    await trio.lowlevel.checkpoint()
    found: Room = measure()
    return found


async def test_the_watch_goes_on_when_a_look_fails(autojump_clock: MockClock) -> None:
    disk = Disk()
    space = Space(disk.room, OPTIONS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(space.watch, off_loop)
        disk.broken = True
        await trio.sleep(5)
        disk.broken, disk.free = False, 0
        await trio.sleep(2)
        assert space.low
        nursery.cancel_scope.cancel()


async def full(site: Site) -> Space:
    """Let the disk of a site be nearly full."""
    space = Space(Disk(50).room, OPTIONS)
    space.look()
    site.app.admission.guard.space = space
    return space


def refused(reply: Reply) -> bool:
    if reply.status != 507:
        return False
    assert reply.json["code"] == "INSUFFICIENT_STORAGE"
    assert reply["Retry-After"] == str(reply.json["retryAfter"])
    return True


async def test_low_space_refuses_what_adds_data_and_nothing_else(site: Site) -> None:
    for name in ("a", "b", "c"):
        await site.make(name, TEXT, b"kept")
    assert (await site.raw("PUT", "/bucket")).status == 201
    space = await full(site)
    assert refused(await site.ask("POST", "a", TEXT, b"more"))
    assert refused(await site.ask("POST", "a", {**TEXT, **CLOSE}, b"more and shut"))
    assert refused(await site.ask("POST", "a", {**TEXT, **producer("p", 0, 0)}, b"more"))
    assert refused(await site.ask("PUT", "new", TEXT))
    assert refused(await site.ask("PUT", "new", TEXT, b"data"))
    assert refused(await site.raw("PUT", "/bucket/one", TEXT))
    assert space.refused_total == 6
    assert (await site.ask("PUT", "a", TEXT)).status == 200, "it is there already"
    assert (await site.get("a?offset=-1")).body == b"kept"
    assert (await site.head("a")).status == 200
    assert (await site.ask("POST", "b", CLOSE)).status == 204
    assert (await site.ask("DELETE", "c")).status == 204
    space.take(Room(2000, 1000, 7))
    await site.add("a", b" and more")
    assert (await site.get("a?offset=-1")).body == b"kept and more"


async def test_new_live_readers_are_sent_elsewhere_while_the_server_drains(site: Site) -> None:
    start = (await site.make("s", TEXT, b"x")).next
    waiting = await site.open(f"s?offset={start}&live=long-poll")
    following = await site.open(f"s?offset={start}&live=sse")
    await wait_all_tasks_blocked()
    site.app.live.end_all()
    assert (await waiting.whole()).status == 204
    ended = await following.whole()
    assert (ended.status, ended.ended) == (200, True)
    for mode in ("sse", "long-poll"):
        reply = await site.get(f"s?offset={start}&live={mode}")
        assert (reply.status, reply["Retry-After"]) == (503, "1")
    assert (await site.get("s?offset=-1")).body == b"x", "catching up goes on"


async def test_the_proof_of_the_writer_waits_for_the_writer(site: Site) -> None:
    await site.make("s")
    await site.bench.hold()
    proven = trio.Event()

    async def prove() -> None:
        await site.bench.streams.prove_writer()
        proven.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(prove)
        await wait_all_tasks_blocked()
        assert not proven.is_set()
        site.bench.writer.release()
        with trio.fail_after(PATIENCE_S):
            await proven.wait()


async def test_what_fails_in_the_writer_does_not_end_it(site: Site) -> None:
    def fails() -> int:
        raise OSError(5, "Input/output error")

    with pytest.raises(OSError, match="Input/output error"):
        await site.bench.streams.by_writer(fails)
    assert await site.bench.streams.by_writer(lambda: 7) == 7
    await site.make("s")

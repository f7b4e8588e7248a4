"""Retention over HTTP: the floor by hand, by a policy, over restarts, for forks and snapshots."""

import pytest
from trio.testing import MockClock, wait_all_tasks_blocked

from durastreamd.protocol.offsets import mint
from durastreamd.storage import datadir
from durastreamd.storage.extensions import RETENTION
from durastreamd.streams.limits import StreamLimits
from tests.service.harness import CLOSE, PREFIX, TEXT, Reply, Site, serving
from tests.support.held_writer import content, reopen


async def patch(site: Site, **asked: str) -> Reply:
    head = {f"Stream-{name.replace('_', '-')}": value for name, value in asked.items()}
    return await site.ask("PATCH", "s", head)


async def furnish(site: Site) -> None:
    await site.make("s")
    for body in (b"aaaa", b"bbbb", b"cccc"):
        await site.add("s", body)


def passed(reply: Reply, first: int) -> None:
    found = (reply.status, reply.json["code"], reply.json["reason"], reply.next)
    assert found == (410, "OFFSET_EXPIRED", "RETENTION_PASSED", mint(first))


async def test_a_floor_moves_by_hand_and_readers_below_it_hear_where_to_go_on() -> None:
    async with serving() as site:
        await furnish(site)
        reply = await patch(site, Retain_From=mint(4))
        assert (reply.status, reply["Stream-First-Offset"], reply.next) == (204, mint(4), mint(12))
        for query in ("offset=-1", f"offset={mint(0)}", "offset=-1&live=long-poll",
                      "offset=-1&live=sse"):  # fmt: skip
            passed(await site.get(f"s?{query}"), 4)
        passed(await site.get("s/bootstrap"), 4)
        assert (await site.get(f"s?offset={mint(4)}")).body == b"bbbbcccc"
        head = await site.head("s")
        assert (head["Stream-First-Offset"], head["Stream-Message-Count"]) == (mint(4), "3")
        page = await site.raw("GET", PREFIX)
        assert page.json["streams"][0]["first_offset"] == mint(4)
        assert (await patch(site, Retain_From="-1"))["Stream-First-Offset"] == mint(4)
        assert (await patch(site, Retain_From="now"))["Stream-First-Offset"] == mint(12)
        await site.add("s", b"dddd", {**TEXT, **CLOSE})
        assert (await site.get(f"s?offset={mint(12)}")).body == b"dddd"


@pytest.mark.parametrize("offset", [mint(5), mint(13), "x", ""])
async def test_a_place_that_is_none_is_400_and_moves_nothing(offset: str) -> None:
    async with serving() as site:
        await furnish(site)
        reply = await patch(site, Retain_From=offset)
        assert (reply.status, reply.json["code"]) == (400, "INVALID_OFFSET")
        assert (await site.head("s"))["Stream-First-Offset"] == mint(0)


@pytest.mark.parametrize("asked", [{}, {"Retention_Age": "-1"}, {"Retention_Bytes": "1k"}])
async def test_a_change_that_says_nothing_is_400(asked: dict[str, str]) -> None:
    async with serving() as site:
        await furnish(site)
        assert (await patch(site, **asked)).status == 400
        assert (await site.ask("PATCH", "none", {"Stream-Retain-From": "-1"})).status == 404
        reply = await site.ask("PUT", "t", {**TEXT, "Stream-Retention-Age": "5"})
        assert (reply.status, "PATCH" in reply.json["detail"]) == (400, True)
        other = {"Stream-Retain-From": "now", "Stream-Incarnation": "0"}
        assert (await site.ask("PATCH", "s", other)).status == 412


@pytest.mark.parametrize(
    ("asked", "first"),
    [
        ({"Retention_Bytes": "8"}, 4), ({"Retention_Bytes": "9"}, 0),
        ({"Retention_Bytes": "0"}, 12), ({"Retention_Bytes": "7"}, 4),
        ({"Retention_Messages": "1"}, 8),
        ({"Retention_Messages": "5"}, 0), ({"Retention_Age": "100"}, 8),
        ({"Retention_Age": "1000"}, 0), ({"Retention_Age": "100", "Retention_Messages": "0"}, 12),
        ({"Retention_Age": "none"}, 0),
    ],
)  # fmt: skip
async def test_a_policy_moves_the_floor_by_itself_and_keeps_what_it_says(
    autojump_clock: MockClock, asked: dict[str, str], first: int
) -> None:
    async with serving(streams=StreamLimits(retention_s=20.0)) as site:
        await site.make("s")
        for body in (b"aaaa", b"bbbb"):
            await site.add("s", body)
        autojump_clock.jump(120)
        site._first = None  # the connection was idle for too long
        await site.add("s", b"cccc")
        reply = await patch(site, **asked)
        told = {key.replace("_", "-"): value for key, value in asked.items() if value != "none"}
        for answer in (reply, await site.head("s")):
            assert all(answer[f"Stream-{name}"] == value for name, value in told.items())
        autojump_clock.jump(21)
        await wait_all_tasks_blocked()
        assert (await site.head("s"))["Stream-First-Offset"] == mint(first)
        assert (await site.head("s")).next == mint(12)


async def test_a_fork_keeps_reading_what_its_source_gave_up() -> None:
    async with serving() as site:
        await furnish(site)
        await site.make("whole", {"Stream-Forked-From": PREFIX + "s"})
        await patch(site, Retain_From=mint(8))
        await site.make("late", {"Stream-Forked-From": PREFIX + "s"})
        await site.bench.streams.checkpoint()
        assert (await site.get("whole?offset=-1")).body == b"aaaabbbbcccc"
        passed(await site.get("late?offset=-1"), 8)
        fork = {"Stream-Forked-From": PREFIX + "s", "Stream-Fork-Offset": mint(4)}
        assert (await site.ask("PUT", "below", fork)).status == 410


async def test_a_snapshot_that_retention_passed_is_not_joined_to_what_is_left() -> None:
    async with serving() as site:
        await furnish(site)
        await site.raw("PUT", f"{PREFIX}s/snapshot/{mint(4)}", TEXT, b"folded")
        assert (await site.head("s"))["Stream-Snapshot-Offset"] == mint(4)
        await patch(site, Retain_From=mint(8))
        assert (await site.head("s")).get("Stream-Snapshot-Offset") is None
        passed(await site.get("s/bootstrap"), 8)
        assert (await site.get(f"s/snapshot/{mint(4)}")).body == b"folded"
        await site.raw("PUT", f"{PREFIX}s/snapshot/{mint(8)}", TEXT, b"more")
        assert (await site.get("s/bootstrap")).status == 200


@pytest.mark.parametrize("checkpoint", [False, True])
async def test_floor_and_policy_are_durable_and_named_in_the_identity(*, checkpoint: bool) -> None:
    async with serving() as site:
        await furnish(site)
        assert datadir.read_identity(site.bench.disk).extensions == frozenset()
        await patch(site, Retain_From=mint(4), Retention_Messages="2")
        if checkpoint:
            await site.bench.streams.checkpoint()
        disk = site.bench.disk.survivor()
        engine = reopen(disk)
        stream = engine.namespace.by_key["/s"]
        assert (stream.floor, stream.trimmed, stream.policy) == (4, 4, (-1, -1, 2))
        assert content(engine, "/s") == b"bbbbcccc"
        engine.release()
        assert datadir.read_identity(disk).extensions == {RETENTION}

"""Strict producers over HTTP: a repeat with other bytes is loud, also after a restart."""

import pytest

from durastreamd.storage import datadir
from durastreamd.storage.extensions import STRICT_PRODUCERS
from tests.service.harness import CLOSE, JSON, TEXT, Site, producer, serving
from tests.support.held_writer import reopen

STRICT = {"Producer-Strict": "true"}


async def post(site: Site, body: bytes, seq: int, kind: dict[str, str] = TEXT) -> tuple[int, str]:
    reply = await site.ask("POST", "s", {**kind, **producer("p", 0, seq), **STRICT}, body)
    if reply.status == 409:
        assert reply["Producer-Seq"]
        return 409, reply.json["reason"]
    return reply.status, reply.get("Producer-Strict") or ""


@pytest.mark.parametrize("size", [10, 100_000, 3_000_000], ids=["quick", "task", "thread"])
async def test_a_repeat_with_other_bytes_is_409_and_one_with_the_same_is_204(size: int) -> None:
    async with serving() as site:
        await site.make("s")
        assert await post(site, b"a" * size, 0) == (200, "")
        assert await post(site, b"a" * size, 0) == (204, "true")
        assert await post(site, b"b" * size, 0) == (409, "REPEAT_DIFFERS")
        assert await post(site, b"a" * size + b"a", 0) == (409, "REPEAT_DIFFERS")
        plain = await site.ask("POST", "s", {**TEXT, **producer("p", 0, 0)}, b"other")
        assert (plain.status, plain.get("Producer-Strict")) == (204, None)
        assert (await site.head("s"))["Stream-Byte-Count"] == str(size)


async def test_closing_or_not_is_a_difference_and_json_is_compared_as_it_is_stored() -> None:
    async with serving() as site:
        await site.make("s", JSON)
        assert await post(site, b"[1, 2]", 0, JSON) == (200, "")
        assert await post(site, b"[1,2]", 0, JSON) == (204, "true")
        assert await post(site, b"[1,3]", 0, JSON) == (409, "REPEAT_DIFFERS")
        assert await post(site, b"{", 0, JSON) == (409, "REPEAT_DIFFERS")
        assert await post(site, b"3", 1, {**JSON, **CLOSE}) == (200, "")
        assert await post(site, b"3", 1, {**JSON, **CLOSE}) == (204, "true")
        assert await post(site, b"3", 1, JSON) == (409, "REPEAT_DIFFERS")


@pytest.mark.parametrize("checkpoint", [False, True])
async def test_what_is_needed_to_tell_is_as_durable_as_the_number(*, checkpoint: bool) -> None:
    async with serving() as site:
        await site.make("s")
        bodies = [b"%d" % seq for seq in range(3)]
        assert [(await post(site, body, seq))[0] for seq, body in enumerate(bodies)] == [200] * 3
        if checkpoint:
            await site.bench.streams.checkpoint()
        disk = site.bench.disk.survivor()
        engine = reopen(disk)
        stream = engine.namespace.by_key["/s"]
        detail = engine.load_detail(stream) if engine.needs_loading(stream) else stream.loaded()
        assert detail.producers == {"p": (0, 2)}
        known = site.bench.engine.namespace.by_key["/s"].loaded().sums
        assert (detail.sums, detail.sums["p"].appends) == (known, 3)
        engine.release()
        assert datadir.read_identity(disk).extensions == {STRICT_PRODUCERS}


async def test_a_directory_that_nobody_is_strict_in_stays_plain() -> None:
    async with serving() as site:
        await site.make("s")
        head = {**TEXT, **producer("p", 0, 0), "Producer-Strict": "false"}
        assert (await site.ask("POST", "s", head, b"x")).status == 200
        assert datadir.read_identity(site.bench.disk).extensions == frozenset()

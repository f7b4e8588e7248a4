"""Files that rot under a running server: that stream is refused, however it is read; no other is.

Every way of reading meets every kind of damage to every kind of file. An answer is right, or a
refusal, or broken off; and once damage was met the stream takes no more appends.
"""

import random
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import NamedTuple

import h11
import pytest

from durastreamd.engine.options import EngineOptions
from durastreamd.service.limits import Limits, ReadLimits
from durastreamd.storage import format as fmt
from tests.service.events import Parser
from tests.service.harness import (
    BINARY,
    JSON,
    PREFIX,
    TEXT,
    HungUpError,
    Reply,
    Site,
    serving,
)
from tests.support.held_writer import Bench

START = "0000000000000000"
OPTIONS = EngineOptions(segment_bytes_max=150_000)
LIMITS = Limits(ReadLimits(piece_bytes=64 * 1024))
BODIES = [random.Random(n).randbytes(50_000) for n in range(8)]
LINES = [b'{"number":%d,"text":"%s"}' % (n, b"x" * 40_000) for n in range(8)]
BLOB = random.Random(99).randbytes(300_000)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with serving(LIMITS, options=OPTIONS) as made:
        await made.make("bin", BINARY)
        await made.make("json", JSON)
        await made.make("other", BINARY)
        for number in range(8):
            await made.add("bin", BODIES[number], BINARY)
            await made.add("json", LINES[number], JSON)
            await made.add("other", BODIES[7 - number], BINARY)
            await made.bench.streams.checkpoint()
        await made.make("fork", {"Stream-Forked-From": PREFIX + "bin"})
        await made.make("folded", TEXT, b"old")
        target = f"folded/snapshot/{3:016d}"
        assert (await made.ask("PUT", target, TEXT, BLOB)).status == 204
        await made.add("folded", b"new")
        await made.bench.streams.checkpoint()
        made.bench.engine.handles.release()
        yield made


def files(bench: Bench, key: str, suffix: str) -> list[str]:
    directory = fmt.stream_dir(bench.stream(key).id)
    names = bench.disk.names(directory)
    return [f"{directory}/{name}" for name in names if name.endswith(suffix)]


# --- ways of reading ---


async def _got(site: Site, name: str) -> Reply | None:
    """Return the answer, None if it was broken off."""
    connection = await site.open(name)
    try:
        return await connection.whole()
    except (HungUpError, h11.RemoteProtocolError):
        return None


async def catch_up(site: Site, name: str) -> bytes | None:
    reply = await _got(site, f"{name}?offset=-1")
    return None if reply is None or _refused(reply) else reply.body


async def long_poll(site: Site, name: str) -> bytes | None:
    reply = await _got(site, f"{name}?offset={START}&live=long-poll")
    return None if reply is None or _refused(reply) else reply.body


async def bootstrap(site: Site, name: str) -> bytes | None:
    reply = await _got(site, f"{name}/bootstrap")
    if reply is None or _refused(reply):
        return None
    boundary = b"\r\n--" + reply["Content-Type"].rpartition("=")[2].encode()
    parts = (b"\r\n" + reply.body).split(boundary)[1:-1]
    return b"".join(part.partition(b"\r\n\r\n")[2] for part in parts)


async def events(site: Site, name: str) -> bytes | None:
    """Return what came as events, as far as it came: it must be the beginning of the truth."""
    connection = await site.open(f"{name}?offset=-1&live=sse")
    parser, data = Parser(), b""
    try:
        if (await connection.head()).status != 200:
            assert _refused(await connection.whole())
            return None
        while True:
            piece = await connection.step()
            for event in parser.feed(piece):
                if event.kind == "data":
                    data += event.data.encode()
                elif '"upToDate":true' in event.data:
                    return data
    except (HungUpError, h11.RemoteProtocolError):
        return None
    finally:
        connection.hang_up()


def _refused(reply: Reply) -> bool:
    if reply.status == 200:
        return False
    assert (reply.status, reply.json["code"]) == (500, "STREAM_DAMAGED")
    return True


class Way(NamedTuple):
    """A way to read a stream, and what is read so when all is well."""

    read: Callable[..., object]
    stream: str  # that is read
    owner: str  # whose files are read


WAYS = {
    "catch-up": Way(catch_up, "bin", "/bin"),
    "catch-up of JSON": Way(catch_up, "json", "/json"),
    "catch-up of a fork": Way(catch_up, "fork", "/bin"),
    "long-poll": Way(long_poll, "bin", "/bin"),
    "bootstrap": Way(bootstrap, "bin", "/bin"),
    "bootstrap of a fork": Way(bootstrap, "fork", "/bin"),
    "events": Way(events, "json", "/json"),
}


# --- damage ---


def flip(data: bytearray, _like: bytes) -> None:
    data[len(data) // 2] ^= 4


def zero(data: bytearray, _like: bytes) -> None:
    at = len(data) // 3
    data[at : at + 4096] = bytes(len(data[at : at + 4096]))


def cut(data: bytearray, _like: bytes) -> None:
    del data[len(data) * 2 // 3 :]


def empty(data: bytearray, _like: bytes) -> None:
    data.clear()


def foreign(data: bytearray, like: bytes) -> None:
    data[:] = like


def restore(before: bytes, data: bytearray) -> None:
    data[:] = before


DAMAGES = (flip, zero, cut, empty, foreign)


@pytest.mark.parametrize("suffix", [".log", ".idx"])
@pytest.mark.parametrize("known", [False, True], ids=["unread", "read before"])
@pytest.mark.parametrize("way", WAYS)
async def test_damage_is_refused_however_it_is_read(
    site: Site, way: str, *, known: bool, suffix: str
) -> None:
    read, name, owner = WAYS[way]
    stream = site.bench.stream(owner)
    true = await read(site, name)  # type: ignore[misc]
    assert true
    like = files(site.bench, "/other", suffix)
    for number, damage in enumerate(DAMAGES):
        site.bench.engine.proofs = type(site.bench.engine.proofs)(
            site.bench.disk, site.bench.engine.handles, OPTIONS.proof_bytes_max
        )
        if known:
            assert await read(site, name) == true  # type: ignore[misc]
        path = files(site.bench, owner, suffix)[number % 2]
        before = site.bench.disk.read(path)
        other = site.bench.disk.read(like[number % 2])

        def change(
            data: bytearray, damage: Callable[..., None] = damage, other: bytes = other
        ) -> None:
            damage(data, other)

        site.bench.disk.damage(path, change)
        found = await read(site, name)  # type: ignore[misc]
        if suffix == ".log" or not known:
            assert found is None, damage
            assert fmt.stream_of(path) == stream.id
            assert path.rpartition("/")[0] in stream.damage
            refused = await site.ask("POST", owner[1:], {"Content-Type": stream.content_type}, b"1")
            assert refused.json["code"] == "STREAM_DAMAGED"
        else:
            assert found in (None, true)
        assert (await site.get("other?offset=-1")).body == b"".join(reversed(BODIES))
        # As after a repair.
        site.bench.disk.damage(path, partial(restore, before))
        stream.damage = ""
        site.bench.engine.damaged.clear()


@pytest.mark.parametrize("rest", [f"snapshot/{3:016d}", "bootstrap"])
@pytest.mark.parametrize("damage", [*DAMAGES, "gone"])
async def test_a_damaged_snapshot_is_refused_before_its_first_byte(
    site: Site, rest: str, damage: Callable[..., None] | str
) -> None:
    (path,) = files(site.bench, "/folded", ".snap")
    if isinstance(damage, str):
        site.bench.disk.unlink(path)
    else:
        change = damage
        site.bench.disk.damage(path, lambda data: change(data, b"y" * len(data)))
    reply = await site.get(f"folded/{rest}")
    assert (reply.status, reply.json["code"]) == (500, "STREAM_DAMAGED")
    assert path in site.bench.stream("/folded").damage
    assert (await site.get("other?offset=-1")).status == 200


async def test_damage_is_told_to_the_operator_once(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    assert "damaged" not in (await site.raw("GET", "/-/readyz")).body.decode()
    path = files(site.bench, "/bin", ".log")[0]
    site.bench.disk.damage(path, lambda data: flip(data, b""))
    for _ in range(3):
        assert (await site.get("bin?offset=-1")).status == 500
        assert (await site.get("fork?offset=-1")).status == 500
    told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(told) == 1
    assert path in told[0]
    ready = await site.raw("GET", "/-/readyz")
    assert ready.status == 200
    detail = "1 stream is damaged and refused; `dsadmin verify` says which."
    assert ready.json == {"status": "ready", "notes": [{"reason": "damaged", "detail": detail}]}
    page = (await site.raw("GET", "/-/metrics")).body.decode()
    assert "\ndurastreamd_damaged_streams 1.0\n" in page


async def test_an_answer_that_has_begun_is_broken_off(site: Site) -> None:
    path = files(site.bench, "/bin", ".log")[-1]
    site.bench.disk.damage(path, lambda data: flip(data, b""))
    connection = await site.open("bin?offset=-1")
    with pytest.raises((HungUpError, h11.RemoteProtocolError)):
        await connection.whole()
    assert connection.reply.status == 200
    assert b"".join(BODIES).startswith(connection.reply.body)
    assert (await site.get("bin?offset=-1")).status == 500


async def test_too_many_open_files_is_no_damage(site: Site) -> None:
    site.bench.disk.open_error = "streams/"
    reply = await _got(site, "bin?offset=-1")
    assert reply is None or reply.status >= 500
    assert not site.bench.stream("/bin").damage
    site.bench.disk.open_error = ""
    assert (await site.get("bin?offset=-1")).body == b"".join(BODIES)

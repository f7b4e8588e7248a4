"""What the system refuses, in the words of the protocol: every errno, every way to the disk."""

import errno
import logging
import subprocess
import sys
from typing import NamedTuple

import h11
import pytest
import trio
from trio.testing import MockClock

from durastreamd.engine.options import EngineOptions
from durastreamd.http.seldom import Seldom
from durastreamd.service import failures
from durastreamd.service.limits import Limits, ReadLimits
from tests.service.harness import (
    BINARY,
    CLOSE,
    PREFIX,
    TEXT,
    HungUpError,
    Reply,
    Site,
    producer,
    serving,
)

FULL = ("INSUFFICIENT_STORAGE", 507)
SHORT = ("UNAVAILABLE", 503)
FAILED = ("DISK_FAILED", 503)
ANSWERS = {
    errno.ENOSPC: FULL,
    errno.EDQUOT: FULL,
    errno.EMFILE: SHORT,
    errno.ENFILE: SHORT,
    errno.ENOMEM: SHORT,
    errno.EIO: FAILED,
    errno.EROFS: FAILED,
    errno.ESTALE: FAILED,
}


class Way(NamedTuple):
    """A request, and the operations of the disk that it cannot do without."""

    method: str
    name: str
    head: dict[str, str]
    body: bytes
    meets: tuple[str, ...]


FOLDED = f"{4:016d}"
AHEAD = f"{7:016d}"
FORK = {"Stream-Forked-From": PREFIX + "cold", "Stream-Fork-Offset": FOLDED}
WRITES = {
    "create": Way("PUT", "new", TEXT, b"x", ("pwrite",)),
    "append": Way("POST", "hot", TEXT, b"x", ("pwrite",)),
    "append to one at rest": Way("POST", "cold", TEXT, b"x", ("open", "pread", "pwrite")),
    "close": Way("POST", "cold", CLOSE, b"", ("open", "pread", "pwrite")),
    "delete": Way("DELETE", "cold", {}, b"", ("open", "pread", "pwrite")),
    "fork": Way("PUT", "fork", FORK, b"", ("open", "pread", "pwrite")),
    "snapshot": Way("PUT", f"cold/snapshot/{AHEAD}", TEXT, b"blob", ("open", "pwrite")),
    "first snapshot": Way("PUT", f"hot/snapshot/{3:016d}", TEXT, b"blob", ("make_directory",)),
}
READS = {
    "catch-up": Way("GET", f"cold?offset={FOLDED}", {}, b"", ("open", "pread")),
    "long-poll": Way("GET", f"cold?offset={FOLDED}&live=long-poll", {}, b"", ("open", "pread")),
    "events": Way("GET", f"cold?offset={FOLDED}&live=sse", {}, b"", ("open", "pread")),
    "snapshot read": Way("GET", f"cold/snapshot/{FOLDED}", {}, b"", ("open", "pread")),
    "bootstrap": Way("GET", "cold/bootstrap", {}, b"", ("open", "pread")),
    "look-up": Way("HEAD", "cold?at-message=1", {}, b"", ("open", "pread")),
}
WAYS = WRITES | READS
CASES = [
    (number, name, operation)
    for number in ANSWERS
    for name, way in WAYS.items()
    for operation in way.meets
]


async def prepared(site: Site) -> None:
    """Make a stream whose bytes and producers are in files that nobody has open, and a hot one."""
    await site.make("cold", TEXT, b"old ")
    await site.add("cold", b"new", {**TEXT, **producer("p", 0, 0)})
    assert (await site.ask("PUT", f"cold/snapshot/{FOLDED}", TEXT, b"blob")).status == 204
    await site.bench.streams.checkpoint()
    await trio.sleep(60)  # its actor has gone, and its detail with it
    site.bench.engine.handles.release()
    await site.make("hot", TEXT, b"hot")


async def ask(site: Site, way: Way) -> Reply:
    return await site.ask(way.method, way.name, way.head, way.body)


@pytest.mark.parametrize(
    ("number", "name", "operation"), CASES, ids=lambda each: errno.errorcode.get(each, each)
)
async def test_what_the_system_refuses_is_told_as_what_it_is(
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    name: str,
    operation: str,
) -> None:
    for seldom in ("_exhausted", "_full", "_failed"):
        monkeypatch.setattr(failures, seldom, Seldom(failures.logger, logging.ERROR))
    way, (code, status) = WAYS[name], ANSWERS[number]
    async with serving() as site:
        await prepared(site)
        disk = site.bench.disk
        for _ in range(3):
            disk.refuse(number, (operation,))
            reply = await ask(site, way)
            disk.mend()
            assert (reply.status, reply["Retry-After"]) == (status, "1")
            if way.method != "HEAD":
                assert reply.problem == code
                assert "nothing was stored" in reply.json["detail"]
        told = [record for record in caplog.records if record.name == failures.logger.name]
        assert len(told) == 1
        assert not [record for record in caplog.records if record.exc_info]
        reads = operation in ("open", "pread") and name != "snapshot"
        if reads and number in (errno.EIO, errno.ESTALE):
            assert "cannot be read" in told[0].getMessage()
            assert site.bench.engine.failed_reads == 3
            page = (await site.raw("GET", "/-/metrics")).body.decode()
            assert "\ndurastreamd_failed_reads_total 3.0\n" in page
        # It was true: nothing was stored, nothing is refused any more, and the same goes well now.
        assert not site.bench.engine.damaged
        assert (await site.get(f"cold?offset={FOLDED}")).body == b"new"
        assert (await site.get("hot?offset=-1")).body == b"hot"
        assert (await site.head("new")).status == (await site.head("fork")).status == 404
        if "live=sse" not in way.name:
            assert (await ask(site, way)).status in (200, 201, 204)


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE])
async def test_an_answer_that_has_begun_is_broken_off_and_told(
    number: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seldom in ("_exhausted", "_failed"):
        monkeypatch.setattr(failures, seldom, Seldom(failures.logger, logging.ERROR))
    limits = Limits(ReadLimits(piece_bytes=64 * 1024))
    async with serving(limits, options=EngineOptions(segment_bytes_max=150_000)) as site:
        bodies = [bytes([n]) * 50_000 for n in range(8)]
        await site.make("s", BINARY)
        for body in bodies:
            await site.add("s", body, BINARY)
            await site.bench.streams.checkpoint()
        site.bench.engine.handles.release()
        connection = await site.open("s?offset=-1")
        await connection.head()
        site.bench.disk.refuse(number, ("open", "pread"))
        with pytest.raises((HungUpError, h11.RemoteProtocolError)):
            await connection.whole()
        site.bench.disk.mend()
        assert b"".join(bodies).startswith(connection.reply.body)
        (line,) = [record for record in caplog.records if record.name == failures.logger.name]
        assert ("disk failed" if number == errno.EIO else "short of") in line.getMessage()
        assert not site.bench.engine.damaged
        assert (await site.get("s?offset=-1")).body == b"".join(bodies)


def test_an_error_can_be_told_without_opening_a_file() -> None:
    """Python loads codecs when they are first used, which fails when nothing can be opened."""
    program = """
import resource
from durastreamd.protocol import problems
resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
assert problems.quoted("\\u00e9\\n") == "'\\\\xe9\\\\n'"
"""
    subprocess.run([sys.executable, "-c", program], check=True)

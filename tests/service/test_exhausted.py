"""Out of descriptors: told as such, in one line of the log, and over by itself."""

import logging

import pytest
import trio
from trio.testing import MockClock

from durastreamd.http.seldom import Seldom
from durastreamd.service import failures
from tests.service.harness import TEXT, Reply, Site, producer, serving


async def cold(site: Site) -> str:
    """Make a stream whose bytes are in files that nobody has open; return its tail."""
    await site.make("s", TEXT, b"old ")
    tail = (await site.add("s", b"new", {**TEXT, **producer("p", 0, 0)})).next
    assert (await site.ask("PUT", "s/snapshot/0000000000000004", TEXT, b"blob")).status == 204
    await site.bench.streams.checkpoint()
    await trio.sleep(60)  # its actor has gone, and its detail with it
    site.bench.engine.handles.release()
    return tail


async def ask_all(site: Site, tail: str) -> list[Reply]:
    return [
        await site.get("s?offset=0000000000000004"),
        await site.get("s?offset=0000000000000004&live=sse"),
        await site.get("s?offset=0000000000000004&live=long-poll"),
        await site.get("s/snapshot/0000000000000004"),
        await site.get("s/bootstrap"),
        await site.ask("HEAD", "s?at-message=1"),
        await site.ask("PUT", "fork", {"Stream-Forked-From": "/v1/stream/s",
                                       "Stream-Fork-Offset": "0000000000000004"}),
        await site.ask("PUT", f"s/snapshot/{tail}", TEXT, b"blob"),
        await site.ask("POST", "s", TEXT, b"x"),
        await site.ask("DELETE", "s"),
    ]  # fmt: skip


async def test_every_way_to_a_file_is_answered_503_and_recovers(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "_exhausted", Seldom(failures.logger, logging.WARNING))
    async with serving() as site:
        tail = await cold(site)
        site.bench.disk.open_error = "streams/"
        with caplog.at_level(logging.INFO):
            replies = await ask_all(site, tail)
        for reply in replies:
            assert (reply.status, reply["Retry-After"]) == (503, "1")
        (line,) = [record for record in caplog.records if record.name == failures.logger.name]
        assert line.levelno == logging.WARNING
        assert "Too many open files" in line.message
        assert not [record for record in caplog.records if record.exc_info]
        site.bench.disk.open_error = ""
        assert (await site.get("s?offset=0000000000000004")).body == b"new"
        assert (await site.get("s/bootstrap")).status == 200
        await site.add("s", b"er")
        assert (await site.get("s?offset=0000000000000004")).body == b"newer"


def test_what_comes_again_and_again_is_counted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("durastreamd.http.seldom.time.monotonic", lambda: now)
    seldom = Seldom(logging.getLogger("x"), logging.WARNING, every_s=60)
    for now in (100.0, 101.0, 159.0, 161.0, 162.0, 230.0):  # noqa: B007  # the clock
        seldom.say("out of %s", "air")
    assert [record.getMessage() for record in caplog.records] == [
        "out of air",
        "out of air (and 2 times since this was last said)",
        "out of air (and 1 times since this was last said)",
    ]

"""The public Python client, durable-streams 0.1.0 from PyPI: blocking, and on asyncio."""

import asyncio
import threading
from typing import Literal

import httpx
import pytest
from durable_streams import (
    AsyncDurableStream,
    DurableStream,
    DurableStreamError,
    StreamExistsError,
    astream,
    stream,
)

from tests.support.daemon import Daemon
from tests.support.patience import PATIENCE_S, wait_until

pytestmark = [pytest.mark.system]

Live = Literal["long-poll", "sse"]
LIVE: tuple[Live, ...] = ("long-poll", "sse")


def test_blocking_create_append_and_read_work(daemon: Daemon) -> None:
    url = daemon.stream("pypi")
    with DurableStream.create(url, content_type="application/json", body=[{"n": 0}]) as handle:
        first = handle.append({"n": 1})
        second = handle.append({"n": 2})
        assert first.next_offset < second.next_offset
        assert handle.head().offset == second.next_offset
        with stream(url, live=False) as read:
            assert read.read_json() == [{"n": 0}, {"n": 1}, {"n": 2}]
        with stream(url, offset=first.next_offset, live=False) as read:
            assert read.read_json() == [{"n": 2}]
        with pytest.raises(StreamExistsError):
            DurableStream.create(url, content_type="text/plain")
        handle.delete()


def test_blocking_read_of_bytes_gives_what_was_written(daemon: Daemon) -> None:
    url = daemon.stream("pypi")
    every = bytes(range(256))
    with DurableStream.create(url, content_type="application/octet-stream") as handle:
        handle.append(every)
        with stream(url, live=False) as read:
            assert read.read_bytes() == every


@pytest.mark.parametrize("live", LIVE)
def test_blocking_live_reader_sees_later_appends(daemon: Daemon, live: Live) -> None:
    url = daemon.stream("pypi")
    with DurableStream.create(url, content_type="application/json") as handle:
        handle.append("early")
        with stream(url, offset="-1", live=live) as read:
            items = read.iter_json()
            assert next(items) == "early"
            for word in ("one", "two"):
                handle.append(word)
                assert next(items) == word


def test_asyncio_create_append_and_read_work(daemon: Daemon) -> None:
    url = daemon.stream("pypi")

    async def scenario() -> object:
        created = await AsyncDurableStream.create(url, content_type="application/json")
        async with created as handle:
            await asyncio.gather(*(handle.append({"n": n}) for n in range(20)))
            async with astream(url, live=False) as read:
                return await read.read_json()

    assert asyncio.run(scenario()) == [{"n": n} for n in range(20)]


@pytest.mark.parametrize("live", LIVE)
def test_asyncio_live_reader_sees_later_appends(daemon: Daemon, live: Live) -> None:
    url = daemon.stream("pypi")

    async def scenario() -> list[object]:
        seen: list[object] = []
        created = await AsyncDurableStream.create(url, content_type="application/json")
        async with created as handle, astream(url, offset="-1", live=live) as read:
            await handle.append(0)
            async for item in read.iter_json():
                seen.append(item)
                if len(seen) == 3:
                    break
                await handle.append(len(seen))
        return seen

    assert asyncio.run(scenario()) == [0, 1, 2]


def test_a_client_that_does_not_know_closed_streams_is_paced(daemon: Daemon) -> None:
    """Version 0.1.0 goes on polling at the end of a closed stream; each answer comes after a pause.

    How long the pause is, tests/service shows on a clock of its own.
    """
    url = daemon.stream("pypi")
    httpx.put(url, headers={"Content-Type": "text/plain", "Stream-Closed": "true"}, content="all")

    def paused() -> float:
        for text in httpx.get(f"{daemon.url}/-/metrics").text.splitlines():
            if text.startswith("durastreamd_closed_stream_pauses_total"):
                return float(text.split()[1])
        return 0.0

    polls = threading.Thread(target=_follow, args=(url,))
    polls.start()
    wait_until(lambda: paused() >= 5, "it does not poll, or is not paced")
    httpx.delete(url)  # which is how such a client can be stopped
    polls.join(PATIENCE_S)
    assert not polls.is_alive()


def _follow(url: str) -> None:
    try:
        with stream(url, offset="-1", live="long-poll") as read:
            for _ in read.iter_text():
                pass
    except DurableStreamError:
        pass  # the stream was deleted

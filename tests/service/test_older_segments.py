"""Reads that begin in older segments and go on over several: every form, more than one piece."""

import gzip
from collections.abc import AsyncIterator

import pytest
import trio

from durastreamd.engine.options import EngineOptions
from durastreamd.protocol import offsets
from tests.service.harness import Site, serving
from tests.support.patience import PATIENCE_S

JSON = {"Content-Type": "application/json"}
BINARY = {"Content-Type": "application/octet-stream"}
MESSAGES = [b'"%s"' % (b"%d" % number * 100_000) for number in range(8)]


@pytest.fixture
async def stored() -> AsyncIterator[Site]:
    """A site with a JSON and a binary stream of several segments, at rest."""
    async with serving(options=EngineOptions(segment_bytes_max=250_000)) as site:
        for name, head in (("j", JSON), ("b", BINARY)):
            await site.make(name, head)
            for message in MESSAGES:
                await site.add(name, message, head)
                await site.bench.streams.checkpoint()
        yield site


STARTS = ["offset=-1", f"offset={offsets.mint(0)}", f"offset={offsets.mint(0)}&live=long-poll"]


@pytest.mark.parametrize("start", STARTS)
async def test_json_is_whole_in_every_form(stored: Site, start: str) -> None:
    page = await stored.get(f"j?{start}")
    assert (page.status, page.body) == (200, b"[" + b",\n".join(MESSAGES) + b"]")
    lines = await stored.get(f"j?{start}", {"Accept": "application/x-ndjson"})
    assert (lines.status, lines.body) == (200, b"".join(each + b"\n" for each in MESSAGES))


@pytest.mark.parametrize("start", STARTS)
async def test_bytes_are_whole_in_every_form(stored: Site, start: str) -> None:
    page = await stored.get(f"b?{start}")
    assert (page.status, page.body) == (200, b"".join(MESSAGES))
    framed = await stored.get(f"b?{start}", {"Accept": "application/vnd.durastream.messages"})
    expected = b"".join(len(each).to_bytes(4, "big") + each for each in MESSAGES)
    assert (framed.status, framed.body) == (200, expected)


@pytest.mark.parametrize("number", range(1, len(MESSAGES)))
async def test_a_read_may_begin_in_any_segment(stored: Site, number: int) -> None:
    at = sum(len(message) for message in MESSAGES[:number])
    page = await stored.get(f"b?offset={offsets.mint(at)}")
    assert (page.status, page.body) == (200, b"".join(MESSAGES[number:]))


@pytest.mark.parametrize("accept", ["*/*", "gzip"])
async def test_a_segment_of_one_byte_at_the_end_is_read(accept: str) -> None:
    """Its one byte is no half of a separator, which JSON alone has: the piece before ends there."""
    async with serving(options=EngineOptions(segment_bytes_max=250_000)) as site:
        for name, head in (("b", BINARY), ("t", {"Content-Type": "text/plain"})):
            await site.make(name, head)
            for body in (b"x" * 300_000, b"y"):
                await site.add(name, body, head)
                await site.bench.streams.checkpoint()
            with trio.fail_after(PATIENCE_S):
                page = await site.get(f"{name}?offset=-1", {"Accept-Encoding": accept})
            body = gzip.decompress(page.body) if page.get("content-encoding") else page.body
            assert (page.status, body) == (200, b"x" * 300_000 + b"y")

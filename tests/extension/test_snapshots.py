"""Snapshots to the letter of docs/extension.md, on both surfaces."""

import gc
import random
import sys
from typing import NamedTuple

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from durastreamd.engine.options import EngineOptions
from durastreamd.http.limits import HttpLimits
from durastreamd.service.limits import Limits, WriteLimits
from tests.extension.tools import BUCKET, files, make, publish, token
from tests.service.harness import (
    BINARY,
    CLOSE,
    JSON,
    PREFIX,
    TEXT,
    Connection,
    Reply,
    Site,
    request_bytes,
    serving,
)

SMALL = Limits(writes=WriteLimits(snapshot_bytes_max=10))
FITS, LARGE = b"x" * 10, b"x" * 11
BIG = random.Random(1).randbytes(2 * 1024 * 1024)
URLS = (PREFIX + "notes/doc", f"/{BUCKET}/doc")


class Case(NamedTuple):
    """A request on a stream of messages [0,4) [4,8) [8,12) with a snapshot at 4."""

    name: str
    method: str
    rest: str
    status: int
    code: str = ""
    body: bytes = b""
    next: int = -1


CASES = [
    Case("published at the tail", "PUT", f"snapshot/{token(12)}", 204, "", FITS, 12),
    Case("published inside", "PUT", f"snapshot/{token(8)}", 204, "", FITS, 12),
    Case("published again", "PUT", f"snapshot/{token(4)}", 204, "", FITS, 12),
    Case("published empty", "PUT", f"snapshot/{token(8)}", 204, "", b"", 12),
    Case("an encoded offset", "PUT", f"snapshot/%30{token(8)[1:]}", 204, "", FITS, 12),
    Case("no offset", "PUT", "snapshot/abc", 400, "INVALID_OFFSET", FITS),
    Case("an empty offset", "PUT", "snapshot/", 400, "INVALID_OFFSET", FITS),
    Case("a sentinel", "PUT", "snapshot/-1", 400, "INVALID_OFFSET", FITS),
    Case("now", "PUT", "snapshot/now", 400, "INVALID_OFFSET", FITS),
    Case("a short offset", "PUT", "snapshot/8", 400, "INVALID_OFFSET", FITS),
    Case("syntax before size", "PUT", "snapshot/8", 400, "INVALID_OFFSET", LARGE),
    Case("inside a message", "PUT", f"snapshot/{token(9)}", 400, "INVALID_OFFSET", FITS),
    Case("below the floor", "PUT", f"snapshot/{token(0)}", 410, "OFFSET_EXPIRED", FITS, 4),
    Case("floor, then alignment", "PUT", f"snapshot/{token(2)}", 410, "OFFSET_EXPIRED", FITS, 4),
    Case("floor before size", "PUT", f"snapshot/{token(2)}", 410, "OFFSET_EXPIRED", LARGE, 4),
    Case("above the tail", "PUT", f"snapshot/{token(13)}", 409, "SNAPSHOT_CONFLICT", FITS, 12),
    Case("tail before size", "PUT", f"snapshot/{token(13)}", 409, "SNAPSHOT_CONFLICT", LARGE, 12),
    Case("alignment before size", "PUT", f"snapshot/{token(9)}", 400, "INVALID_OFFSET", LARGE),
    Case("too large", "PUT", f"snapshot/{token(8)}", 413, "PAYLOAD_TOO_LARGE", LARGE),
    Case("the latest", "GET", "snapshot", 307),
    Case("the snapshot", "GET", f"snapshot/{token(4)}", 200, "", b"", 4),
    Case("its head", "HEAD", f"snapshot/{token(4)}", 200, "", b"", 4),
    Case("another one", "GET", f"snapshot/{token(8)}", 404, "SNAPSHOT_NOT_FOUND"),
    Case("delete the latest", "DELETE", f"snapshot/{token(4)}", 409, "SNAPSHOT_CONFLICT"),
    Case("delete another", "DELETE", f"snapshot/{token(8)}", 404, "SNAPSHOT_NOT_FOUND"),
    Case("no posting", "POST", f"snapshot/{token(4)}", 405, "METHOD_NOT_ALLOWED", FITS),
    Case("no offset to put to", "PUT", "snapshot", 405, "METHOD_NOT_ALLOWED", FITS),
    Case("no deleting of all", "DELETE", "snapshot", 405, "METHOD_NOT_ALLOWED"),
]


async def furnish(site: Site, url: str) -> None:
    await make(site, url, TEXT, b"aaaa", b"bbbb", b"cccc")
    await publish(site, url, token(4), b"folded", {"Content-Type": "text/x-folded"})


@pytest.mark.parametrize("url", URLS, ids=["path", "bucket"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_every_status_of_section_2_is_answered_in_the_order_of_checks(
    case: Case, url: str
) -> None:
    async with serving(SMALL) as site:
        await site.raw("PUT", f"/{BUCKET}")
        await furnish(site, url)
        reply = await site.raw(case.method, f"{url}/{case.rest}", BINARY, case.body)
        assert reply.status == case.status, reply
        if case.code:
            assert reply.problem == case.code
        if case.next >= 0:
            assert reply.next == token(case.next)
        if case.status >= 400:
            assert (await site.raw("GET", f"{url}/snapshot/{token(4)}")).body == b"folded"
            assert len(files(site.bench.disk, ".snap")) == 1


@pytest.mark.parametrize("rest", ["snapshot", f"snapshot/{token(0)}", "snapshot/abc"])
async def test_a_stream_that_does_not_exist_comes_before_everything_else(
    site: Site, url: str, rest: str
) -> None:
    for method in ("GET", "HEAD", "PUT", "DELETE"):
        reply = await site.raw(method, f"{url}/{rest}", BINARY if method == "PUT" else None)
        assert reply.status == 404, (method, reply)


async def test_a_stream_without_a_snapshot_has_none_to_redirect_to(site: Site, url: str) -> None:
    await make(site, url, TEXT, b"aaaa")
    reply = await site.raw("GET", f"{url}/snapshot")
    assert (reply.status, reply.problem) == (404, "SNAPSHOT_NOT_FOUND")
    assert (await site.raw("HEAD", url)).get("Stream-Snapshot-Offset") is None
    assert (await site.raw("DELETE", f"{url}/snapshot/{token(4)}")).status == 404


async def test_head_redirect_and_snapshot_name_the_same_offset(site: Site, url: str) -> None:
    await furnish(site, url)
    for position in (4, 8, 12):
        await publish(site, url, token(position), b"folded")
        assert (await site.raw("HEAD", url))["Stream-Snapshot-Offset"] == token(position)
        redirect = await site.raw("GET", f"{url}/snapshot")
        assert redirect["Location"] == f"{url}/snapshot/{token(position)}"
        reply = await site.raw("GET", redirect["Location"])
        assert (reply.status, reply.body) == (200, b"folded")
        assert reply["Stream-Snapshot-Offset"] == reply.next == token(position)
        assert reply.get("Stream-Up-To-Date") == ("true" if position == 12 else None)


async def test_the_redirect_keeps_the_spelling_of_the_name(site: Site) -> None:
    await furnish(site, f"/{BUCKET}/a%20b%E2%98%83")
    reply = await site.raw("GET", f"/{BUCKET}/a%20b%E2%98%83/snapshot")
    assert reply["Location"] == f"/{BUCKET}/a%20b%E2%98%83/snapshot/{token(4)}"


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (None, "application/octet-stream"),
        ("application/json", "application/json"),
        ('Application/X-Yjs; v="2"', 'Application/X-Yjs; v="2"'),
    ],
)
async def test_the_content_type_of_a_snapshot_is_its_own(
    site: Site, url: str, sent: str | None, kept: str
) -> None:
    await make(site, url, TEXT, b"aaaa")
    await publish(site, url, token(4), b"{}", {"Content-Type": sent} if sent else None)
    assert (await site.raw("GET", f"{url}/snapshot/{token(4)}"))["Content-Type"] == kept
    assert (await site.raw("HEAD", url))["Content-Type"] == "text/plain"


async def test_head_of_a_snapshot_has_its_length_and_no_body(site: Site, url: str) -> None:
    await furnish(site, url)
    reply = await site.raw("HEAD", f"{url}/snapshot/{token(4)}")
    assert (reply.status, reply["Content-Length"], reply.body) == (200, "6", b"")


@pytest.mark.parametrize(
    "query",
    ["", "?offset=-1", f"?offset={token(0)}", f"?offset={token(4)}", f"?offset={token(6)}"],
)
@pytest.mark.parametrize("live", ["", "live=long-poll", "live=sse"])
async def test_a_read_below_the_snapshot_is_410_and_names_the_floor(
    site: Site, url: str, query: str, live: str
) -> None:
    if live and not query:
        return  # refused for another reason
    await make(site, url, TEXT, b"aaaa", b"bbbb", b"cccc")
    await publish(site, url, token(8), b"folded")
    reply = await site.raw("GET", url + query + (f"&{live}" if live else ""))
    assert (reply.status, reply.json["code"]) == (410, "OFFSET_EXPIRED")
    assert reply.next == token(8)


async def test_a_read_from_the_snapshot_on_gives_messages_and_no_snapshot_bytes(
    site: Site, url: str
) -> None:
    await furnish(site, url)
    assert (await site.raw("GET", f"{url}?offset={token(4)}")).body == b"bbbbcccc"
    assert (await site.raw("GET", f"{url}?offset={token(8)}")).body == b"cccc"
    at_tail = await site.raw("GET", f"{url}?offset=now")
    assert (at_tail.status, at_tail.body, at_tail.next) == (200, b"", token(12))


async def test_after_a_snapshot_at_the_very_start_minus_one_is_410_too(
    site: Site, url: str
) -> None:
    await make(site, url, TEXT, b"aaaa")
    await publish(site, url, token(0), b"the state to begin with")
    assert (await site.raw("GET", f"{url}?offset={token(0)}")).body == b"aaaa"
    assert (await site.raw("GET", f"{url}?offset=-1")).status == 410


async def test_alignment_of_json_is_that_of_values(site: Site, url: str) -> None:
    await make(site, url, JSON, b"[1,2,3]")
    for position, status in ((1, 400), (2, 400), (3, 204), (4, 400), (6, 204), (9, 204)):
        reply = await site.raw("PUT", f"{url}/snapshot/{token(position)}", JSON, b"{}")
        assert reply.status == status, position


async def test_publishing_at_the_same_offset_replaces_the_snapshot(site: Site, url: str) -> None:
    await furnish(site, url)
    await publish(site, url, token(4), b"better", JSON)
    reply = await site.raw("GET", f"{url}/snapshot/{token(4)}")
    assert (reply.body, reply["Content-Type"]) == (b"better", "application/json")
    await site.bench.streams.checkpoint()
    assert list(files(site.bench.disk, ".snap").values()) == [6]


async def test_a_closed_stream_takes_snapshots(site: Site, url: str) -> None:
    await make(site, url, TEXT, b"aaaa")
    await site.raw("POST", url, CLOSE)
    await publish(site, url, token(4), b"folded")
    reply = await site.raw("GET", f"{url}?offset={token(4)}")
    assert (reply.status, reply["Stream-Closed"]) == (200, "true")


async def begin(site: Site, target: str, length: int, body: bytes) -> Connection:
    """Begin an upload and send a part of it."""
    made = site.connect()
    head = {**BINARY, "Content-Length": str(length)}
    await made.send_bytes(request_bytes("PUT", target, head, body), "PUT")
    await wait_all_tasks_blocked(0.01)
    return made


async def end(connection: Connection, rest: bytes) -> Reply:
    """Send the rest of an upload."""
    data = memoryview(rest)
    while data:
        data = data[await connection.sock.send(data) :]
    return await connection.whole()


async def test_appends_go_on_while_a_large_snapshot_is_uploaded_slowly(
    site: Site, url: str
) -> None:
    await make(site, url, TEXT, b"aaaa")
    upload = await begin(site, f"{url}/snapshot/{token(4)}", len(BIG), BIG[:400_000])
    for number in range(20):
        reply = await site.raw("POST", url, TEXT, b"more")
        assert (reply.status, reply.next) == (204, token(8 + 4 * number))
    assert (await site.raw("GET", f"{url}?offset=-1")).status == 200, "not yet published"
    assert (await site.raw("HEAD", url)).get("Stream-Snapshot-Offset") is None
    assert (await end(upload, BIG[400_000:])).status == 204
    reply = await site.raw("GET", f"{url}/snapshot/{token(4)}")
    assert reply.body == BIG
    assert reply.get("Stream-Up-To-Date") is None
    assert (await site.raw("GET", f"{url}?offset={token(4)}")).body == b"more" * 20


async def test_an_upload_that_is_broken_off_leaves_nothing(site: Site, url: str) -> None:
    await furnish(site, url)
    upload = await begin(site, f"{url}/snapshot/{token(8)}", len(BIG), BIG[:700_000])
    assert len(files(site.bench.disk, ".snap")) == 2, "it is on its way"
    upload.hang_up()
    await wait_all_tasks_blocked(0.01)
    assert len(files(site.bench.disk, ".snap")) == 1
    assert (await site.raw("HEAD", url))["Stream-Snapshot-Offset"] == token(4)
    assert (await site.raw("GET", f"{url}?offset={token(4)}")).status == 200


async def upload_in_chunks(site: Site) -> Reply:
    """Send 12 bytes of undeclared length where 10 are allowed."""
    await site.make("doc", TEXT, b"aaaa")
    made = site.connect()
    target = f"{PREFIX}doc/snapshot/{token(4)}"
    head = {**BINARY, "Transfer-Encoding": "chunked"}
    request = request_bytes("PUT", target, head).replace(b"Content-Length: 0\r\n", b"")
    await made.send_bytes(request + b"6\r\nxxxxxx\r\n" * 2 + b"0\r\n\r\n", "PUT")
    return await made.whole()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_chunked_upload_that_grows_too_large_is_413_and_leaves_nothing() -> None:
    async with serving(SMALL) as site:
        assert (await upload_in_chunks(site)).status == 413
        assert files(site.bench.disk, ".snap") == {}
    gc.collect()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_an_upload_that_is_refused_closes_the_generator_of_its_body(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: left.append(unraisable.object))
    async with serving(SMALL) as site:
        await upload_in_chunks(site)
    gc.collect()
    assert left == []


def test_the_size_limit_of_snapshots_is_reachable_under_that_of_bodies() -> None:
    assert HttpLimits().body_bytes_max >= WriteLimits().snapshot_bytes_max


async def test_the_slower_of_two_uploads_finds_itself_outdated(site: Site, url: str) -> None:
    await make(site, url, TEXT, b"aaaa", b"bbbb")
    upload = await begin(site, f"{url}/snapshot/{token(4)}", 10, b"half ")
    await publish(site, url, token(8), b"newer")
    reply = await end(upload, b"whole")
    assert (reply.status, reply.next) == (410, token(8))
    assert len(files(site.bench.disk, ".snap")) == 1
    assert (await site.raw("GET", f"{url}/snapshot/{token(8)}")).body == b"newer"


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "made anew"])
@pytest.mark.parametrize("checkpoint", [False, True])
async def test_a_stream_deleted_during_an_upload_is_404(
    site: Site, url: str, *, again: bool, checkpoint: bool
) -> None:
    await make(site, url, TEXT, b"aaaa")
    upload = await begin(site, f"{url}/snapshot/{token(4)}", len(BIG), BIG[:700_000])
    assert (await site.raw("DELETE", url)).status == 204
    if checkpoint:
        await site.bench.streams.checkpoint()
    if again:
        await make(site, url, TEXT, b"aaaa")
    assert (await end(upload, BIG[700_000:])).status == 404
    assert files(site.bench.disk, ".snap") == {}
    if again:
        assert (await site.raw("HEAD", url)).get("Stream-Snapshot-Offset") is None


@pytest.mark.usefixtures("autojump_clock")
async def test_a_reader_of_a_snapshot_gets_the_one_it_began_with(site: Site, url: str) -> None:
    await make(site, url, TEXT, b"aaaa", b"bbbb")
    await publish(site, url, token(4), BIG)
    reader = site.connect(4096)
    await reader.send("GET", f"{url}/snapshot/{token(4)}", None)
    assert (await reader.head()).status == 200
    await publish(site, url, token(8), b"newer")
    await site.bench.streams.checkpoint()
    await site.bench.streams.checkpoint()
    assert (await site.raw("GET", f"{url}/snapshot/{token(4)}")).status == 404
    reply = await reader.whole()
    assert reply.body == BIG
    assert (await site.raw("POST", url, TEXT, b"cccc")).status == 204
    await site.bench.streams.checkpoint()
    assert list(files(site.bench.disk, ".snap").values()) == [5]


@pytest.mark.parametrize("rest", [f"snapshot/{token(4)}", "bootstrap"])
async def test_nothing_is_given_out_of_a_damaged_snapshot(site: Site, url: str, rest: str) -> None:
    await make(site, url, TEXT, b"aaaa")
    await publish(site, url, token(4), BIG)
    (path,) = files(site.bench.disk, ".snap")

    def flip(data: bytearray) -> None:
        data[1_000_000] ^= 1

    site.bench.disk.damage(path, flip)
    reply = await site.raw("GET", f"{url}/{rest}")
    assert (reply.status, reply.json["code"]) == (500, "STREAM_DAMAGED")


async def test_a_reader_of_messages_is_not_cut_off_by_a_snapshot() -> None:
    async with serving(options=EngineOptions(segment_bytes_max=100_000)) as site:
        url = PREFIX + "doc"
        pieces = [BIG[at : at + 65536] for at in range(0, len(BIG), 65536)]
        await make(site, url, BINARY)
        for piece in pieces:
            assert (await site.raw("POST", url, BINARY, piece)).status == 204
            await site.bench.streams.checkpoint()
        reader = await site.open("doc?offset=-1", buffer_bytes=4096)
        assert (await reader.head()).status == 200
        await publish(site, url, token(len(BIG)), b"folded")
        await site.bench.streams.checkpoint()
        assert (await site.raw("GET", f"{url}?offset=-1")).status == 410
        assert (await reader.whole()).body == BIG


async def test_a_snapshot_frees_the_disk_with_the_next_checkpoint() -> None:
    async with serving(options=EngineOptions(segment_bytes_max=1000)) as site:
        disk, url = site.bench.disk, PREFIX + "doc"
        await make(site, url, BINARY)
        for _ in range(20):
            assert (await site.raw("POST", url, BINARY, b"x" * 1000)).status == 204
            await site.bench.streams.checkpoint()
        assert sum(files(disk, ".log").values()) == 20_000
        await publish(site, url, token(19_000), b"y" * 500)
        await site.bench.streams.checkpoint()
        assert sum(files(disk, ".log").values()) <= 2000
        assert len(files(disk, ".idx")) <= 2
        for number in range(5):
            await publish(site, url, token(19_000 + 1000 * (number % 2)), b"z" * 700)
            if number % 2:
                break
        await site.bench.streams.checkpoint()
        assert list(files(disk, ".snap").values()) == [700]
        reply = await site.raw("GET", f"{url}?offset={token(20_000)}")
        assert (reply.status, reply.body) == (200, b"")


async def test_forks_keep_the_data_and_the_snapshot_they_inherited(site: Site, url: str) -> None:
    await make(site, url, TEXT, b"aaaa", b"bbbb", b"cccc")
    before, after = PREFIX + "before", f"/{BUCKET}/after"
    await site.raw("PUT", before, {"Stream-Forked-From": url})
    await publish(site, url, token(4), b"folded once")
    await site.raw("PUT", after, {"Stream-Forked-From": url})
    await publish(site, url, token(12), b"folded twice")
    for _ in range(3):
        await site.bench.streams.checkpoint()
        await _forks_are_whole(site, before, after)
        await site.raw("DELETE", url)
        await site.raw("POST", before, TEXT, b"!")
    assert (await site.raw("DELETE", before)).status == 204
    assert (await site.raw("DELETE", after)).status == 204
    await site.bench.streams.checkpoint()
    assert files(site.bench.disk, "") == {}


async def _forks_are_whole(site: Site, before: str, after: str) -> None:
    reply = await site.raw("GET", f"{before}?offset=-1")
    assert reply.body.startswith(b"aaaabbbbcccc")
    assert (await site.raw("GET", f"{before}/snapshot")).status == 404
    assert (await site.raw("GET", f"{after}?offset=-1")).status == 410
    assert (await site.raw("GET", f"{after}?offset={token(4)}")).body == b"bbbbcccc"
    location = (await site.raw("GET", f"{after}/snapshot"))["Location"]
    assert location == f"{after}/snapshot/{token(4)}"
    assert (await site.raw("GET", location)).body == b"folded once"


async def test_a_fork_publishes_without_touching_its_source(site: Site, url: str) -> None:
    await make(site, url, TEXT, b"aaaa", b"bbbb")
    fork = PREFIX + "fork"
    await site.raw("PUT", fork, {"Stream-Forked-From": url})
    await publish(site, fork, token(4), b"of the fork")
    assert (await site.raw("GET", f"{fork}?offset=-1")).status == 410
    assert (await site.raw("GET", f"{url}?offset=-1")).body == b"aaaabbbb"
    await site.bench.streams.checkpoint()
    assert (await site.raw("GET", f"{url}?offset=-1")).body == b"aaaabbbb"
    assert (await site.raw("GET", f"{fork}/snapshot/{token(4)}")).body == b"of the fork"


async def test_a_fork_below_the_floor_of_its_source_is_410(site: Site, url: str) -> None:
    await furnish(site, url)
    for offset in ("-1", token(0)):
        head = {"Stream-Forked-From": url, "Stream-Fork-Offset": offset}
        reply = await site.raw("PUT", PREFIX + "fork", head)
        assert (reply.status, reply.json["code"]) == (410, "OFFSET_EXPIRED")


@pytest.mark.usefixtures("autojump_clock")
async def test_a_live_reader_at_the_tail_goes_on_over_a_snapshot(site: Site, url: str) -> None:
    await make(site, url, TEXT, b"aaaa")
    events = site.connect()
    await events.send("GET", f"{url}?offset={token(4)}&live=sse", None)
    assert (await events.head()).status == 200
    await publish(site, url, token(4), b"folded")
    await site.raw("POST", url, TEXT, b"later")
    text = b""
    with trio.fail_after(5):
        while b"later" not in text:
            text += await events.step()
    assert b"folded" not in text

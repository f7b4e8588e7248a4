"""Bootstrap to the letter of docs/extension.md: parts, headers, one consistent moment."""

import email
import random
import re
import secrets
from email.message import Message

import h11
import pytest

from durastreamd.engine.options import EngineOptions
from tests.extension.tools import (
    BUCKET,
    Part,
    bootstrapped,
    boundary_of,
    make,
    parts_of,
    publish,
    token,
)
from tests.service.harness import BINARY, CLOSE, JSON, PREFIX, TEXT, HungUpError, Site, serving

EMPTY = Part("application/octet-stream", b"")
OCTETS = "application/octet-stream"
BIG = random.Random(2).randbytes(3 * 1024 * 1024)
AWKWARD = [
    b"\r\n",
    b"\r\n\r\n",
    b"--",
    b"\r\n--durastream-",
    b"--durastream-00000000000000000000000000000000--\r\n",
    b"\r\nContent-Type: text/html\r\n\r\nbody",
    bytes(range(256)),
    b"\0",
    b"ends with CR\r",
    b"\nbegins with LF",
]


async def test_a_stream_without_a_snapshot_begins_with_an_empty_part(site: Site, url: str) -> None:
    await make(site, url, TEXT, b"one", b"two")
    reply = await site.raw("GET", f"{url}/bootstrap")
    assert bootstrapped(reply) == [EMPTY, Part("text/plain", b"one"), Part("text/plain", b"two")]
    assert reply["Stream-Snapshot-Offset"] == "-1"
    assert (reply.next, reply["Stream-Up-To-Date"]) == (token(6), "true")
    assert reply["Cache-Control"] == "no-store"
    assert reply.get("Stream-Closed") is None


async def test_an_empty_stream_has_the_empty_part_alone(site: Site, url: str) -> None:
    await make(site, url, JSON)
    reply = await site.raw("GET", f"{url}/bootstrap")
    assert bootstrapped(reply) == [EMPTY]
    assert reply.next == token(0)


async def test_a_snapshot_comes_first_with_its_own_type_and_then_what_follows_it(
    site: Site, url: str
) -> None:
    await make(site, url, TEXT, b"one", b"two", b"three")
    await publish(site, url, token(6), b"folded", {"Content-Type": "application/x-fold; v=1"})
    reply = await site.raw("GET", f"{url}/bootstrap")
    assert bootstrapped(reply) == [
        Part("application/x-fold; v=1", b"folded"),
        Part("text/plain", b"three"),
    ]
    assert reply["Stream-Snapshot-Offset"] == token(6)
    assert reply.next == token(11)
    follow = await site.raw("GET", f"{url}?offset={reply.next}")
    assert (follow.status, follow.body) == (200, b"")


@pytest.mark.parametrize("blob", [b"", b"x", b"\r\n--\r\n", BIG], ids=["empty", "x", "crlf", "big"])
async def test_a_snapshot_at_the_tail_is_followed_by_nothing(
    site: Site, url: str, blob: bytes
) -> None:
    await make(site, url, TEXT, b"one")
    await publish(site, url, token(3), blob)
    parts = bootstrapped(await site.raw("GET", f"{url}/bootstrap"))
    assert parts == [Part(OCTETS, blob)]


async def test_binary_messages_come_through_to_the_byte(site: Site, url: str) -> None:
    await make(site, url, BINARY, *AWKWARD)
    await site.bench.streams.checkpoint()
    for body in AWKWARD:
        await site.raw("POST", url, BINARY, body)
    parts = bootstrapped(await site.raw("GET", f"{url}/bootstrap"))
    assert parts == [EMPTY, *(Part(OCTETS, body) for body in AWKWARD * 2)]


async def test_json_messages_are_values_without_separators(site: Site, url: str) -> None:
    await make(site, url, JSON, b'[{"a": 1}, [2, 3], "x,\\n"]', b"4", b'{"b":\n5}', b"[[], {}]")
    parts = bootstrapped(await site.raw("GET", f"{url}/bootstrap"))
    bodies = [b'{"a": 1}', b"[2, 3]", b'"x,\\n"', b"4", b'{"b": 5}', b"[]", b"{}"]
    assert parts == [EMPTY, *(Part("application/json", body) for body in bodies)]


async def test_the_email_package_of_python_reads_the_same_parts(site: Site, url: str) -> None:
    head = {"Content-Type": "text/plain; charset=utf-8"}
    await make(site, url, head, b"one", "z\u00fcrich".encode(), b"three")
    await publish(site, url, token(3), b"folded", JSON)
    reply = await site.raw("GET", f"{url}/bootstrap")
    text = f"Content-Type: {reply['Content-Type']}\r\n\r\n".encode() + reply.body
    message = email.message_from_bytes(text)
    assert not message.defects
    payload = message.get_payload()
    assert isinstance(payload, list)
    parts = [part for part in payload if isinstance(part, Message)]
    kinds = ["application/json", "text/plain", "text/plain"]
    assert [part.get_content_type() for part in parts] == kinds
    bodies = [b"folded", "z\u00fcrich".encode(), b"three"]
    assert [part.get_payload(decode=True) for part in parts] == bodies


@pytest.mark.parametrize(
    "query", ["?live=sse", "?live=long-poll", "?live=", "?live", "?x=1&live=1"]
)
async def test_live_is_refused(site: Site, url: str, query: str) -> None:
    await make(site, url, TEXT, b"one")
    reply = await site.raw("GET", f"{url}/bootstrap{query}")
    assert (reply.status, reply.json["code"]) == (400, "BAD_REQUEST")


async def test_a_missing_stream_is_404_and_other_methods_405(site: Site, url: str) -> None:
    assert (await site.raw("GET", f"{url}/bootstrap")).status == 404
    await make(site, url, TEXT, b"one")
    for method in ("PUT", "POST", "DELETE"):
        assert (await site.raw(method, f"{url}/bootstrap", TEXT, b"x")).status == 405
    reply = await site.raw("HEAD", f"{url}/bootstrap")
    assert (reply.status, reply.body, reply["Stream-Snapshot-Offset"]) == (200, b"", "-1")


async def test_a_closed_stream_says_so(site: Site, url: str) -> None:
    await make(site, url, TEXT, b"one")
    await site.raw("POST", url, {**TEXT, **CLOSE}, b"last")
    reply = await site.raw("GET", f"{url}/bootstrap")
    assert [part.body for part in bootstrapped(reply)] == [b"", b"one", b"last"]
    assert reply["Stream-Closed"] == "true"


async def test_a_fork_is_bootstrapped_with_what_it_inherited(site: Site, url: str) -> None:
    await make(site, url, TEXT, b"one", b"two", b"three")
    await publish(site, url, token(3), b"folded")
    fork = f"/{BUCKET}/fork"
    head = {"Stream-Forked-From": url, "Stream-Fork-Offset": token(6)}
    head["Stream-Fork-Sub-Offset"] = "2"
    assert (await site.raw("PUT", fork, head)).status == 201
    await site.raw("POST", fork, TEXT, b"own")
    await publish(site, url, token(11), b"newer")
    await site.bench.streams.checkpoint()
    reply = await site.raw("GET", f"{fork}/bootstrap")
    assert [part.body for part in bootstrapped(reply)] == [b"folded", b"two", b"th", b"own"]
    assert (reply["Stream-Snapshot-Offset"], reply.next) == (token(3), token(11))


async def test_boundaries_differ_and_occur_in_no_part(site: Site, url: str) -> None:
    await make(site, url, BINARY, *AWKWARD)
    seen = set()
    for _ in range(20):
        reply = await site.raw("GET", f"{url}/bootstrap")
        boundary = boundary_of(reply["Content-Type"])
        assert re.fullmatch(rb"[0-9A-Za-z'()+_,./:=?-]{1,70}", boundary)
        assert not any(boundary in part.body for part in bootstrapped(reply))
        seen.add(boundary)
    assert len(seen) == 20


@pytest.mark.parametrize("where", ["message", "snapshot", "across pieces"])
async def test_an_answer_whose_boundary_occurs_in_a_part_is_broken_off(
    site: Site, url: str, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(secrets, "token_hex", lambda _size: "ab" * 16)
    poison = b"--durastream-" + b"ab" * 16
    if where == "message":
        await make(site, url, BINARY, b"one", b"x" + poison)
    else:
        await make(site, url, BINARY, b"one")
        before = 256 * 1024 - 20 if where == "across pieces" else 5
        await publish(site, url, token(3), b"x" * before + poison + b"x" * 1000)
    connection = site.connect()
    await connection.send("GET", f"{url}/bootstrap", None)
    with pytest.raises((h11.RemoteProtocolError, HungUpError)):
        await connection.whole()


@pytest.mark.usefixtures("autojump_clock")
async def test_messages_appended_while_it_is_sent_are_left_to_the_tail(
    site: Site, url: str
) -> None:
    pieces = [BIG[at : at + 65536] for at in range(0, len(BIG), 65536)]
    await make(site, url, BINARY, *pieces)
    reader = site.connect(4096)
    await reader.send("GET", f"{url}/bootstrap", None)
    head = await reader.head()
    await site.raw("POST", url, BINARY, b"later")
    await site.raw("POST", url, CLOSE)
    reply = await reader.whole()
    assert [part.body for part in bootstrapped(reply)] == [b"", *pieces]
    assert head.next == token(len(BIG))
    tail = await site.raw("GET", f"{url}?offset={head.next}")
    assert tail.body == b"later"


@pytest.mark.usefixtures("autojump_clock")
async def test_it_ends_with_what_it_began_with_when_a_snapshot_is_published_meanwhile(
    site: Site, url: str
) -> None:
    await make(site, url, TEXT, b"one", b"two", b"three")
    await publish(site, url, token(3), BIG)
    reader = site.connect(4096)
    await reader.send("GET", f"{url}/bootstrap", None)
    head = await reader.head()
    await publish(site, url, token(11), b"newer")
    await site.bench.streams.checkpoint()
    await site.bench.streams.checkpoint()
    parts = bootstrapped(await reader.whole())
    assert parts[0].body == BIG
    assert head["Stream-Snapshot-Offset"] == token(3)
    assert [part.body for part in parts[1:]] == [b"two", b"three"]


async def test_large_messages_are_read_to_the_end_after_a_snapshot_freed_them() -> None:
    async with serving(options=EngineOptions(segment_bytes_max=100_000)) as site:
        pieces = [BIG[at : at + 65536] for at in range(0, len(BIG), 65536)]
        await site.make("doc", BINARY)
        for piece in pieces:
            await site.add("doc", piece, BINARY)
            await site.bench.streams.checkpoint()
        reader = site.connect(4096)
        await reader.send("GET", f"{PREFIX}doc/bootstrap", None)
        received = b""
        await reader.head()
        while len(received) < 300_000:
            received += await reader.step()
        reader.reply.body = received
        await publish(site, PREFIX + "doc", token(len(BIG)), b"folded")
        await site.bench.streams.checkpoint()
        await site.bench.streams.checkpoint()
        reply = await reader.whole()
        assert [part.body for part in bootstrapped(reply)][1:] == pieces


@pytest.mark.usefixtures("autojump_clock")
async def test_an_sse_reader_that_a_snapshot_overtakes_is_sent_to_bootstrap(
    site: Site, url: str
) -> None:
    await make(site, url, BINARY, *(BIG[at : at + 65536] for at in range(0, len(BIG), 65536)))
    reader = site.connect(4096)
    await reader.send("GET", f"{url}?offset=-1&live=sse", None)
    await reader.head()
    await publish(site, url, token(len(BIG)), b"folded")
    text = b""
    with pytest.raises(h11.RemoteProtocolError):
        while not reader.reply.ended:
            text += await reader.step()
    assert text.endswith(b"\n\n"), "broken off between two events"
    reached = text.rpartition(b"id: ")[2].decode().strip()
    assert 0 < int(reached) < len(BIG)
    assert (await site.raw("GET", f"{url}?offset={reached}&live=sse")).status == 410
    assert bootstrapped(await site.raw("GET", f"{url}/bootstrap")) == [Part(OCTETS, b"folded")]


async def test_the_parser_of_these_tests_knows_the_example_of_rfc_2046() -> None:
    body = (
        b"--b\r\nContent-Type: text/plain\r\n\r\none\r\n"
        b"--b\r\nContent-Type: text/html\r\n\r\n\r\n--b--\r\n"
    )
    assert parts_of(body, b"b") == [Part("text/plain", b"one"), Part("text/html", b"")]
    with pytest.raises(AssertionError, match="close delimiter"):
        parts_of(body[:-6], b"b")

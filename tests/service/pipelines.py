"""Pipelined requests in any pieces, judged by a plain model of what is answered and stored.

The model takes the requests one by one and knows nothing of bytes on a wire. So it sees what a
comparison of one delivery with another does not: bytes of one request that end up in another.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import trio
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.http.harness import Client
from tests.service.harness import PREFIX, TEXT, Site, serving

STREAMS = ("a", "b")
WAIT_S = 1000.0  # of a mock clock


class Asked(NamedTuple):
    """One request: how it looks on the wire, and what it means."""

    wire: bytes
    method: str
    name: str
    body: bytes = b""
    refused: int = 0  # the status, if nothing may come of it


@dataclass
class Plain:
    """What was appended to each stream, in order."""

    stored: dict[str, bytes] = field(default_factory=lambda: dict.fromkeys(STREAMS, b""))

    def answer(self, asked: Asked) -> tuple[int, bytes | None]:
        """Do what a request asks for; return its status, and its body where that is data."""
        if asked.refused:
            return asked.refused, None
        if asked.method == "POST":
            self.stored[asked.name] += asked.body
            return 204, b""
        if asked.method == "HEAD":
            return 200, b""
        if asked.method == "PUT":
            return 200, None
        return 200, self.stored[asked.name]


def _head(method: str, name: str, *fields: str) -> bytes:
    lines = [f"{method} {PREFIX}{name} HTTP/1.1", "Host: localhost", *fields, "", ""]
    return "\r\n".join(lines).encode()


def post(name: str, body: bytes, *fields: str) -> Asked:
    length = f"Content-Length: {len(body)}"
    wire = _head("POST", name, "Content-Type: text/plain", length, *fields) + body
    return Asked(wire, "POST", name, body)


def chunked(name: str, body: bytes, cut: int) -> Asked:
    cut = max(1, min(cut, len(body)))
    wire = _head("POST", name, "Content-Type: text/plain", "Transfer-Encoding: chunked")
    for piece in filter(None, (body[:cut], body[cut:])):
        wire += b"%x\r\n%b\r\n" % (len(piece), piece)
    return Asked(wire + b"0\r\n\r\n", "POST", name, body)


def absolute(asked: Asked, scheme: str) -> Asked:
    """Return the same request with a URL for its target."""
    method, target, rest = asked.wire.split(b" ", 2)
    return asked._replace(wire=b"%b %b://localhost%b %b" % (method, scheme.encode(), target, rest))


def adorned(name: str, body: bytes, extension: bytes, trailers: bytes) -> Asked:
    """An append in one chunk, with what is read and dropped."""
    wire = _head("POST", name, "Content-Type: text/plain", "Transfer-Encoding: chunked")
    wire += b"%x%b\r\n%b\r\n0%b\r\n%b\r\n" % (len(body), extension, body, extension, trailers)
    return Asked(wire, "POST", name, body)


def after_empty_line(asked: Asked) -> Asked:
    """Return the same request as a client sends it that ends the body before with CRLF."""
    return asked._replace(wire=b"\r\n" + asked.wire)


def refused(name: str, body: bytes, kind: str) -> Asked:
    """A write whose body is there, all the same, and must not be taken for anything else."""
    length = f"Content-Length: {len(body)}"
    text = "Content-Type: text/plain"
    if kind == "no such stream":
        return Asked(_head("POST", "none", text, length) + body, "POST", name, refused=404)
    if kind == "another type":
        other = "Content-Type: application/json"
        return Asked(
            _head("POST", name, other, length) + b"1" * len(body), "POST", name, refused=409
        )
    if kind == "encoded":
        fields = (text, "Content-Encoding: gzip", length)
        return Asked(_head("POST", name, *fields) + body, "POST", name, refused=415)
    assert kind == "no method"
    return Asked(_head("PROPFIND", name, length) + body, "PROPFIND", name, refused=405)


# Bodies that look like requests: whoever takes one for the next request is found out.
BODIES = [b"x", b"hello", post("b", b"smuggled").wire, b"0\r\n\r\n", b"\r\n\r\n", b"y" * 3000]
names = st.sampled_from(STREAMS)
bodies = st.sampled_from(BODIES)
kinds = st.sampled_from(["no such stream", "another type", "encoded", "no method"])
plain_requests = st.one_of(
    st.builds(post, names, bodies),
    st.builds(post, names, bodies, st.sampled_from(["X-A: 1", "X-A: 1\r\nX-A: 2"])),
    st.builds(chunked, names, bodies, st.integers(1, 20)),
    st.builds(refused, names, bodies, kinds),
    st.builds(lambda name: Asked(_head("GET", f"{name}?offset=-1"), "GET", name), names),
    st.builds(lambda name: Asked(_head("HEAD", name), "HEAD", name), names),
    st.builds(
        lambda name, body: Asked(
            _head("GET", f"{name}?offset=-1", f"Content-Length: {len(body)}") + body, "GET", name
        ),
        names,
        bodies,
    ),
    st.builds(
        lambda name: Asked(
            _head("PUT", name, "Content-Type: text/plain", "Content-Length: 0"), "PUT", name
        ),
        names,
    ),
)
extensions = st.sampled_from([b"", b";a=b", b" ; a", b';a="0;0"'])
trailers = st.sampled_from([b"", b"X-A: 1\r\n", b"X-A: 1\r\nX-B: GET /b HTTP/1.1\r\n"])
requests = st.one_of(
    plain_requests,
    plain_requests,
    st.builds(adorned, names, bodies, extensions, trailers),
    st.builds(absolute, plain_requests, st.sampled_from(["http", "HTTPS"])),
    st.builds(after_empty_line, plain_requests),
)
sequences = st.lists(requests, min_size=1, max_size=6)
pieces = st.lists(st.integers(1, 400), max_size=8)


def judge(asked: Sequence[Asked], cuts: Sequence[int], *, late: bool) -> None:
    """Send requests in pieces over one connection; raise AssertionError if anything is amiss.

    ``late``: appends become durable only after every second piece has come.
    """
    trio.run(_judge, asked, cuts, late, clock=MockClock(autojump_threshold=0))


async def _judge(asked: Sequence[Asked], cuts: Sequence[int], late: bool) -> None:  # noqa: FBT001
    model = Plain()
    expected = [model.answer(one) for one in asked]
    async with serving() as site:
        for name in STREAMS:
            await site.make(name, TEXT)
        client = await _connected(site)
        got: list[tuple[int, bytes | None]] = []
        with trio.move_on_after(WAIT_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(
                    _send, site, client, b"".join(one.wire for one in asked), cuts, late
                )
                for one, (_, body) in zip(asked, expected, strict=True):
                    found = await client.response(one.method)
                    got.append((found.status, None if body is None else found.body))
        client.hang_up()
        stored = {name: (await site.get(f"{name}?offset=-1")).body for name in STREAMS}
        assert stored == model.stored
        assert got == expected


async def _connected(site: Site) -> Client:
    """Connect, and have the first request done: from the second on, appends are quick."""
    connection = site.connect()
    client = Client(connection.raw, bytewise=False)
    found = await client.ask(_head("HEAD", "a"), "HEAD")
    assert found.status == 200
    return client


async def _send(site: Site, client: Client, wire: bytes, cuts: Sequence[int], late: bool) -> None:  # noqa: FBT001
    start = 0
    writer = site.bench.writer
    for number, size in enumerate([*cuts, len(wire)]):
        writer.holding = late
        if not await client.try_send(wire[start : start + size]):
            break  # the server hung up; what it has said is judged
        start += size
        await wait_all_tasks_blocked()
        if number % 2:
            writer.release()
            await wait_all_tasks_blocked()
    writer.release()

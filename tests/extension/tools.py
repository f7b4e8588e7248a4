"""What the tests of the extension share: offsets, an RFC 2046 parser, a look at the disk."""

import re
from typing import NamedTuple

from tests.service.harness import Head, Reply, Site
from tests.support.sim_disk import SimDisk

BUCKET = "agents"
START = "-1"


def token(position: int) -> str:
    """Return a position as the offset this server mints."""
    return f"{position:016d}"


class Part(NamedTuple):
    """One part of a multipart body."""

    content_type: str
    body: bytes


def boundary_of(content_type: str) -> bytes:
    found = re.fullmatch(r'multipart/mixed; ?boundary="?([^";]{1,70})"?', content_type)
    assert found, content_type
    return found[1].encode()


def parts_of(body: bytes, boundary: bytes) -> list[Part]:
    """Parse a multipart body as RFC 2046 5.1.1 has it: CR LF belongs to the delimiter after it."""
    pieces = (b"\r\n" + body).split(b"\r\n--" + boundary)
    assert pieces[0] == b"", "a preamble"
    assert pieces[-1] in (b"--", b"--\r\n"), "the close delimiter is missing"
    found = []
    for piece in pieces[1:-1]:
        assert piece.startswith(b"\r\n"), piece[:40]
        head, gap, content = piece[2:].partition(b"\r\n\r\n")
        assert gap, piece[:40]
        name, _, kind = head.partition(b": ")
        assert name.lower() == b"content-type"
        assert b"\r\n" not in kind
        found.append(Part(kind.decode(), content))
    return found


def bootstrapped(reply: Reply) -> list[Part]:
    """Return the parts of a bootstrap answer that must have succeeded."""
    assert reply.status == 200, reply
    return parts_of(reply.body, boundary_of(reply["Content-Type"]))


async def make(site: Site, url: str, head: Head, *bodies: bytes) -> list[str]:
    """Make a stream and append to it; return the offset after each append, the start first."""
    reply = await site.raw("PUT", url, head)
    assert reply.status == 201, reply
    offsets = [reply.next]
    for body in bodies:
        reply = await site.raw("POST", url, head, body)
        assert reply.status == 204, reply
        offsets.append(reply.next)
    return offsets


async def publish(
    site: Site, url: str, offset: str, blob: bytes, head: Head | None = None
) -> Reply:
    reply = await site.raw("PUT", f"{url}/snapshot/{offset}", head, blob)
    assert reply.status == 204, reply
    return reply


def files(disk: SimDisk, suffix: str) -> dict[str, int]:
    """Return the size of every file of all streams that ends so, by path."""
    found = {}
    for shard in disk.names("streams"):
        for stream in disk.names(f"streams/{shard}"):
            for name in disk.names(f"streams/{shard}/{stream}"):
                if name.endswith(suffix):
                    path = f"streams/{shard}/{stream}/{name}"
                    handle = disk.open(path)
                    found[path] = disk.size(handle)
                    disk.release(handle)
    return found

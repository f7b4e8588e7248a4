"""The fast lane: a strict recogniser of ordinary request heads.

It either recognises a head completely or declines by returning None, and then ``strict`` and h11
look at it. Declining is always right; recognising is right only where h11 would say the same, which
tests/http/test_recognise.py checks on generated heads and on a corpus of smuggling shapes. So the
grammar is narrow on purpose: HTTP/1.1, a known method, origin-form, printable ASCII, CRLF only,
exactly one Host, at most one Content-Length, and none of the fields that change framing.

h11 needs about 100 us for what takes 5 us here; that is the whole reason for this module.
"""

import re
from functools import lru_cache
from typing import Final, NamedTuple

from durastreamd.http.exchange import Request
from durastreamd.http.limits import HttpLimits

_METHODS: Final = {
    name.encode("ascii"): name
    for name in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")
}

# Two matches that meet, so that no byte of a head is left unexamined. "#" is not part of a
# target (RFC 9112 3.2); an empty target path or a bare "?" does not start with "/".
_LINE: Final = re.compile(rb"([A-Z]+) (/[!\"$-~]*) HTTP/1\.1\r\n")
_BLOCK: Final = re.compile(rb"((?:[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t -~]*\r\n)+)\r\n")
_HOST: Final = re.compile(rb"[A-Za-z0-9.\-_:\[\]]*")
_LENGTH: Final = re.compile(rb"[0-9]{1,15}")

# Fields that change framing or the protocol, or whose repetition has a meaning of its own.
_DECLINED: Final = frozenset((b"transfer-encoding", b"upgrade", b"expect", b"trailer", b"te"))


# Blocks of fields that are remembered: at most half a megabyte of them.
_KNOWN_MAX: Final = 512
_KNOWN_BYTES_MAX: Final = 1024


class _Fields(NamedTuple):
    """What the fields of a head say. Shared by all requests with the same ones: read only."""

    headers: dict[bytes, bytes]
    authority: str
    content_length: int | None
    lines: int


def recognise(head: bytes, limits: HttpLimits) -> Request | None:
    """Give the request of ``head`` (through its empty line), or None to decline."""
    line = _LINE.match(head)
    if line is None or len(head) > limits.head_bytes_max:
        return None
    name_of_method, target = line.groups()
    method = _METHODS.get(name_of_method)
    if method is None or len(target) > limits.target_bytes_max:
        return None
    block = head[line.end() :]
    fields = (_known if len(block) <= _KNOWN_BYTES_MAX else _fields)(block)
    if fields is None or fields.lines > limits.header_count_max:
        return None
    headers, authority, content_length, _ = fields
    return Request(
        method,
        target.decode("ascii"),
        headers,
        "1.1",
        authority,
        content_length,
        has_body=bool(content_length),
    )


@lru_cache(maxsize=_KNOWN_MAX)
def _known(block: bytes) -> _Fields | None:
    """Read the fields of a head; a client sends the same ones again and again."""
    return _fields(block)


def _fields(block: bytes) -> _Fields | None:
    if _BLOCK.fullmatch(block) is None:
        return None
    lines = block[:-4].split(b"\r\n")
    headers: dict[bytes, bytes] = {}
    for line in lines:
        name, _, value = line.partition(b":")
        headers[name.lower()] = value.strip(b" \t")
    if len(headers) != len(lines):
        return None  # A repeated field. Rare, and h11 knows which of them may be repeated.
    host = headers.get(b"host")
    if host is None or _HOST.fullmatch(host) is None or not _DECLINED.isdisjoint(headers):
        return None
    length = headers.get(b"content-length")
    content_length: int | None = None
    if length is not None:
        if _LENGTH.fullmatch(length) is None:
            return None
        content_length = int(length)
    return _Fields(headers, host.decode("ascii"), content_length, len(lines))

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
from durastreamd.protocol.requests import Fields

_METHODS: Final = {
    name.encode("ascii"): name
    for name in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")
}

# Two matches that meet, so that no byte of a head is left unexamined. "#" is not part of a
# target (RFC 9112 3.2); an empty target path or a bare "?" does not start with "/".
_LINE: Final = re.compile(rb"([A-Z]+) (/[!\"$-~]*) HTTP/1\.1\r\n")
_FIELD: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t -~]*\r\n"
_BLOCK: Final = re.compile(rb"(?:" + _FIELD + rb")+\r\n")
_PRODUCER: Final = re.compile(rb"(?<![^\n])(?:producer-[a-z]+:[\t -~]*\r\n){3}", re.IGNORECASE)
_HOST: Final = re.compile(rb"[A-Za-z0-9.\-_:\[\]]*")
_LENGTH: Final = re.compile(rb"[0-9]{1,15}")

# Fields that change framing or the protocol, or whose repetition has a meaning of its own.
_DECLINED: Final = frozenset((b"transfer-encoding", b"upgrade", b"expect", b"trailer", b"te"))

# A client sends the same fields again and again, and to the same place: blocks of fields and first
# lines are remembered, at most a megabyte of the ones and four of the others.
_BLOCKS_MAX: Final = 512
_BLOCK_BYTES_MAX: Final = 1024
_LINES_MAX: Final = 8192
_LINE_BYTES_MAX: Final = 128


class _Line(NamedTuple):
    """What the first line of a head says, in the order of a ``Request``."""

    method: str
    target: str
    path: str
    query: str


class _Said(NamedTuple):
    """What its fields say, in that order, too. Shared by all requests with the same ones."""

    headers: Fields
    authority: str
    content_length: int | None
    has_body: bool


def recognise(head: bytes, limits: HttpLimits) -> Request | None:
    """Give the request of ``head`` (through its empty line), or None to decline."""
    size = head.find(b"\r\n") + 2
    first, block = head[:size], head[size:]
    # What a query says is seldom asked again.
    line = (_line if size > _LINE_BYTES_MAX or b"?" in first else _known_line)(first)
    if line is None or len(line.target) > limits.target_bytes_max:
        return None
    if b"roducer-" in block:
        said = _of_producer(block)
    else:
        said = (_known if len(block) <= _BLOCK_BYTES_MAX else _said)(block)
    if (
        said is None
        or len(said.headers) > limits.header_count_max
        or len(head) > limits.head_bytes_max
    ):
        return None
    return Request(*line, *said)


def _line(line: bytes) -> _Line | None:
    match = _LINE.fullmatch(line)
    method = _METHODS.get(match[1]) if match is not None else None
    if match is None or method is None:
        return None
    target = match[2].decode("ascii")
    path, _, query = target.partition("?")
    return _Line(method, target, path, query)


_known_line = lru_cache(maxsize=_LINES_MAX)(_line)


def _said(block: bytes) -> _Said | None:
    if _BLOCK.fullmatch(block) is None:
        return None
    lines = block[:-4].split(b"\r\n")
    headers = Fields(map(_field, lines))
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
    return _Said(headers, host.decode("ascii"), content_length, bool(content_length))


_known = lru_cache(maxsize=_BLOCKS_MAX)(_said)


def _of_producer(block: bytes) -> _Said | None:
    """Read the fields of a producer: no two of its requests are the same, but for three fields."""
    own = _PRODUCER.search(block)
    if own is None or len(block) > _BLOCK_BYTES_MAX:
        return _said(block)
    begin, end = own.span()
    said = _known(block[:begin] + block[end:])
    if said is None:
        return None
    headers = Fields(said.headers)
    headers.update(map(_field, block[begin : end - 2].split(b"\r\n")))
    if len(headers) != len(said.headers) + 3:
        return None  # repeated
    return said._replace(headers=headers)


def _field(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b":")
    return name.lower(), value.strip(b" \t")

"""The fast lane: a strict recogniser of ordinary request heads.

It either recognises a head completely or declines by returning None, and then ``strict`` and h11
look at it. Declining is always right; recognising is right only where h11 would say the same, which
tests/http/test_recognise.py checks on generated heads and on a corpus of smuggling shapes. So the
grammar is narrow on purpose: HTTP/1.1, a known method, origin-form, printable ASCII, CRLF only,
exactly one Host, at most one Content-Length, and none of the fields that change framing.

h11 needs about 100 us for what takes 5 us here; that is the whole reason for this module.
"""

import re
from typing import Final

from durastreamd.http.exchange import Request
from durastreamd.http.limits import HttpLimits

_METHODS: Final = {
    name.encode("ascii"): name
    for name in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")
}

# The whole head in one match, so that no byte of it is left unexamined. "#" is not part of a
# target (RFC 9112 3.2); an empty target path or a bare "?" does not start with "/".
_HEAD: Final = re.compile(
    rb"([A-Z]+) (/[!\"$-~]*) HTTP/1\.1\r\n"
    rb"((?:[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t -~]*\r\n)+)\r\n"
)
_HOST: Final = re.compile(rb"[A-Za-z0-9.\-_:\[\]]*")
_LENGTH: Final = re.compile(rb"[0-9]{1,15}")

# Fields that change framing or the protocol, or whose repetition has a meaning of its own.
_DECLINED: Final = frozenset((b"transfer-encoding", b"upgrade", b"expect", b"trailer", b"te"))


def recognise(head: bytes, limits: HttpLimits) -> Request | None:
    """Give the request of ``head`` (through its empty line), or None to decline."""
    match = _HEAD.fullmatch(head)
    if match is None or len(head) > limits.head_bytes_max:
        return None
    name_of_method, target, block = match.groups()
    method = _METHODS.get(name_of_method)
    lines = block.split(b"\r\n")
    if (
        method is None
        or len(target) > limits.target_bytes_max
        or len(lines) - 1 > limits.header_count_max
    ):
        return None
    headers: dict[bytes, bytes] = {}
    for line in lines:
        name, _, value = line.partition(b":")
        headers[name.lower()] = value.strip(b" \t")
    del headers[b""]  # The piece after the last line end; a line cannot have an empty name.
    if len(headers) != len(lines) - 1:
        return None  # A repeated field. Rare, and h11 knows which of them may be repeated.
    return _request(method, target, headers)


def _request(method: str, target: bytes, headers: dict[bytes, bytes]) -> Request | None:
    host = headers.get(b"host")
    if host is None or _HOST.fullmatch(host) is None or not _DECLINED.isdisjoint(headers):
        return None
    length = headers.get(b"content-length")
    content_length: int | None = None
    if length is not None:
        if _LENGTH.fullmatch(length) is None:
            return None
        content_length = int(length)
    return Request(
        method,
        target.decode("ascii"),
        headers,
        "1.1",
        host.decode("ascii"),
        content_length,
        has_body=bool(content_length),
    )

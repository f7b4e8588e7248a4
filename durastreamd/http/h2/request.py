"""HTTP/2 header lists as requests, under the same rules as HTTP/1 heads.

h2 has checked what RFC 9113 calls malformed (pseudo-header order, case, connection fields). Here
the rules of ``strict`` follow: sizes, counts, origin-form, no control characters.
"""

import re
from collections.abc import Iterable
from typing import Final

from durastreamd.http.errors import BodyTooLargeError, RefusedError
from durastreamd.http.exchange import Request
from durastreamd.http.limits import HttpLimits
from durastreamd.protocol import problems

_TARGET: Final = re.compile(rb"/[!\"$-~]*")
_ASTERISK: Final = b"*"  # the target of OPTIONS alone
_METHOD: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,32}")
_AUTHORITY: Final = re.compile(rb"[A-Za-z0-9.\-_~!$&'()*+,;=:%\[\]]*")
_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_LENGTH: Final = re.compile(rb"[0-9]{1,15}")
_ENTRY_OVERHEAD: Final = 32  # RFC 9113 6.5.2 counts each field as its bytes plus 32.


def read_request(
    fields: Iterable[tuple[bytes, bytes]], limits: HttpLimits, *, has_body: bool
) -> tuple[Request, RefusedError | None]:
    """Give the request of a header list, and the refusal it deserves, if any.

    A refused one still has a request, good enough for its error response.
    """
    pseudo: dict[bytes, bytes] = {}
    headers: dict[bytes, bytes] = {}
    count = size = 0
    for name, value in fields:
        size += len(name) + len(value) + _ENTRY_OVERHEAD
        if name.startswith(b":"):
            pseudo[name] = value
            continue
        count += 1
        headers[name] = headers[name] + b", " + value if name in headers else value
    refusal = _refusal(pseudo, headers, count, size, limits)
    if refusal is not None:
        method = "HEAD" if pseudo.get(b":method") == b"HEAD" else "GET"
        target = pseudo.get(b":path", b"")
        shown = target.decode("ascii") if _TARGET.fullmatch(target) else "/"
        return Request.to(method, shown, {}, "2", "", None, has_body=has_body), refusal
    length = headers.get(b"content-length")
    request = Request.to(
        pseudo[b":method"].decode("ascii"),
        pseudo[b":path"].decode("ascii"),
        headers,
        "2",
        pseudo.get(b":authority", headers.get(b"host", b"")).decode("ascii"),
        None if length is None else int(length),
        # A declared length of nothing is no body, whenever the end of it comes: a public client
        # sends Content-Length: 0 and never says that the request has ended.
        has_body=has_body and length != b"0",
    )
    return request, None


def _refusal(
    pseudo: dict[bytes, bytes],
    headers: dict[bytes, bytes],
    count: int,
    size: int,
    limits: HttpLimits,
) -> RefusedError | None:
    target = pseudo.get(b":path", b"")
    if len(target) > limits.target_bytes_max:
        detail = f"The request target is longer than {limits.target_bytes_max} bytes."
        return RefusedError(problems.URI_TOO_LONG, detail)
    if count > limits.header_count_max or size > limits.head_bytes_max:
        detail = (
            f"There are more than {limits.header_count_max} header fields, "
            f"or they are larger than {limits.head_bytes_max} bytes."
        )
        return RefusedError(problems.HEADERS_TOO_LARGE, detail)
    if pseudo.get(b":method") == b"CONNECT":
        return RefusedError(problems.NOT_IMPLEMENTED, "This server is no proxy.")
    detail = _malformed(pseudo, headers)
    if detail:
        return RefusedError(problems.BAD_REQUEST, detail)
    if int(headers.get(b"content-length", b"0")) > limits.body_bytes_max:
        return BodyTooLargeError(limits.body_bytes_max)
    return None


def _malformed(pseudo: dict[bytes, bytes], headers: dict[bytes, bytes]) -> str:
    authority = pseudo.get(b":authority")
    host = headers.get(b"host")
    length = headers.get(b"content-length")
    if not _METHOD.fullmatch(pseudo.get(b":method", b"")):
        return "The method is not a token."
    target, method = pseudo.get(b":path", b""), pseudo.get(b":method")
    whole = target == _ASTERISK and method == b"OPTIONS"
    if not whole and not _TARGET.fullmatch(target):
        return "The request target must be a path in printable ASCII."
    if not _AUTHORITY.fullmatch(authority or b"") or not _AUTHORITY.fullmatch(host or b""):
        return "The authority is one name, perhaps with a port, as in streams.example:4437."
    if authority is not None and host is not None and authority.lower() != host.lower():
        return "Host and :authority differ."
    if length is not None and not _LENGTH.fullmatch(length):
        return "Content-Length is not one number."
    if any(_CONTROL.search(value) or not _NAME.fullmatch(name) for name, value in headers.items()):
        return "A header field contains a control character."
    return ""

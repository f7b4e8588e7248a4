"""HTTP/1.1 response heads as bytes, for both lanes.

One promise matters most: no value that reaches a head can split it. That is checked on the rendered
block as a whole (as many line ends as fields), which costs three C-level counts per response.
"""

import time
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

from durastreamd.http.errors import ResponseError
from durastreamd.http.exchange import Headers

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"
CLOSE: Final = b"Connection: close\r\n"

_STATUS_LINES: Final = {
    status.value: b"HTTP/1.1 %d %s\r\n" % (status.value, status.phrase.encode("ascii"))
    for status in HTTPStatus
}

_date_second = 0
_date = b""


def date() -> bytes:
    """Give the value of the Date field; rendered once per second."""
    global _date_second, _date  # A cache of one entry.
    second = int(time.time())
    if second != _date_second:
        _date = formatdate(second, usegmt=True).encode("ascii")
        _date_second = second
    return _date


def status_line(status: int) -> bytes:
    """Give the status line; a status without a registered phrase has none."""
    line = _STATUS_LINES.get(status)
    if line is not None:
        return line
    if not 200 <= status <= 599:
        msg = f"{status} is not a final status"
        raise ResponseError(msg)
    return b"HTTP/1.1 %d \r\n" % status


def field_block(headers: Headers) -> bytes:
    """Render ``headers`` as lines; refuses what would split them.

    Raises ``ResponseError``: a CR, LF or NUL in a value is a failure of the code that built it.
    """
    block = b"".join([b"%b: %b\r\n" % field for field in headers])
    count = len(headers)
    if block.count(b"\n") != count or block.count(b"\r") != count or b"\0" in block:
        msg = "a response header contains CR, LF or NUL"
        raise ResponseError(msg)
    return block


def content_of(status: int, method: str, body: bytes) -> tuple[int | None, bytes]:
    """Return the length that a whole response declares, and what of ``body`` goes with it."""
    if status == 204 or status == 304:
        return None, b""
    if method == "HEAD":
        # Without a body to measure, a length would be a guess about what GET would say.
        return len(body) or None, b""
    return len(body), body


def length_line(length: int | None) -> bytes:
    """Return the line that frames a response of this length; none where none is declared."""
    return b"" if length is None else b"Content-Length: %d\r\n" % length


def head(status: int, headers: Headers, framing: bytes, *, keep_alive: bool) -> bytes:
    """Render a response head. ``framing`` is the Content-Length or Transfer-Encoding line."""
    return b"%bDate: %b\r\n%b%b%b\r\n" % (
        _STATUS_LINES.get(status) or status_line(status),
        date(),
        field_block(headers),
        framing,
        b"" if keep_alive else CLOSE,
    )

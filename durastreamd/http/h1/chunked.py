"""Chunked request bodies, decoded strictly. No I/O.

h11 takes a bare LF after a chunk size, which has carried smuggled requests past servers that read
it differently. So chunks are decoded here: a size of at most eight hex digits, perhaps extensions,
CRLF, the bytes, CRLF; after the last chunk perhaps trailers, and an empty line. Extensions and
trailers are read and dropped, as RFC 9112 (7.1) has it; both are printable text up to the CRLF, and
bounded. No trailer may bear a name that frames or routes a request. For every input this decoder
accepts, h11 gives the same body and the same rest (tests/http/test_chunked.py).

What is next, and what follows it:

    SIZE       a line with a size      more than 0 -> DATA, 0 -> TRAILERS
    DATA       the bytes of a chunk    all of them -> END
    END        the CRLF behind them    -> SIZE
    TRAILERS   a line                  a field -> TRAILERS, empty -> the body has ended
"""

import re
from enum import IntEnum, auto
from typing import Final

from durastreamd.http.errors import RefusedError
from durastreamd.protocol import problems

# Of one body, size lines' extensions and trailers together: no client is known that needs more.
DROPPED_BYTES_MAX: Final = 8 * 1024

_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,8})([\t ]*;[\t ]*[!-~][\t -~]*)?")
_TRAILER: Final = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[\t -~\x80-\xff]*")
_ODD: Final = re.compile(rb"[^\t -~\x80-\xff]")  # In a line: not even its CR, if no LF follows.
_SIZE_LINE_BYTES: Final = 8  # without extensions

# In a trailer they would say again, and perhaps otherwise, how to read what is already being read.
_NOT_IN_TRAILERS: Final = frozenset(
    (b"content-length", b"transfer-encoding", b"host", b"trailer", b"connection", b"content-type")
)


class _Next(IntEnum):
    SIZE = auto()
    DATA = auto()
    END = auto()
    TRAILERS = auto()


class ChunkedDecoder:
    """Takes the bytes after a head, gives the bytes of the body and what lies behind it."""

    __slots__ = ("_dropped", "_left", "_next", "_pending", "ended", "rest")

    def __init__(self) -> None:
        self._pending = b""  # At most a line that is not complete yet.
        self._left = 0  # Bytes of the current chunk that are still to come.
        self._next = _Next.SIZE
        self._dropped = 0  # Bytes of extensions and trailers so far.
        self.ended = False
        self.rest = b""  # Once ended: what belongs to the next request.

    def feed(self, data: bytes) -> bytes:
        """Take ``data`` and give the body bytes in it; raises ``RefusedError`` on bad framing."""
        buffer = self._pending + data if self._pending else data
        self._pending = b""
        pieces: list[bytes] = []
        at = 0
        while not self.ended:
            if self._next is _Next.DATA:
                piece = buffer[at : at + self._left]
                if not piece:
                    break
                pieces.append(piece)
                at += len(piece)
                self._left -= len(piece)
                self._next = _Next.DATA if self._left else _Next.END
                continue
            end = buffer.find(b"\r\n", at)
            if end < 0:
                self._check_begun(buffer, at)
                self._pending = buffer[at:]
                break
            self._take(buffer[at:end])
            at = end + 2
        if self.ended:
            self.rest = buffer[at:]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _take(self, line: bytes) -> None:
        """Read one whole line."""
        if self._next is _Next.END:
            if line:
                raise _refusal()
            self._next = _Next.SIZE
        elif self._next is _Next.SIZE:
            match = _SIZE.fullmatch(line)
            if match is None:
                raise _refusal()
            self._drop(len(match[2] or b""))
            self._left = int(match[1], 16)
            self._next = _Next.DATA if self._left else _Next.TRAILERS
        elif not line:
            self.ended = True
        else:
            match = _TRAILER.fullmatch(line)
            if match is None or match[1].lower() in _NOT_IN_TRAILERS:
                raise _refusal()
            self._drop(len(line) + 2)

    def _check_begun(self, buffer: bytes, at: int) -> None:
        """Refuse an unfinished line as soon as no continuation could save it."""
        size = len(buffer) - at
        if self._next is _Next.END:
            if buffer[at:] not in (b"", b"\r"):
                raise _refusal()
            return
        odd = _ODD.search(buffer, at)
        if odd is not None and not (odd[0] == b"\r" and odd.end() == len(buffer)):
            raise _refusal()
        if self._next is _Next.SIZE and size and not _HEX.match(buffer, at):
            raise _refusal()
        if size > _SIZE_LINE_BYTES + 1 + DROPPED_BYTES_MAX - self._dropped:
            raise _too_much()

    def _drop(self, count: int) -> None:
        self._dropped += count
        if self._dropped > DROPPED_BYTES_MAX:
            raise _too_much()


_HEX: Final = re.compile(rb"[0-9A-Fa-f]")


def _refusal() -> RefusedError:
    return RefusedError(problems.BAD_REQUEST, "The chunked body, or a trailer of it, is malformed.")


def _too_much() -> RefusedError:
    detail = f"Chunk extensions and trailers have at most {DROPPED_BYTES_MAX} bytes together."
    return RefusedError(problems.HEADERS_TOO_LARGE, detail)

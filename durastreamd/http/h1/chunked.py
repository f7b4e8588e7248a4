"""Chunked request bodies, decoded strictly. No I/O.

h11 discards chunk extensions and takes a bare LF after a chunk size; both have carried smuggled
requests past servers that read them differently. So chunks are decoded here: a size of at most
eight hex digits, CRLF, the bytes, CRLF; no extensions and no trailers. For every input this decoder
accepts, h11 says the same (tests/http/test_chunked.py).
"""

import re
from typing import Final

from durastreamd.http.errors import RefusedError
from durastreamd.protocol import problems

_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,8})\r\n")
_SIZE_BEGUN: Final = re.compile(rb"(?:[0-9A-Fa-f]{1,8}\r?)?")  # What may still become a size.


class ChunkedDecoder:
    """Takes the bytes after a head, gives the bytes of the body and what lies behind it."""

    __slots__ = ("_left", "_pending", "_size_is_next", "ended", "rest")

    def __init__(self) -> None:
        self._pending = b""  # At most a size line or a line end that is not complete yet.
        self._left = 0  # Bytes of the current chunk that are still to come.
        self._size_is_next = True  # False: the CRLF behind a chunk is next.
        self.ended = False
        self.rest = b""  # Once ended: what belongs to the next request.

    def feed(self, data: bytes) -> bytes:
        """Take ``data`` and give the body bytes in it; raises ``RefusedError`` on bad framing."""
        buffer = self._pending + data if self._pending else data
        self._pending = b""
        pieces: list[bytes] = []
        at = 0
        while not self.ended:
            if self._left:
                piece = buffer[at : at + self._left]
                if not piece:
                    break
                pieces.append(piece)
                at += len(piece)
                self._left -= len(piece)
                self._size_is_next = False
                continue
            step = self._line(buffer, at)
            if step == 0:
                self._pending = buffer[at:]
                break
            at += step
        if self.ended:
            self.rest = buffer[at:]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _line(self, buffer: bytes, at: int) -> int:
        """Read one line end or size line at ``at``; give its length, 0 if it is not complete."""
        if not self._size_is_next:
            mark = buffer[at : at + 2]
            if mark == b"\r\n":
                self._size_is_next = True
                return 2
            if mark in (b"", b"\r"):
                return 0
            raise _refusal()
        match = _SIZE.match(buffer, at)
        if match is None:
            if _SIZE_BEGUN.fullmatch(buffer, at):
                return 0
            raise _refusal()
        self._left = int(match[1], 16)
        if self._left:
            return match.end() - at
        # The last chunk: an empty line must follow, so both are read as one.
        end = buffer[match.end() : match.end() + 2]
        if end == b"\r\n":
            self.ended = True
            return match.end() + 2 - at
        if end in (b"", b"\r"):
            return 0
        raise _refusal()


def _refusal() -> RefusedError:
    return RefusedError(
        problems.BAD_REQUEST,
        "The chunked body is malformed, or uses chunk extensions or trailers.",
    )

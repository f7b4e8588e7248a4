"""The forms a page is sent in: as it is, compressed, one message to a line, each after its length.

Each gives the page piece by piece, so that a page costs its reader a few pieces in memory (and the
compressor's 0.3 MiB), whatever its size and that of its messages. The first piece is there before
the answer begins: what cannot be read is told.
"""

import zlib
from functools import partial
from typing import Protocol

from durastreamd.engine.view import View
from durastreamd.http.exchange import Exchange
from durastreamd.protocol import Data, json_mode
from durastreamd.service.answers import Fields
from durastreamd.service.reader import Page, Reader
from durastreamd.streams.registry import Streams

_GZIP_WBITS = 31  # zlib's largest window, in gzip's wrapping
_FRAMES_MAX = 1024  # messages in one piece, each with its length before it


class Form(Protocol):
    """A page on its way out."""

    async def next(self) -> Data | None:
        """Return the next piece, good until the next call, None after the last."""


async def send(exchange: Exchange, fields: Fields, form: Form, length: int | None = None) -> None:
    """Answer with a page in a form, of a length if that is known."""
    piece = await form.next()
    await exchange.start(200, fields, length=length)
    while piece is not None:
        await exchange.send(piece)  # which has taken it all when it returns
        piece = await form.next()
    await exchange.finish()


class Plain:
    """The page itself; of JSON messages an array."""

    def __init__(
        self, reader: Reader, view: View, page: Page, piece_bytes: int, *, json: bool
    ) -> None:
        self._reader = reader
        self._view = view
        self._page = page
        self._json = json
        self._at = page.start
        self._buffer = memoryview(bytearray(piece_bytes))

    async def next(self) -> Data | None:
        """See Form."""
        at, page = self._at, self._page
        if at == page.end:
            return None
        end = await self._reader.piece_end(self._view, at, page.end, len(self._buffer))
        if self._json and page.end - end == 1:
            end -= 1  # the last piece must hold the last separator whole
        piece = await self._reader.lend(self._view, at, end, self._buffer)
        self._at = end
        if self._json and (at == page.start or end == page.end):
            return array_piece(bytes(piece), first=at == page.start, last=end == page.end)
        return piece


class _PageWalk:
    """A walk over a page, a piece at a time, and how far it has come."""

    def __init__(self, reader: Reader, view: View, page: Page, piece_bytes: int) -> None:
        self._reader = reader
        self._view = view
        self._end = page.end
        self._at = page.start
        self._piece_bytes = piece_bytes

    async def _piece(self, limit: int) -> bytes:
        """Read on, up to a piece and not beyond ``limit``."""
        end = await self._reader.piece_end(self._view, self._at, limit, self._piece_bytes)
        piece = await self._reader.read(self._view, self._at, end)
        self._at = end
        return piece


class Lines(_PageWalk):
    """JSON messages one to a line: the separator less its comma."""

    _held = b""

    async def next(self) -> Data | None:
        """See Form."""
        if self._at == self._end:
            return None
        lines, self._held = json_mode.lines(self._held, await self._piece(self._end))
        return lines


class Prefixed(_PageWalk):
    """Messages that nothing separates, each after its length; a large one in pieces."""

    _large_end = 0  # of the message whose length was sent last

    async def next(self) -> Data | None:
        """See Form."""
        if self._at < self._large_end:
            return await self._piece(self._large_end)
        if self._at == self._end:
            return None
        job = partial(_frames, self._view, self._at, self._end, self._piece_bytes)
        frames, self._at, self._large_end = await self._reader.look(self._view, job)
        return frames


def _frames(view: View, start: int, end: int, bytes_max: int) -> tuple[bytes, int, int]:
    """Return the next messages with their lengths, where they end, and where a large one does.

    Of a message that is larger than a piece the length alone is returned.
    """
    ends: list[int] = []
    for _, after in view.messages(start):
        ends.append(min(after, end))
        if after >= end or after - start > bytes_max or len(ends) == _FRAMES_MAX:
            break
    if ends[-1] - start > bytes_max:
        if len(ends) == 1:
            return (ends[0] - start).to_bytes(4, "big"), start, ends[0]
        ends.pop()
    data, at = view.read(start, ends[-1]), start
    pieces = []
    for after in ends:
        pieces += [(after - at).to_bytes(4, "big"), data[at - start : after - start]]
        at = after
    return b"".join(pieces), at, at


class Packed:
    """The page, or its array, compressed: read and packed in a thread, a piece at a time."""

    def __init__(
        self, streams: Streams, view: View, page: Page, piece_bytes: int, *, json: bool
    ) -> None:
        self._streams = streams
        self._view = view
        self._page = page
        self._json = json
        self._at = page.start
        self._piece_bytes = piece_bytes
        # The fastest level: answers are made over and over, and the loop's machine is busy.
        self._packer = zlib.compressobj(1, zlib.DEFLATED, _GZIP_WBITS)

    async def next(self) -> Data | None:
        """See Form."""
        return await self._streams.blocking(self._next)

    def _next(self) -> bytes | None:
        self._view.wait = True
        while self._at < self._page.end:
            packed = self._packer.compress(self._piece())
            if self._at == self._page.end:
                packed += self._packer.flush()
            if packed:
                return packed
        return None

    def _piece(self) -> bytes:
        at, page = self._at, self._page
        end = self._view.piece_end(at, page.end, self._piece_bytes)
        if self._json and page.end - end == 1:
            end -= 1
        piece = self._view.read(at, end)
        self._at = end
        if not self._json:
            return piece
        return array_piece(piece, first=at == page.start, last=end == page.end)


def array_piece(piece: bytes, *, first: bool, last: bool) -> bytes:
    """Return a piece of a page of JSON messages as part of an array.

    The closing bracket takes the place of the last separator.
    """
    if first:
        piece = b"[" + piece
    return piece[: -len(json_mode.SEPARATOR)] + b"]" if last else piece


async def packed(form: Packed) -> bytes:
    """Return a short page compressed, as a whole."""
    pieces = []
    while (piece := await form.next()) is not None:
        pieces.append(bytes(piece))
    return b"".join(pieces)

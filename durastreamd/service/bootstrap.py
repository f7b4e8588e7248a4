"""Bootstrap: the snapshot and every message after it, one multipart answer (docs/extension.md).

The body is made as it is sent, a piece at a time, so its size costs no memory. The boundary is
random and each piece is searched for it before it goes out: an answer that reaches its end is
proven not to hold it inside a part, one that would is broken off and asked for again.
"""

import secrets
from collections.abc import Iterator

from durastreamd.engine.view import View
from durastreamd.http.exchange import Exchange
from durastreamd.model.stream_state import Stream
from durastreamd.protocol import content_type as ct, json_mode, problems
from durastreamd.protocol.requests import ProblemError, query_of
from durastreamd.service.answers import CLOSED, HARMLESS, NOT_CACHED, Fields, next_offset
from durastreamd.service.reader import Reader, below_floor
from durastreamd.service.reads import UP_TO_DATE
from durastreamd.service.snapshots import PIECE_BYTES, Blob, snapshot_offset
from durastreamd.streams.registry import Streams

_HELD_BYTES = 64 * 1024  # read at once


class BoundaryFoundError(Exception):
    """A part holds the boundary; the answer cannot go on."""


class Bootstrap:
    """``{stream}/bootstrap``."""

    def __init__(self, streams: Streams, reader: Reader) -> None:
        self._streams = streams
        self._reader = reader

    async def answer(self, exchange: Exchange, stream: Stream) -> None:
        """Send everything a client needs to start, as of now."""
        if "live" in query_of(exchange.request.query):
            detail = "/bootstrap answers once; follow the stream itself from Stream-Next-Offset."
            raise ProblemError(problems.BAD_REQUEST, detail)
        if not stream.whole:
            raise below_floor(stream)  # with a hole in it, it would pass for whole
        self._streams.touch(stream)
        boundary = f"durastream-{secrets.token_hex(16)}"
        fields: Fields = [
            (b"Content-Type", f"multipart/mixed; boundary={boundary}".encode()),
            HARMLESS,
            next_offset(stream.tail),
            self._reader.life(stream),
            UP_TO_DATE,
            NOT_CACHED,
        ]
        if stream.snapshot is None:
            fields.append((b"Stream-Snapshot-Offset", b"-1"))
        else:
            fields.append(snapshot_offset(stream.snapshot.position))
        if stream.closed:
            fields.append(CLOSED)
        with self._streams.engine.reading(stream) as view:
            pieces = _Pieces(self._streams, stream, view, boundary.encode())
            try:
                # Before the answer begins: what is damaged in it is told as such.
                piece = await self._streams.blocking(pieces.next)
                await exchange.start(200, fields)
                while piece is not None and exchange.request.method != "HEAD":
                    await exchange.send(piece)
                    piece = await self._streams.blocking(pieces.next)
                await exchange.finish()
            except BoundaryFoundError:
                exchange.abort()


class _Pieces:
    """The body, in pieces of about the same size. ``next`` may block."""

    def __init__(self, streams: Streams, stream: Stream, view: View, boundary: bytes) -> None:
        self._delimiter = b"--" + boundary
        self._view = view
        self._stream = stream
        self._kind = stream.content_type.encode()
        snapshot = stream.snapshot
        self._blob = Blob(streams.engine.proofs, snapshot) if snapshot is not None else None
        self._blob_kind = (snapshot.content_type if snapshot is not None else ct.DEFAULT).encode()
        self._held = (0, b"")  # a position, and the bytes from there on
        self._parts = self._body()

    def next(self) -> bytes | None:
        """Return the next piece, None after the last."""
        gathered: list[bytes] = []
        size = 0
        for part in self._parts:
            gathered.append(part)
            size += len(part)
            if size >= PIECE_BYTES:
                break
        return b"".join(gathered) if gathered else None

    def _head(self, kind: bytes, first: bool = False) -> bytes:  # noqa: FBT001, FBT002
        start = b"" if first else b"\r\n"
        return start + self._delimiter + b"\r\nContent-Type: " + kind + b"\r\n\r\n"

    def _body(self) -> Iterator[bytes]:
        yield self._head(self._blob_kind, first=True)
        if self._blob is not None:
            yield from self._checked(self._blob_pieces(self._blob))
        # The view's floor: the stream's own may have moved since this answer began.
        cut = len(json_mode.SEPARATOR) if self._stream.json else 0
        for start, end in self._view.messages(self._view.floor):
            yield self._head(self._kind)
            yield from self._checked(self._message(start, end - cut))
        yield b"\r\n" + self._delimiter + b"--\r\n"

    def _blob_pieces(self, blob: Blob) -> Iterator[bytes]:
        while not blob.ended:
            yield blob.piece()

    def _message(self, start: int, end: int) -> Iterator[bytes]:
        """Yield a message; small ones that lie together are read together."""
        while start < end:
            low, data = self._held
            if not low <= start < low + len(data):
                stop = self._view.piece_end(start, self._view.tail, _HELD_BYTES)
                low, data = start, self._view.read(start, stop)
                self._held = (low, data)
            stop = min(end, low + len(data))
            yield data[start - low : stop - low]
            start = stop

    def _checked(self, part: Iterator[bytes]) -> Iterator[bytes]:
        """Pass a part on; raise where it holds what ends a part."""
        before = b""
        for piece in part:
            whole = before + piece
            if self._delimiter in whole:
                raise BoundaryFoundError
            before = whole[-len(self._delimiter) :]
            yield piece

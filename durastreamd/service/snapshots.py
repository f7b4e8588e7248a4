"""Snapshots: publish, redirect, read, delete (docs/extension.md)."""

import secrets
from contextlib import aclosing
from functools import partial

from durastreamd.engine.view import blob_of
from durastreamd.errors import StreamStoppedError, WriteFailedError
from durastreamd.http.errors import BodyTooLargeError
from durastreamd.http.exchange import Exchange
from durastreamd.model.records import Snapshot
from durastreamd.model.stream_state import Stream
from durastreamd.protocol import content_type as ct, offsets, outcomes as oc, problems
from durastreamd.protocol.names import Resource
from durastreamd.protocol.requests import ProblemError, content_type_of
from durastreamd.service.answers import NOT_CACHED, Fields, next_offset, refusal_of, typed
from durastreamd.service.buckets import not_allowed
from durastreamd.service.limits import Limits
from durastreamd.service.reader import Reader, below_floor
from durastreamd.service.reads import UP_TO_DATE
from durastreamd.storage.blobs import BlobWriter
from durastreamd.storage.proofs import Proofs
from durastreamd.streams.registry import Streams
from durastreamd.streams.ticket import PublishCommand, TouchCommand

PIECE_BYTES = 256 * 1024
WHOLE = "GET, HEAD, OPTIONS"
ONE = "PUT, GET, HEAD, DELETE, OPTIONS"


def snapshot_offset(position: int) -> tuple[bytes, bytes]:
    """Return the header that names a snapshot."""
    return (b"Stream-Snapshot-Offset", offsets.mint(position).encode())


class Snapshots:
    """``{stream}/snapshot`` and ``{stream}/snapshot/{offset}``."""

    def __init__(self, streams: Streams, reader: Reader, limits: Limits) -> None:
        self._streams = streams
        self._reader = reader
        self._limits = limits

    async def answer(self, exchange: Exchange, stream: Stream, place: Resource) -> None:
        """Answer a request for a stream's snapshots."""
        method = exchange.request.method
        if place.offset is None:
            if method not in ("GET", "HEAD"):
                raise not_allowed(WHOLE)
            await self._redirect(exchange, stream)
            return
        position = offsets.parse(place.offset)
        if position is None:
            detail = offsets.misread(problems.quoted(place.offset), place.offset)
            raise ProblemError(problems.INVALID_OFFSET, detail)
        if method == "PUT":
            await self._publish(exchange, stream, position)
        elif method in ("GET", "HEAD"):
            await self._read(exchange, stream, position)
        elif method == "DELETE":
            raise self._undeletable(stream, position)
        else:
            raise not_allowed(ONE)

    async def _redirect(self, exchange: Exchange, stream: Stream) -> None:
        if stream.snapshot is None:
            raise ProblemError(problems.SNAPSHOT_NOT_FOUND, "The stream has no snapshot.")
        token = offsets.mint(stream.snapshot.position)
        location = f"{exchange.request.path}/{token}".encode()
        fields = [(b"Location", location), snapshot_offset(stream.snapshot.position), NOT_CACHED]
        fields.append(self._reader.life(stream))
        await exchange.respond(307, fields)

    async def _read(self, exchange: Exchange, stream: Stream, position: int) -> None:
        snapshot = stream.snapshot
        if snapshot is None or snapshot.position != position:
            detail = "There is no snapshot at this offset; it may have been superseded."
            raise ProblemError(problems.SNAPSHOT_NOT_FOUND, detail)
        self._streams.touch(stream)
        fields: Fields = [
            *typed(snapshot.content_type.encode()),
            snapshot_offset(position),
            next_offset(position),
            self._reader.life(stream),
            NOT_CACHED,
        ]
        if position == stream.tail:
            fields.append(UP_TO_DATE)
        with self._streams.engine.reading(stream):
            blob = Blob(self._streams.engine.proofs, snapshot)
            await self._streams.blocking(blob.prove)
            await exchange.start(200, fields, length=snapshot.size)
            while exchange.request.method != "HEAD" and not blob.ended:
                await exchange.send(await self._streams.blocking(blob.piece))
            await exchange.finish()

    async def _publish(self, exchange: Exchange, stream: Stream, position: int) -> None:
        await self._check(stream, position)
        limit = self._limits.writes.snapshot_bytes_max
        length = exchange.request.content_length
        if length is not None and length > limit:
            raise BodyTooLargeError(limit)
        kind = content_type_of(exchange.request.headers) or ct.DEFAULT
        await self._announce(stream)
        engine = self._streams.engine
        serial = secrets.randbits(63)
        writer = BlobWriter(engine.disk, stream.id, position, serial)
        engine.begin_upload(stream.id)
        try:
            await self._upload(exchange, writer, limit)
            await self._streams.blocking(writer.finish)
            blob = Snapshot(stream.id, position, serial, kind, writer.size, writer.sum)
            ticket = self._streams.post(stream.key, PublishCommand(blob))
        except BaseException:
            self._discard(stream, writer)  # nobody has been told of it
            found = self._streams.find(stream.key)
            if found is not stream:  # its directory may be gone, and the upload with it
                raise _refusal(found if not isinstance(found, Stream) else oc.NotFound()) from None
            raise
        # From here on the record may become durable without us, so a cancellation leaves the blob.
        try:
            outcome = await ticket.outcome()
        except (WriteFailedError, StreamStoppedError):
            self._discard(stream, writer)
            raise
        if not isinstance(outcome, oc.SnapshotPublished):
            self._discard(stream, writer)
            raise _refusal(outcome)
        engine.end_upload(stream.id)
        fields = [snapshot_offset(position), next_offset(stream.tail)]
        await exchange.respond(204, fields)

    async def _announce(self, stream: Stream) -> None:
        """Have the journal speak of the stream before there is a blob; see ``begin_upload``."""
        outcome = await self._streams.ask(stream.key, TouchCommand())
        if not isinstance(outcome, oc.Touched):
            raise _refusal(outcome)

    def _discard(self, stream: Stream, writer: BlobWriter) -> None:
        writer.discard()
        self._streams.engine.end_upload(stream.id, writer.path)

    async def _upload(self, exchange: Exchange, writer: BlobWriter, limit: int) -> None:
        """Write the body as it comes; appends go on meanwhile."""
        claim = exchange.claim
        pending: list[bytes] = []
        size = 0
        if exchange.request.has_body:
            async with aclosing(exchange.chunks()) as chunks:
                async for chunk in chunks:
                    if writer.size + size + len(chunk) > limit:
                        raise BodyTooLargeError(limit)
                    await claim.wait(len(chunk))
                    pending.append(chunk)
                    size += len(chunk)
                    if size >= PIECE_BYTES:
                        await self._streams.blocking(partial(writer.write, b"".join(pending)))
                        claim.give(size)
                        pending, size = [], 0
        await self._streams.blocking(partial(writer.write, b"".join(pending)))

    async def _check(self, stream: Stream, position: int) -> None:
        """Refuse a place below the floor, above the tail or inside a message, before the body."""
        if position < stream.floor and stream.lost_from() is not None:
            raise below_floor(stream)
        if position < stream.floor:
            raise _refusal(oc.SnapshotTooOld(offsets.Position(stream.floor)))
        if position > stream.tail:
            raise _refusal(oc.SnapshotPastTail(offsets.Position(stream.tail)))
        with self._streams.engine.reading(stream) as view:
            await self._reader.page(view, stream, position, 1)

    def _undeletable(self, stream: Stream, position: int) -> ProblemError:
        if stream.snapshot is not None and stream.snapshot.position == position:
            detail = "The latest snapshot cannot be deleted: /bootstrap would be incomplete."
            return ProblemError(problems.SNAPSHOT_CONFLICT, detail)
        detail = "There is no snapshot at this offset; it may have been superseded."
        return ProblemError(problems.SNAPSHOT_NOT_FOUND, detail)


class Blob:
    """Reads a snapshot piece by piece, all of it verified before the first. It may block."""

    def __init__(self, proofs: Proofs, snapshot: Snapshot) -> None:
        self._proofs = proofs
        self._file = blob_of(snapshot)
        self._at = 0

    @property
    def ended(self) -> bool:
        """Tell whether all of it has been read."""
        return self._at >= self._file.size

    def prove(self) -> None:
        """Raise CorruptDataError unless the file is there and the whole verifies."""
        self._proofs.prove(self._file, 0, self._file.size)

    def piece(self) -> bytes:
        """Return the next piece."""
        start = self._at
        self._at = min(start + PIECE_BYTES, self._file.size)
        return self._proofs.read(self._file, start, self._at)


def _refusal(outcome: oc.Outcome) -> ProblemError:
    if isinstance(outcome, oc.SnapshotTooOld):
        detail = "The offset lies below what is retained; a newer snapshot is there."
        return ProblemError(problems.OFFSET_EXPIRED, detail, (next_offset(outcome.floor),))
    if isinstance(outcome, oc.SnapshotPastTail):
        detail = "The offset lies past the end of the stream."
        return ProblemError(problems.SNAPSHOT_CONFLICT, detail, (next_offset(outcome.tail),))
    refusal = refusal_of(outcome)
    assert refusal is not None
    return refusal

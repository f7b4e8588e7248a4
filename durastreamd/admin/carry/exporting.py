"""``dsadmin export``: streams as messages, as the bytes a client gets, or with all they are."""

import argparse
import base64
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from durastreamd.admin.carry.items import (
    FORMATS,
    VERSION,
    End,
    ExportHead,
    ForkOf,
    ItemWriter,
    PieceItem,
    RecordItem,
    SnapshotItem,
    StreamEnd,
    StreamItem,
)
from durastreamd.admin.carry.outgoing import Batch, Own, own, readable
from durastreamd.admin.place import opened
from durastreamd.engine.engine import Engine
from durastreamd.engine.view import blob_of
from durastreamd.errors import CorruptDataError
from durastreamd.kit.command import Command, CommandError
from durastreamd.kit.console import Console
from durastreamd.kit.status import CORRUPT, IO_ERROR, NO_INPUT, OK, USAGE
from durastreamd.model.buckets import bucket_of
from durastreamd.model.records import NO_POLICY, Snapshot
from durastreamd.model.stream_state import Detail, Stream
from durastreamd.offline.names import find_stream
from durastreamd.offline.opening import Opened
from durastreamd.protocol.content_type import media_type
from durastreamd.protocol.json_mode import SEPARATOR
from durastreamd.protocol.json_writing import json_line
from durastreamd.protocol.offsets import mint
from durastreamd.storage.blobs import read_blob

PIECE_BYTES = 1024 * 1024
OWNER_ONLY = 0o600


def add_arguments(made: argparse.ArgumentParser) -> None:
    """Add what ``export`` takes."""
    made.add_argument("streams", nargs="*", metavar="STREAM", help="a stream's name")
    made.add_argument("--bucket", metavar="B", help="every stream of a bucket")
    made.add_argument("--all", action="store_true", help="every stream of the data directory")
    made.add_argument(
        "--format",
        choices=FORMATS,
        default="ndjson",
        help="ndjson: a message per line; raw: the bytes a client gets; cbor: everything there is",
    )
    made.add_argument(
        "--envelope",
        action="store_true",
        help="ndjson: {stream, offset, time, value} around each message",
    )
    made.add_argument("--output", metavar="FILE", help="write here, whole or not at all")


def run(args: argparse.Namespace, console: Console) -> int:
    """Write the chosen streams in the chosen format."""
    _check_usage(args, console)
    with opened(args, console) as found:
        streams = _choose(args, found)
        total = sum(stream.tail - stream.floor for stream in streams)
        with _output(args, console) as out, console.working("export", total) as advance:
            try:
                _write(args, found, streams, out, advance)
            except (FileNotFoundError, CorruptDataError) as exc:
                if not found.running:
                    raise
                text = (
                    f"{exc}; the daemon may have removed it meanwhile: "
                    "`dsadmin backup` first, then export from the backup"
                )
                raise CommandError(IO_ERROR, text) from exc
    if args.output:
        many = "s" * (len(streams) != 1)
        console.note(f"exported {len(streams)} stream{many}, {total} bytes, to {args.output}")
    return OK


def _check_usage(args: argparse.Namespace, console: Console) -> None:
    if bool(args.streams) + bool(args.bucket) + args.all != 1:
        raise CommandError(USAGE, "say what to export: STREAM..., --bucket B or --all")
    if args.envelope and args.format != "ndjson":
        raise CommandError(USAGE, "--envelope belongs to --format ndjson")
    if args.format == "cbor" and not args.output and console.out.isatty():
        text = "an export in CBOR is not for a terminal; name a file with --output, or pipe it on"
        raise CommandError(USAGE, text)


def _write(
    args: argparse.Namespace,
    found: Opened,
    streams: list[Stream],
    out: BinaryIO,
    advance: Callable[[int], None],
) -> None:
    engine = found.engine
    if args.format == "cbor":
        export_everything(engine, streams, out, found.now_ms, advance, whole=args.all)
    elif args.format == "raw":
        export_raw(engine, streams[0], out, advance)
    else:
        for stream in streams:
            export_lines(engine, stream, out, advance, envelope=args.envelope)


# --- which ---


def _choose(args: argparse.Namespace, found: Opened) -> list[Stream]:
    """Return the streams to export, sources before their forks."""
    space = found.namespace
    if args.streams:
        chosen = {(stream := find_stream(space, name)).id: stream for name in args.streams}
    elif args.bucket is not None:
        if args.bucket not in space.buckets:
            raise CommandError(NO_INPUT, f"there is no bucket {args.bucket}")
        chosen = {s.id: s for s in space.by_id.values() if bucket_of(s.key) == args.bucket}
    else:
        chosen = dict(space.by_id)
    if args.format != "cbor" and not args.streams:
        chosen = {number: stream for number, stream in chosen.items() if not stream.gone}
    _check_chosen(args, list(chosen.values()))
    return [chosen[number] for number in sorted(chosen)]


def _check_chosen(args: argparse.Namespace, chosen: list[Stream]) -> None:
    damaged = [stream for stream in chosen if stream.damage]
    if damaged:
        text = (
            f"{damaged[0].key} is damaged and cannot be exported: {damaged[0].damage}; "
            "`dsadmin repair` first, or name the streams to export"
        )
        raise CommandError(CORRUPT, text)
    if args.format == "cbor":
        return
    gone = [stream.key for stream in chosen if stream.gone]
    if args.streams and gone:
        text = f"{gone[0]} was deleted and is kept for its forks alone; export those"
        raise CommandError(NO_INPUT, text)
    if len(chosen) != 1 and args.format == "raw":
        raise CommandError(USAGE, f"--format raw is for one stream, not {len(chosen)}")
    if len(chosen) > 1 and args.format == "ndjson" and not args.envelope:
        text = f"{len(chosen)} streams: --envelope tells their messages apart (or --format cbor)"
        raise CommandError(USAGE, text)


@contextmanager
def _output(args: argparse.Namespace, console: Console) -> Iterator[BinaryIO]:
    """Lend standard output, or a new file that gets its name when it is whole and durable."""
    if not args.output:
        console.flush()
        yield console.out.buffer
        console.out.buffer.flush()
        return
    target = Path(args.output)
    draft = target.with_name(target.name + ".partial")
    try:
        with open(draft, "wb", opener=lambda path, flags: os.open(path, flags, OWNER_ONLY)) as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        draft.rename(target)
    finally:
        draft.unlink(missing_ok=True)


# --- messages ---


def messages(batch: Batch) -> Iterator[tuple[int, bytes]]:
    """Yield each message of a batch and where it begins; a JSON one without its separator."""
    if batch.lengths is None:
        at = 0
        while at < len(batch.data):
            end = batch.data.index(SEPARATOR, at)
            yield batch.at + at, batch.data[at:end]
            at = end + len(SEPARATOR)
        return
    at = 0
    for length in batch.lengths:
        yield batch.at + at, batch.data[at : at + length]
        at += length


def export_lines(
    engine: Engine,
    stream: Stream,
    out: BinaryIO,
    advance: Callable[[int], None],
    *,
    envelope: bool,
) -> None:
    """Write a message per line."""
    is_text = media_type(stream.content_type).startswith("text/")
    name = json_line(stream.key)
    for batch in readable(engine, stream, stream.floor):
        if stream.json and not envelope:
            # Messages hold no line ends, so every separator is one between messages.
            out.write(batch.data.replace(SEPARATOR, b"\n"))
            advance(len(batch.data))
            continue
        lines: list[bytes] = []
        for at, message in messages(batch):
            kind, value = _value(stream, message, is_text=is_text)
            if envelope:
                head = f'{{"stream":{name},"offset":"{mint(at)}","time":{batch.time_ms},"{kind}":'
                lines += (head.encode(), value, b"}\n")
            elif kind == "base64" and is_text:
                text = (
                    f"{stream.key}: the message at {mint(at)} is not UTF-8 although the stream "
                    f"is {stream.content_type}; --envelope can write it, so can --format raw"
                )
                raise CommandError(CORRUPT, text)
            else:
                lines += (value, b"\n")
        out.write(b"".join(lines))
        advance(len(batch.data))


def _value(stream: Stream, message: bytes, *, is_text: bool) -> tuple[str, bytes]:
    """Return a message as a JSON value, and the member of an envelope that holds it."""
    if stream.json:
        return "value", message
    if is_text:
        try:
            return "text", json_line(message.decode()).encode()
        except UnicodeDecodeError:
            pass
    return "base64", b'"%s"' % base64.b64encode(message)


def export_raw(
    engine: Engine, stream: Stream, out: BinaryIO, advance: Callable[[int], None]
) -> None:
    """Write the bytes a client gets who reads the whole stream: of JSON, one array."""
    held = b""
    if stream.json:
        out.write(b"[")
    for batch in readable(engine, stream, stream.floor):
        if stream.json and batch.data:
            # The separator after the last message is not part of the array.
            out.write(held + batch.data[: -len(SEPARATOR)])
            held = SEPARATOR
        else:
            out.write(batch.data)
        advance(len(batch.data))
    if stream.json:
        out.write(b"]")


# --- everything ---


def export_everything(
    engine: Engine,
    streams: list[Stream],
    out: BinaryIO,
    made_ms: int,
    advance: Callable[[int], None] = lambda _: None,
    *,
    whole: bool,
) -> End:
    """Write the CBOR sequence of ``items``; of a whole directory, empty buckets are part of it."""
    return _Everything(engine, streams, out, advance).write(made_ms, whole=whole)


class _Everything:
    def __init__(
        self,
        engine: Engine,
        streams: list[Stream],
        out: BinaryIO,
        advance: Callable[[int], None],
    ) -> None:
        self._engine = engine
        self._streams = streams
        self._numbers = {stream.id: number for number, stream in enumerate(streams, 1)}
        self._out = ItemWriter(out)
        self._advance = advance
        self._records = 0
        self._bytes = 0

    def write(self, made_ms: int, *, whole: bool) -> End:
        space = self._engine.namespace
        used = {bucket_of(stream.key) for stream in self._streams}
        buckets = [
            (name, bucket.created_ms)
            for name, bucket in space.buckets.items()
            if whole or name in used
        ]
        names = [stream.key for stream in self._streams]
        self._out.write(ExportHead(VERSION, self._engine.uuid, made_ms, names, buckets))
        for stream in self._streams:
            self._stream(stream)
        end = End(len(self._streams), self._records, self._bytes)
        self._out.write(end)
        return end

    def _stream(self, stream: Stream) -> None:
        linked = not stream.source or stream.source in self._numbers
        found = own(self._engine, stream) if linked else self._detached(stream)
        self._out.write(
            StreamItem(
                self._numbers[stream.id],
                stream.key,
                stream.content_type,
                stream.created_ms,
                found.start,
                found.messages,
                min(stream.floor, found.start),
                stream.ttl_ms,
                stream.expires_ms,
                found.closed,
                self._fork(stream) if linked else None,
                _rows(found.detail),
                found.detail.seq,
            )
        )
        for batch in found.batches:
            self._batch(batch)
        for blob in self._blobs(stream, linked=linked):
            self._blob(blob)
        self._end(stream, linked=linked)

    def _detached(self, stream: Stream) -> Own:
        """Return a fork as a stream of its own: its source is not part of this export."""
        if stream.floor >= stream.fork_position:
            return own(self._engine, stream)
        messages = self._engine.view(stream).ordinal_at(stream.floor)
        batches = readable(self._engine, stream, stream.floor)
        return Own(stream.floor, messages, closed=False, detail=Detail(), batches=batches)

    def _fork(self, stream: Stream) -> ForkOf | None:
        if not stream.source:
            return None
        source = self._numbers[stream.source]
        return ForkOf(source, stream.fork_position, stream.anchor, stream.sub)

    def _batch(self, batch: Batch) -> None:
        if not (batch.data or batch.closes or batch.seq is not None or batch.producers):
            return  # a create record without bytes: the stream item has said it all
        self._out.write(
            RecordItem(
                batch.at,
                batch.time_ms,
                batch.message_count if batch.lengths is None else batch.lengths,
                batch.data,
                batch.closes,
                batch.seq,
                list(batch.producers),
            )
        )
        self._records += 1
        self._bytes += len(batch.data)
        self._advance(len(batch.data))

    def _blobs(self, stream: Stream, *, linked: bool) -> list[Snapshot]:
        """Return the snapshots that go with a stream: its own, as far as somebody shows them."""
        if not linked:
            return [stream.snapshot] if stream.snapshot is not None else []
        kept = self._engine.namespace.snapshots_of(stream.id)
        return sorted(kept, key=lambda blob: (blob.position, blob.serial))

    def _blob(self, blob: Snapshot) -> None:
        self._out.write(SnapshotItem(blob.position, blob.serial, blob.content_type, blob.size))
        for data in read_blob(self._engine.disk, blob_of(blob), PIECE_BYTES):
            self._out.write(PieceItem(data))

    def _end(self, stream: Stream, *, linked: bool) -> None:
        detail = Detail()
        if not stream.plain:
            detail = stream.detail or self._engine.load_detail(stream)
        blob = stream.snapshot
        shown = None
        # A deleted stream, kept for its forks, shows nothing: its blob may be gone already.
        if blob is not None and not stream.gone:
            owner = self._numbers[blob.owner if linked else stream.id]
            shown = (owner, blob.position, blob.serial)
        self._out.write(
            StreamEnd(
                self._numbers[stream.id],
                stream.tail,
                stream.messages,
                stream.floor,
                stream.written_ms,
                stream.accessed_ms,
                stream.closed,
                stream.gone,
                shown,
                _rows(detail),
                detail.seq,
                stream.trimmed,
                stream.policy if stream.policy != NO_POLICY else None,
            )
        )


def _rows(detail: Detail) -> list[tuple[str, int, int]]:
    return sorted((name, epoch, seq) for name, (epoch, seq) in detail.producers.items())


COMMAND = Command("export", "write streams out: messages, bytes, or everything", add_arguments, run)

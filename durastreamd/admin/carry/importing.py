"""``dsadmin import``: what ``export`` wrote, or messages from anywhere, into a data directory.

All or nothing, in every format: see ``staging``.
"""

import argparse
import os
import stat
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from durastreamd.admin.carry.incoming import Incoming
from durastreamd.admin.carry.items import FORMATS, ItemReader, Source
from durastreamd.admin.carry.messages import Arrived, LineReader, raw_batches
from durastreamd.admin.carry.staging import Staging, StreamWriter, Totals
from durastreamd.admin.place import options_of, owner_of, root_of
from durastreamd.engine.engine import Engine
from durastreamd.engine.opening import open_engine
from durastreamd.kit.command import Command, CommandError
from durastreamd.kit.console import Console
from durastreamd.kit.status import NO_INPUT, OK, USAGE
from durastreamd.model.buckets import bucket_of
from durastreamd.model.records import Append, Create
from durastreamd.model.stream_state import Stream
from durastreamd.offline.names import new_key
from durastreamd.offline.opening import now_ms
from durastreamd.protocol import content_type as ct
from durastreamd.storage.disk import DIRECTORY_MODE, RealDisk

DEFAULT_TYPES = {"ndjson": ct.JSON, "raw": ct.DEFAULT}


def add_arguments(made: argparse.ArgumentParser) -> None:
    """Add what ``import`` takes."""
    made.add_argument("--format", choices=FORMATS, default="cbor", help="what the file is (cbor)")
    made.add_argument("--input", metavar="FILE", help="read here, not from standard input")
    made.add_argument("--init", action="store_true", help="make the data directory if it is empty")
    made.add_argument(
        "--rename",
        metavar="OLD=NEW",
        action="append",
        default=[],
        help="cbor: give a stream another name; may be repeated",
    )
    made.add_argument("--stream", metavar="NAME", help="ndjson, raw: the stream, new or not")
    made.add_argument("--content-type", metavar="T", help="ndjson, raw: the type of a new stream")
    made.add_argument(
        "--envelope", action="store_true", help="ndjson: lines as `export --envelope` writes them"
    )


def run(args: argparse.Namespace, console: Console) -> int:
    """Bring a file in, whole or not at all."""
    renames = _check_usage(args)
    with _input(args) as (source, name, size):
        root = _root(args)
        disk = RealDisk(str(root))
        disk.owner = owner_of(root)
        engine, _ = open_engine(
            disk, options_of(args), lambda: uuid.uuid4().bytes, now_ms(), create=args.init
        )
        try:
            with console.working("import", size) as advance:
                counted = Counted(source, advance)
                totals = bring_in(engine, args, (counted, name), renames)
        except KeyboardInterrupt:
            console.note("interrupted; nothing was imported")
            raise
        finally:
            engine.release()
    if console.as_json:
        console.record(totals._asdict())
    else:
        console.note(
            f"imported {totals.streams} stream{'s' * (totals.streams != 1)}, "
            f"{totals.messages} message{'s' * (totals.messages != 1)}, {totals.data_bytes} bytes"
        )
    return OK


def _check_usage(args: argparse.Namespace) -> dict[str, str]:
    """Raise where options do not fit the format; return what is to be renamed."""
    if args.format == "cbor":
        if args.stream or args.content_type or args.envelope:
            text = "--stream, --content-type and --envelope are for --format ndjson and raw"
            raise CommandError(USAGE, text)
    elif not args.stream:
        raise CommandError(USAGE, f"--format {args.format} needs --stream NAME to go to")
    if args.rename and args.format != "cbor":
        raise CommandError(USAGE, "--rename is for --format cbor; --stream names the stream")
    if args.envelope and args.format != "ndjson":
        raise CommandError(USAGE, "--envelope belongs to --format ndjson")
    renames = {}
    for pair in args.rename:
        old, equals, new = pair.partition("=")
        if not (old and equals and new):
            raise CommandError(USAGE, f"--rename takes OLD=NEW, not {pair}")
        renames[old] = new
    return renames


def _root(args: argparse.Namespace) -> Path:
    if args.init and args.data_dir is not None:
        Path(args.data_dir).mkdir(mode=DIRECTORY_MODE, exist_ok=True)
    return root_of(args)


class Counted:
    """A source that tells how much of it was read."""

    def __init__(self, source: Source, advance: Callable[[int], None]) -> None:
        self._source = source
        self._advance = advance

    def read(self, size: int, /) -> bytes:
        """Return up to so many bytes."""
        data = self._source.read(size)
        self._advance(len(data))
        return data

    def readline(self, size: int, /) -> bytes:
        """Return up to the next line end."""
        data = self._source.readline(size)
        self._advance(len(data))
        return data


@contextmanager
def _input(args: argparse.Namespace) -> Iterator[tuple[BinaryIO, str, int]]:
    """Lend the file to read, what to call it, and how long it is (0: nobody knows)."""
    if args.input:
        if not Path(args.input).exists():
            raise CommandError(NO_INPUT, f"there is no file {args.input}")
        with open(args.input, "rb") as source:
            yield source, args.input, os.fstat(source.fileno()).st_size
        return
    if sys.stdin.isatty():
        raise CommandError(USAGE, "say what to import: --input FILE, or pipe it in")
    found = os.fstat(sys.stdin.fileno())
    yield sys.stdin.buffer, "standard input", found.st_size if stat.S_ISREG(found.st_mode) else 0


def bring_in(
    engine: Engine,
    args: argparse.Namespace,
    source: tuple[Source, str],
    renames: dict[str, str],
) -> Totals:
    """Import one file into an open directory; on any failure nothing is there that was not."""
    staging = Staging(engine, now_ms())
    try:
        if args.format == "cbor":
            Incoming(ItemReader(*source), staging, renames).run()
        else:
            _messages(staging, args, source)
        return staging.finish()
    except BaseException:
        staging.abandon()
        raise


# --- messages ---


def _messages(staging: Staging, args: argparse.Namespace, source: tuple[Source, str]) -> None:
    writer = _writer(staging, args)
    kind = writer.stream.content_type
    if args.format == "ndjson":
        batches = LineReader(*source, kind, envelope=args.envelope).batches()
    else:
        batches = raw_batches(*source, kind)
    moment = now_ms()
    for batch in batches:
        _append(writer, batch, moment)
    writer.stream.accessed_ms = max(writer.stream.accessed_ms, moment)
    writer.end()


def _append(writer: StreamWriter, batch: Arrived, moment: int) -> None:
    stream = writer.stream
    time_ms = batch.time_ms if batch.time_ms >= 0 else moment
    record = Append(
        stream.id,
        stream.tail,
        len(batch.data),
        max(time_ms, stream.accessed_ms),
        stream.messages,
        batch.message_count,
        batch.lengths,
    )
    writer.append(record, batch.data)


def _writer(staging: Staging, args: argparse.Namespace) -> StreamWriter:
    """Return the writer of the stream that --stream names, new or longer."""
    space = staging.engine.namespace
    key = args.stream if args.stream in space.by_key else new_key(args.stream)
    found: Stream | None = space.by_key.get(key)
    if found is None:
        return _new(staging, key, args.content_type or DEFAULT_TYPES[args.format])
    if args.content_type and not ct.same(args.content_type, found.content_type):
        text = f"{key} is {found.content_type}, not {args.content_type}; nothing was imported"
        raise CommandError(USAGE, text)
    reasons = {
        "is closed and takes nothing more": found.closed,
        "was deleted": found.gone,
        "has expired": found.expired(now_ms()),
        f"is damaged ({found.damage})": bool(found.damage),
    }
    for reason, holds in reasons.items():
        if holds:
            raise CommandError(USAGE, f"{key} {reason}; nothing was imported")
    return staging.lengthen(found)


def _new(staging: Staging, key: str, kind: str) -> StreamWriter:
    moment = now_ms()
    if bucket_of(key):
        staging.make_bucket(bucket_of(key), moment)
    lengths: list[int] | None = None if ct.is_json(kind) else []
    # Before any message it may hold: an envelope brings times from the past.
    stream = Stream(Create(0, 0, 0, 0, 0, 0, lengths, key, kind))
    stream.created_ms = stream.written_ms = moment
    staging.reserve(1)
    return staging.make(stream)


COMMAND = Command("import", "bring streams in, all or nothing", add_arguments, run)

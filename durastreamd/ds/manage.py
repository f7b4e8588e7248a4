"""``ds create``, ``rm``, ``close``, ``fork`` and ``snapshot``."""

import argparse
import sys
from pathlib import Path

from durastreamd.client import Bookmark, StreamHead
from durastreamd.ds.server import add_stream, connect
from durastreamd.kit.command import Command, CommandError
from durastreamd.kit.console import Console
from durastreamd.kit.status import NO_INPUT, OK, USAGE
from durastreamd.protocol.content_type import JSON

TEXT = "text/plain"


def _told(console: Console, url: str, what: str, head: StreamHead) -> int:
    """Say what was done, to whoever looks."""
    if console.as_json:
        console.record(
            {"stream": url, "content_type": head.content_type, "next_offset": head.next_offset}
        )
    elif console.on_terminal:
        console.line(f"{url}: {what}, {head.content_type}, ends at {head.next_offset}")
    return OK


def type_of(args: argparse.Namespace) -> str:
    """Return the content type of a stream that is to be made."""
    return args.type or (JSON if args.json else TEXT)


def place(text: str) -> Bookmark:
    """Return the place that an argument names."""
    try:
        return Bookmark.of(text)
    except ValueError as exc:
        raise CommandError(USAGE, str(exc)) from exc


# --- create ---


def _add_create(parser: argparse.ArgumentParser) -> None:
    add_stream(parser)
    kind = "its content type; without it text/plain, with --json application/json"
    parser.add_argument("--type", metavar="TYPE", help=kind)
    parser.add_argument("--ttl", metavar="SECONDS", type=int, help="of life after the last use")
    parser.add_argument(
        "--expires", metavar="TIME", default="", help="the end of its life, RFC 3339"
    )


def _create(args: argparse.Namespace, console: Console) -> int:
    with connect(args) as stream:
        head = stream.create(type_of(args), ttl_s=args.ttl, expires_at=args.expires)
        return _told(console, stream.url, "there", head)


CREATE = Command("create", "make a stream", _add_create, _create)


# --- rm, close ---


def _add_streams(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("streams", nargs="+", metavar="STREAM", help="names, paths or URLs")


def _remove(args: argparse.Namespace, console: Console) -> int:
    for name in args.streams:
        with connect(args, name) as stream:
            stream.delete()
            if console.as_json:
                console.record({"stream": stream.url, "deleted": True})
    return OK


def _close(args: argparse.Namespace, console: Console) -> int:
    for name in args.streams:
        with connect(args, name) as stream:
            closed = stream.close()
            if console.as_json:
                console.record({"stream": stream.url, "next_offset": closed.next_offset})
    return OK


REMOVE = Command("rm", "delete streams", _add_streams, _remove)
CLOSE = Command("close", "close streams: they take no more", _add_streams, _close)


# --- fork ---


def _add_fork(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", help="the stream to fork")
    add_stream(parser)
    parser.add_argument("--at", metavar="OFFSET", help="where to fork it (its end)")


def _fork(args: argparse.Namespace, console: Console) -> int:
    with connect(args, args.source) as source, connect(args) as stream:
        head = stream.fork(source.url, place(args.at) if args.at else "")
        return _told(console, stream.url, "forked", head)


FORK = Command("fork", "make a stream that begins as another one", _add_fork, _fork)


# --- snapshot ---


def _add_snapshot(parser: argparse.ArgumentParser) -> None:
    add_stream(parser)
    parser.add_argument("--put", metavar="FILE", help="publish this as one; - is standard input")
    parser.add_argument(
        "--at", metavar="OFFSET", help="with --put: of what lies before it (the end)"
    )
    parser.add_argument(
        "--type", metavar="TYPE", default=JSON, help="with --put (application/json)"
    )


def _snapshot(args: argparse.Namespace, console: Console) -> int:
    with connect(args) as stream:
        if args.put is not None:
            data = sys.stdin.buffer.read() if args.put == "-" else Path(args.put).read_bytes()
            at = place(args.at) if args.at else Bookmark(stream.head().next_offset)
            offset = stream.put_snapshot(stream.offset_of(at), data, args.type)
            if console.as_json:
                console.record({"stream": stream.url, "snapshot_offset": offset})
            elif console.on_terminal:
                console.line(f"{stream.url}: snapshot at {offset}, {len(data)} bytes")
            return OK
        found = stream.snapshot()
        if found is None:
            raise CommandError(NO_INPUT, f"{stream.url} has no snapshot")
        if console.on_terminal:
            console.note(f"the snapshot at {found.offset}, {found.content_type}")
        console.raw(found.data)
        return OK


SNAPSHOT = Command("snapshot", "print or publish a snapshot", _add_snapshot, _snapshot)

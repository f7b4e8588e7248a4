"""``dsadmin ls``: the streams there are."""

import argparse
from collections.abc import Callable, Iterator

from durastreamd.admin.look.streams import members, state_of
from durastreamd.admin.place import opened
from durastreamd.kit import show
from durastreamd.kit.command import Command, CommandError
from durastreamd.kit.console import Console
from durastreamd.kit.status import NO_INPUT, OK
from durastreamd.model.namespace import Namespace
from durastreamd.model.stream_state import Stream
from durastreamd.offline.opening import Opened

STATES = ("open", "closed", "expired", "damaged", "gone")

# By name as it is; by anything else the largest first.
SORTS: dict[str, Callable[[Stream], int]] = {
    "bytes": lambda stream: stream.floor - stream.tail,
    "messages": lambda stream: -stream.messages,
    "mtime": lambda stream: -stream.written_ms,
}

_STREAMS = (
    show.Column("NAME", least=16),
    show.Column("STATE"),
    show.Column("BYTES", number=True),
    show.Column("MESSAGES", number=True),
    show.Column("WRITTEN"),
    show.Column("TYPE", least=8),
)
_BUCKETS = (
    show.Column("BUCKET", least=16),
    show.Column("STREAMS", number=True),
    show.Column("MADE"),
)

# The states of a stream that ask for attention.
_STYLES = {"damaged": "bold red", "expired": "yellow", "gone": "yellow", "closed": "dim"}


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prefix", nargs="?", default="", metavar="PREFIX", help="of the names")
    parser.add_argument("--bucket", metavar="NAME", help="only the streams of a bucket")
    parser.add_argument("--buckets", action="store_true", help="list the buckets themselves")
    parser.add_argument(
        "--sort", choices=("name", *SORTS), default="name", help="order; numbers the largest first"
    )
    parser.add_argument("--reverse", action="store_true", help="the other way round")
    parser.add_argument("--state", choices=STATES, help="only the streams in a state")


def _run(args: argparse.Namespace, console: Console) -> int:
    with opened(args, console) as found:
        if args.buckets:
            _list_buckets(found, args, console)
        else:
            _list_streams(found, args, console)
    return OK


def _list_streams(found: Opened, args: argparse.Namespace, console: Console) -> None:
    streams = [
        stream
        for stream in _chosen(found.namespace, args)
        if args.state in (None, state_of(stream, found.now_ms))
    ]
    if args.sort in SORTS:
        streams.sort(key=SORTS[args.sort])
    if args.reverse:
        streams.reverse()
    if console.as_json:
        for stream in streams:
            console.record(members(stream, found))
        return
    rows = [_row(stream, found.now_ms, short=console.on_terminal) for stream in streams]
    show.table(console, _STREAMS, rows, _STYLES)
    if console.on_terminal:
        total = sum(stream.tail - max(stream.floor, stream.fork_position) for stream in streams)
        console.line(f"{show.counted(len(streams), 'stream')}, {show.size(total)}")


def _chosen(namespace: Namespace, args: argparse.Namespace) -> Iterator[Stream]:
    """Yield the streams of a bucket and a prefix, in name order."""
    if args.bucket is not None and args.bucket not in namespace.buckets:
        text = f"there is no bucket {args.bucket}; `dsadmin ls --buckets` lists those there are"
        raise CommandError(NO_INPUT, text)
    low = args.prefix if args.bucket is None else f"{args.bucket}/{args.prefix}"
    starts = [low]
    if args.bucket is None and not low.startswith("/"):
        starts.append(f"/{low}")  # a path may be written without its slash
    for key, stream in namespace.by_key.items():
        if key.startswith(tuple(starts)):
            yield stream


def _row(stream: Stream, now_ms: int, *, short: bool) -> list[str]:
    retained, written = stream.tail - stream.floor, show.moment(stream.written_ms)
    return [
        show.name(stream.key),
        state_of(stream, now_ms),
        show.size(retained) if short else str(retained),
        str(stream.messages),
        show.to_the_minute(written) if short else written,
        show.name(stream.content_type).replace(" ", ""),
    ]


def _list_buckets(found: Opened, args: argparse.Namespace, console: Console) -> None:
    buckets = found.namespace.buckets
    names = sorted((n for n in buckets if n.startswith(args.prefix)), reverse=args.reverse)
    if console.as_json:
        for bucket in names:
            made = show.moment(buckets[bucket].created_ms)
            console.record({"bucket": bucket, "streams": buckets[bucket].streams, "created": made})
        return
    rows = [
        [bucket, str(buckets[bucket].streams), show.moment(buckets[bucket].created_ms)]
        for bucket in names
    ]
    show.table(console, _BUCKETS, rows)


COMMAND = Command("ls", "list streams, or buckets", _add_arguments, _run)

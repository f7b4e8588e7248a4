"""``ds ls`` and ``ds info``."""

import argparse

from durastreamd.client import ListedStream, StreamHead, list_streams
from durastreamd.ds.server import add_stream, client_of, connect, server_url
from durastreamd.kit import show
from durastreamd.kit.command import Command
from durastreamd.kit.console import Console
from durastreamd.kit.status import OK

_COLUMNS = (
    show.Column("NAME", least=16),
    show.Column("STATE"),
    *show.numbers("BYTES", "MESSAGES"),
    show.Column("WRITTEN"),
    show.Column("TYPE", least=8),
)
_STYLES = {"damaged": "bold red", "closed": "dim"}


def _add_list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prefix", nargs="?", default="", metavar="PREFIX", help="of the names")
    parser.add_argument("--bucket", metavar="NAME", default="", help="the streams of a bucket")


def _list(args: argparse.Namespace, console: Console) -> int:
    client = client_of(args)
    try:
        found = list_streams(
            server_url(args), prefix=args.prefix, bucket=args.bucket, client=client
        )
        if console.as_json:
            for each in found:
                console.record({**each.members, "url": each.url})
            return OK
        rows = [_row(each, short=console.on_terminal) for each in found]
    finally:
        client.hang_up()
    if rows or console.on_terminal:
        show.table(console, _COLUMNS, rows, _STYLES)
    if console.on_terminal:
        console.line(show.counted(len(rows), "stream"))
    return OK


def _row(each: ListedStream, *, short: bool) -> list[str]:
    state = "closed" if each.closed else "open"
    size, written = each.byte_count or 0, each.written_ms or 0
    moment = show.moment(written)
    return [
        show.name(each.name),
        "damaged" if each.members.get("damaged") else state,
        show.size(size) if short else str(size),
        str(each.message_count or 0),
        moment[:16].replace("T", " ") if short else moment,
        show.name(each.content_type).replace(" ", ""),
    ]


LIST = Command("ls", "list streams", _add_list, _list)


def _add_info(parser: argparse.ArgumentParser) -> None:
    add_stream(parser)


def _info(args: argparse.Namespace, console: Console) -> int:
    with connect(args) as stream:
        members = described(stream.head())
        members = {"stream": stream.url, **members}
    if console.as_json:
        console.record(members)
        return OK
    width = max(map(len, members))
    for name, value in members.items():
        console.line(f"{name.ljust(width)}  {show.name(str(value))}")
    return OK


def described(head: StreamHead) -> dict[str, object]:
    """Return what a server tells of a stream, as far as it does."""
    told: dict[str, object] = {
        "content_type": head.content_type,
        "state": "closed" if head.closed else "open",
        "next_offset": head.next_offset,
        "messages": head.message_count,
        "bytes": head.byte_count,
        "ttl_s": head.ttl_s,
        "expires_at": head.expires_at or None,
        "snapshot_offset": head.snapshot_offset or None,
        "incarnation": head.incarnation or None,
    }
    return {name: value for name, value in told.items() if value is not None}


INFO = Command("info", "describe a stream", _add_info, _info)

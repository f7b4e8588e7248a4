"""``ds tail``: follow a stream, over restarts of its server and of its own."""

import argparse
from dataclasses import replace

from durastreamd.client import Bookmark, DurableStream, StreamHead
from durastreamd.ds.cat import add_start, begin_of, from_first
from durastreamd.ds.cursor import CursorFile
from durastreamd.ds.output import MessageOutput
from durastreamd.ds.server import add_stream, connect
from durastreamd.kit.command import Command
from durastreamd.kit.console import Console
from durastreamd.kit.status import OK


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_stream(parser)
    add_start(parser, "now")
    state = "keep the place here, and go on from it the next time"
    parser.add_argument("--state", metavar="FILE", help=state)


def _run(args: argparse.Namespace, console: Console) -> int:
    with connect(args) as stream:
        head = stream.head()
        # Once it was there its server may be away for any time.
        client = stream.client
        client.settings = replace(client.settings, retry_s=float("inf"))
        output = MessageOutput(console, head.content_type, ndjson=args.ndjson)
        cursor = CursorFile(args.state, stream.url) if args.state else None
        try:
            _follow(stream, head, args, console, output, cursor)
        finally:
            if cursor is not None:
                cursor.release()
    return OK


def _follow(
    stream: DurableStream,
    head: StreamHead,
    args: argparse.Namespace,
    console: Console,
    output: MessageOutput,
    cursor: CursorFile | None,
) -> None:
    kept = cursor.load() if cursor else None
    incarnation = head.incarnation
    if kept is not None:
        start, incarnation = kept[0], kept[1] or incarnation
    else:
        start = begin_of(stream, args, head.message_count, "-1" if cursor else "now")
        if start == Bookmark("now"):
            start = Bookmark(head.next_offset)
            if cursor is not None:
                cursor.save(start, incarnation)
    given = args.start is not None or kept is not None
    messages = from_first(stream, start, console, live=True, incarnation=incarnation, given=given)
    for message in messages:
        output.write(message)
        console.flush()
        if cursor is not None:
            cursor.save(message.after, incarnation)


COMMAND = Command("tail", "follow a stream", _add_arguments, _run)

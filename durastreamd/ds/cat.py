"""``ds cat``: what is in a stream, from a place to a place."""

import argparse
from collections import deque
from collections.abc import Iterator

from durastreamd.client import (
    AnswerError,
    Bookmark,
    DurableStream,
    ServerRefusedError,
    StreamMessage,
)
from durastreamd.ds.manage import place
from durastreamd.ds.output import MessageOutput
from durastreamd.ds.server import add_stream, connect
from durastreamd.kit.command import Command, CommandError
from durastreamd.kit.console import Console
from durastreamd.kit.status import OK, USAGE


def add_start(parser: argparse.ArgumentParser, default: str) -> None:
    """Add where reading begins."""
    start = parser.add_mutually_exclusive_group()
    start.add_argument(
        "--from", dest="start", metavar="OFFSET", help=f"or -1, now, a kept place ({default})"
    )
    start.add_argument("--since", metavar="TIME", help="what was appended from then on")
    start.add_argument("-n", "--last", metavar="NUMBER", type=int, help="so many messages")
    parser.add_argument("--ndjson", action="store_true", help="each message as JSON, on a line")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_stream(parser)
    add_start(parser, "all there is")
    end = parser.add_mutually_exclusive_group()
    end.add_argument("--to", metavar="OFFSET", help="where to end")
    end.add_argument("--until", metavar="TIME", help="what was appended before then")


def _run(args: argparse.Namespace, console: Console) -> int:
    with connect(args) as stream:
        head = stream.head()
        output = MessageOutput(console, head.content_type, ndjson=args.ndjson)
        end = args.to or ""
        if args.until is not None:
            end = stream.find("at", args.until).offset
        if args.last is not None and head.message_count is None:
            for message in deque(stream.messages(end=end), maxlen=args.last):
                output.write(message)
            return OK
        start = begin_of(stream, args, head.message_count, "-1")
        if end and str(start) == end:
            return OK
        for message in from_first(stream, start, console, end=end, given=args.start is not None):
            output.write(message)
    return OK


def begin_of(
    stream: DurableStream, args: argparse.Namespace, count: int | None, default: str
) -> Bookmark:
    """Return where the arguments ask to begin."""
    if args.since is not None:
        return Bookmark(stream.find("at", args.since).offset)
    if args.last is not None:
        if args.last < 0:
            raise CommandError(USAGE, f"-n takes a number of messages, not {args.last}")
        if count is None:
            text = "this server does not count messages; use --from with an offset"
            raise AnswerError(text)
        return Bookmark(stream.find("at-message", max(count - args.last, 0)).offset)
    return place(args.start or default)


def from_first(
    stream: DurableStream,
    start: Bookmark,
    console: Console,
    *,
    end: str = "",
    live: bool = False,
    incarnation: str = "",
    given: bool = False,
) -> Iterator[StreamMessage]:
    """Yield messages; what is no longer kept is passed over with a word, unless asked for."""
    try:
        yield from stream.messages(start, end=end, live=live, incarnation=incarnation)
        return
    except ServerRefusedError as exc:
        first = exc.headers.get("stream-next-offset", "")
        if exc.status != 410 or not first or given or start != Bookmark("-1"):
            raise
        console.note(f"what lies before {first} is no longer kept; ds snapshot shows what it was")
    yield from stream.messages(first, end=end, live=live, incarnation=incarnation)


COMMAND = Command("cat", "print what is in a stream", _add_arguments, _run)

"""``dsadmin decode-offset``: what a client's token means, here or in a stream."""

import argparse

from durastreamd.admin.look.streams import before_floor, position_of
from durastreamd.admin.place import opened
from durastreamd.engine.view import View
from durastreamd.kit import show
from durastreamd.kit.command import Command, CommandError
from durastreamd.kit.console import Console
from durastreamd.kit.status import NO_INPUT, OK, USAGE
from durastreamd.model.stream_state import Stream
from durastreamd.offline.names import find_stream
from durastreamd.offline.opening import Opened
from durastreamd.protocol import offsets
from durastreamd.storage import format as fmt, log


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("offset", metavar="OFFSET", help="sixteen digits, -1 or now")
    parser.add_argument("stream", nargs="?", metavar="STREAM", help="say what lies there")


def _run(args: argparse.Namespace, console: Console) -> int:
    if args.stream is None:
        _write(_alone(args.offset), console)
        return OK
    with opened(args, console) as found:
        stream = find_stream(found.namespace, args.stream)
        position = position_of(args.offset, stream)
        members = _in_stream(found, stream, position)
    _write(members, console)
    return NO_INPUT if members["place"] == "past the tail" else OK


def _alone(token: str) -> dict[str, object]:
    if token == offsets.NOW:
        return {"offset": token, "place": "the tail at the time of asking"}
    if token == offsets.START:
        return {"offset": token, "position": 0, "place": "the start"}
    position = offsets.parse(token)
    if position is None and token.isascii() and token.isdigit() and len(token) <= offsets.DIGITS:
        position = offsets.Position(int(token))
    if position is None:
        text = f"{token} is not an offset: sixteen digits, -1 for the start, or now for the end"
        raise CommandError(USAGE, text)
    return {"offset": offsets.mint(position), "position": position}


def _in_stream(found: Opened, stream: Stream, position: int) -> dict[str, object]:
    members: dict[str, object] = {
        "offset": offsets.mint(position),
        "position": position,
        "stream": stream.key,
        "place": _place(stream, position),
    }
    if not stream.floor <= position < stream.tail:
        return members
    view = found.engine.view(stream)
    members["boundary"] = view.is_boundary(position)
    members["messages_before"] = view.ordinal_at(position)
    members.update(_record(view, position))
    members.update(_file(found, stream, position))
    return members


def _place(stream: Stream, position: int) -> str:
    if position > stream.tail:
        return "past the tail"
    if position == stream.tail:
        return "the tail"
    if position < stream.floor:
        return before_floor(stream)
    return "the start" if position == stream.floor else "within"


def _record(view: View, position: int) -> dict[str, object]:
    span = view.span_at(position)
    assert span is not None, "below the tail every byte has a record"
    return {
        "record": offsets.mint(span.start),
        "record_bytes": span.size,
        "written": show.moment(span.time_ms),
    }


def _file(found: Opened, stream: Stream, position: int) -> dict[str, object]:
    """Say which file holds a position, following forks to the stream that wrote it."""
    owner = stream
    while owner.source and position < owner.fork_position:
        owner = found.namespace.by_id[owner.source]
    stored = found.stored.get(owner.id)
    if stored is None or position >= stored.flushed:
        return {"file": fmt.JOURNAL_DIR}  # no checkpoint has covered it yet
    bases = log.bases(found.engine.disk, owner.id, stored.base)
    base = max(base for base in bases if base <= position)
    return {"file": fmt.segment_path(owner.id, base), "file_position": position - base}


def _write(members: dict[str, object], console: Console) -> None:
    if console.as_json:
        console.record(members)
        return
    width = max(map(len, members))
    for key, value in members.items():
        text = {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
        console.line(f"{key.replace('_', ' ').ljust(width)}  {show.name(text)}")


COMMAND = Command("decode-offset", "say what an offset stands for", _add_arguments, _run)

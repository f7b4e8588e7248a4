"""``dsadmin cat``: the bytes a client would get."""

import argparse
import base64
from collections.abc import Iterator

from durastreamd.admin.look.streams import before_floor, position_of, state_of
from durastreamd.admin.place import opened, options_of
from durastreamd.engine.view import View, blob_of
from durastreamd.errors import CorruptDataError
from durastreamd.kit.command import Command, CommandError
from durastreamd.kit.console import Console
from durastreamd.kit.status import NO_INPUT, OK, USAGE
from durastreamd.model.stream_state import Stream
from durastreamd.offline.names import find_stream
from durastreamd.offline.opening import Opened, look
from durastreamd.protocol import json_mode, offsets
from durastreamd.protocol.json_writing import json_line
from durastreamd.protocol.sse import needs_base64

PIECE_BYTES = 1024 * 1024

_SEEN = {
    "expired": "the stream has expired: a client is told that it does not exist",
    "gone": "the stream is deleted and kept for its forks: a client is told that it is gone",
}


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("stream", metavar="STREAM", help="name, URL or id")
    parser.add_argument("--from", dest="start", metavar="OFFSET", help="first offset (the start)")
    parser.add_argument("--to", dest="stop", metavar="OFFSET", help="where to stop (the end)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--lines", action="store_true", help="JSON messages one to a line")
    form.add_argument("--snapshot", action="store_true", help="the latest snapshot instead")


def _run(args: argparse.Namespace, console: Console) -> int:
    with opened(args, console) as found:
        stream = find_stream(found.namespace, args.stream)
        note = _SEEN.get(state_of(stream, found.now_ms))
        if note:
            console.note(note)
        if args.snapshot:
            _write_snapshot(found, stream, console)
            return OK
        if args.lines and not stream.json:
            text = f"--lines is for JSON streams; this one is {stream.content_type}"
            raise CommandError(USAGE, text)
        view = found.engine.view(stream)
        start, stop = _range(view, stream, args, console)
        source = _Source(found, stream, view, args, console)
        if console.as_json:
            _write_messages(view, stream, (start, stop), console)
        elif args.lines:
            _write_lines(source.pieces(start, stop), console)
        elif stream.json:
            _write_array(source.pieces(start, stop), console)
        else:
            for piece in source.pieces(start, stop):
                console.raw(piece)
    return OK


# --- where ---


def _range(
    view: View, stream: Stream, args: argparse.Namespace, console: Console
) -> tuple[int, int]:
    """Return what to write; places where no message begins are refused, as the server does."""
    start = stream.floor if args.start is None else position_of(args.start, stream)
    if start < stream.floor:
        first = offsets.mint(stream.floor)
        text = f"{before_floor(stream)}; the first offset is {first}"
        raise CommandError(NO_INPUT, text)
    if args.start is None and (stream.snapshot is not None or stream.floor):
        console.note(f"from {offsets.mint(stream.floor)} on: {before_floor(stream)}")
    start = min(start, stream.tail)
    stop = stream.tail if args.stop is None else min(position_of(args.stop, stream), stream.tail)
    for place in (start, stop):
        if stream.floor < place < stream.tail and not view.is_boundary(place):
            text = f"offset {offsets.mint(place)} lies inside a message"
            raise CommandError(NO_INPUT, text)
    return start, max(start, stop)


class _Source:
    """Reads a stream piece by piece, and finds its files again when a daemon moved them."""

    def __init__(
        self,
        found: Opened,
        stream: Stream,
        view: View,
        args: argparse.Namespace,
        console: Console,
    ) -> None:
        self._found = found
        self._stream = stream
        self._view = view
        self._args = args
        self._console = console
        self._again: Opened | None = None

    def pieces(self, start: int, stop: int) -> Iterator[bytes]:
        """Yield the bytes from ``start`` to ``stop``."""
        failed_at = -1
        try:
            while start < stop:
                end = min(start + PIECE_BYTES, stop)
                try:
                    piece = self._view.read(start, end)
                except CorruptDataError:
                    if not self._found.running or failed_at == start:
                        raise
                    failed_at = start
                    self._look_again(start)
                    continue
                yield piece
                start = end
        finally:
            if self._again is not None:
                self._again.release()

    def _look_again(self, position: int) -> None:
        """A checkpoint may have moved or removed a file since we looked."""
        if self._again is not None:
            self._again.release()
        found = self._again = look(self._found.disk, options_of(self._args), self._console.note)
        stream = found.namespace.by_id.get(self._stream.id)
        if stream is None or position < stream.floor:
            text = f"the stream was deleted or cut short at {offsets.mint(position)} while read"
            raise CommandError(NO_INPUT, text)
        self._view = found.engine.view(stream)


# --- how ---


def _write_array(pieces: Iterator[bytes], console: Console) -> None:
    """Write JSON messages as the one array a client would get in all."""
    console.raw(b"[")
    held = b""  # what may be the last separator: the bracket takes its place
    cut = len(json_mode.SEPARATOR)
    for piece in pieces:
        whole = held + piece
        console.raw(whole[:-cut])
        held = whole[-cut:]
    console.raw(b"]")


def _write_lines(pieces: Iterator[bytes], console: Console) -> None:
    held = b""
    for piece in pieces:
        lines, held = json_mode.lines(held, piece)
        console.raw(lines)
    console.raw(held)


def _write_messages(view: View, stream: Stream, extent: tuple[int, int], console: Console) -> None:
    """Write each message as a JSON object of its own, with its offsets."""
    start, stop = extent
    for low, high in view.messages(start):
        if high > stop:
            return
        data = view.read(low, high)
        members: dict[str, object] = {
            "offset": offsets.mint(low),
            "next_offset": offsets.mint(high),
        }
        if stream.json:
            # Not read and written anew: a number of thirty digits stays what it is.
            body = data.removesuffix(json_mode.SEPARATOR).decode()
            console.line(f'{json_line(members)[:-1]}, "json": {body}}}')
            continue
        if needs_base64(stream.content_type):
            members["base64"] = base64.b64encode(data).decode()
        else:
            members["text"] = data.decode("utf-8", "replace")
        console.record(members)


def _write_snapshot(found: Opened, stream: Stream, console: Console) -> None:
    blob = stream.snapshot
    if blob is None:
        raise CommandError(NO_INPUT, f"{stream.key} has no snapshot")
    file = blob_of(blob)
    proofs = found.engine.proofs
    proofs.prove(file, 0, blob.size)  # nothing is written of one that does not verify
    for at in range(0, blob.size, PIECE_BYTES):
        console.raw(proofs.read(file, at, min(at + PIECE_BYTES, blob.size)))


COMMAND = Command("cat", "write a stream as a client would get it", _add_arguments, _run)

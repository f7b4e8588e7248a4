"""``dsadmin dump``: one line for each frame on disk, whole or not."""

import argparse
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from durastreamd.admin.look.diagnostic import diagnostic
from durastreamd.admin.look.frames import OK as GOOD, TORN, Found
from durastreamd.admin.look.sources import Directory, file_frames
from durastreamd.admin.place import disk_of, root_of
from durastreamd.kit.command import Command, CommandError
from durastreamd.kit.console import Console
from durastreamd.kit.status import CORRUPT, OK, USAGE
from durastreamd.protocol.json_writing import json_body

FORMATS = ("text", "json", "hex", "cbor")
_HEX_COLUMNS = 16


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", nargs="?", metavar="STREAM|FILE", help="a stream or a file (the whole journal)"
    )
    parser.add_argument("--format", choices=FORMATS, default="text", help="how to write a frame")
    parser.add_argument("--from", dest="start", type=int, metavar="N", help="first, see --to")
    parser.add_argument(
        "--to",
        dest="stop",
        type=int,
        metavar="N",
        help="end: an offset of a stream, a position in a file, an lsn of the journal",
    )
    parser.add_argument("--limit", type=int, metavar="COUNT", help="at most so many lines")


def _run(args: argparse.Namespace, console: Console) -> int:
    if args.limit is not None and args.limit < 0:
        raise CommandError(USAGE, "--limit is a number of lines")
    found, place = _source(args, console)
    form = "json" if console.as_json else args.format
    damaged = False
    for one in islice(found, args.limit):
        damaged = damaged or one.verdict not in (GOOD, TORN)
        _write(one, form, place, console)
    return CORRUPT if damaged else OK


def _source(args: argparse.Namespace, console: Console) -> tuple[Iterator[Found], Path]:
    """Return what to write, within the range asked for, and where its files are."""
    directory = None
    if args.data_dir is not None or args.config is not None:
        directory = Directory(disk_of(args), root_of(args))
        if directory.running:
            console.note("a daemon is running here; the last frames may be on their way")
    file = _file(args.what, directory)
    if file is not None:
        path, shown = file
        chosen = _within(file_frames(path, shown, directory), args, by_position=True)
        return chosen, path.parent
    if directory is None:
        root_of(args)  # says what is missing
        raise AssertionError
    if args.what is None:
        return _within(directory.journal(), args, by_position=False), directory.root
    entries = directory.stream(directory.find(args.what))
    return _within(entries, args, by_position=False), directory.root


def _file(what: str | None, directory: Directory | None) -> tuple[Path, str] | None:
    """Return the file that was named, below the data directory or anywhere, and its short name."""
    if what is None:
        return None
    if directory is not None and (directory.root / what).is_file():
        return directory.root / what, what
    return (Path(what), what) if Path(what).is_file() else None


def _within(
    found: Iterable[Found], args: argparse.Namespace, *, by_position: bool
) -> Iterator[Found]:
    if args.start is None and args.stop is None:
        yield from found
        return
    low = args.start or 0
    at = low
    for one in found:
        if by_position:
            at = one.position
        elif one.order or one.kind != "bytes":
            at = one.order  # bytes that are no frame count as what stands before them
        if args.stop is not None and at >= args.stop:
            if by_position:
                return
            continue
        if at >= low:
            yield one


# --- writing ---


def _write(one: Found, form: str, root: Path, console: Console) -> None:
    if form == "json":
        console.record(_members(one))
        return
    line = _line(one)
    if form == "cbor" and one.header:
        line += f"  {diagnostic(one.header)}"
    console.line(line)
    if form == "hex":
        for text in _hex_lines(root / _relative(one.path, root), one):
            console.line(text)


def _relative(path: str, root: Path) -> str:
    return path if (root / path).is_file() else Path(path).name


def _members(one: Found) -> dict[str, object]:
    members: dict[str, object] = {
        "file": one.path,
        "position": one.position,
        "bytes": one.end - one.position,
        "kind": one.kind,
    }
    members |= {key: value for key, value in one.fields.items() if value is not None}
    members["verdict"] = one.verdict
    if one.detail:
        members["detail"] = one.detail
    return members


def _line(one: Found) -> str:
    words = [f"{one.path}:{one.position}:", one.kind]
    words += [f"{k}={_value(k, v)}" for k, v in one.fields.items() if v is not None]
    words.append(f"{one.verdict}: {one.detail}" if one.detail else one.verdict)
    return " ".join(words)


def _value(key: str, value: object) -> str:
    if key == "producers" and isinstance(value, list):
        return ",".join("/".join(_word(str(part)) for part in producer) for producer in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ",".join(str(part).replace(" ", ":") for part in value)
    return _word(str(value))


def _word(text: str) -> str:
    """Return a client's string as one word: in quotes if it would be several."""
    plain = text.isprintable() and not any(c in text for c in ' "')
    return text if plain and text else json_body(text).decode()


def _hex_lines(path: Path, one: Found) -> Iterator[str]:
    """Yield the bytes of a frame as they are in its file."""
    with path.open("rb") as file:
        file.seek(one.position)
        at = one.position
        while at < one.end:
            row = file.read(min(_HEX_COLUMNS, one.end - at))
            if not row:
                return
            text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
            yield f"  {at:08x}  {row.hex(' '):<47}  |{text}|"
            at += len(row)


COMMAND = Command("dump", "write one line for each frame on disk", _add_arguments, _run)

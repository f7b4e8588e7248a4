"""Messages from arguments, files and standard input, one after the other.

``None`` among them says that nothing more is there for now: time to send what is.
"""

import io
import os
import select
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

PIECE_BYTES = 256 * 1024
IDLE_S = 0.05  # nothing came for so long: what is there is sent
LINE_BYTES_MAX = 64 * 1024 * 1024  # what a server takes as one message; longer is no line


def lines(file: BinaryIO) -> Iterator[bytes | None]:
    """Yield the lines of a file with their ends, and None where it has nothing for now."""
    held: list[bytes] = []
    size = 0
    for piece in _pieces(file):
        if piece is None:
            yield None
            continue
        first, *rest = piece.split(b"\n")
        held.append(first)
        size += len(first)
        if size > LINE_BYTES_MAX:
            message = f"a line is longer than {LINE_BYTES_MAX} bytes; --whole takes a file as it is"
            raise ValueError(message)
        if rest:
            yield b"".join(held) + b"\n"
            for line in rest[:-1]:
                yield line + b"\n"
            held, size = [rest[-1]], len(rest[-1])
    if left := b"".join(held):
        yield left + b"\n"  # as if it were ended: the next message begins a line


def _pieces(file: BinaryIO) -> Iterator[bytes | None]:
    try:
        number = file.fileno()
    except (OSError, io.UnsupportedOperation):
        yield file.read()
        return
    told = True
    while True:
        if not told and not select.select([number], [], [], IDLE_S)[0]:
            told = True
            yield None
        piece = os.read(number, PIECE_BYTES)
        if not piece:
            return
        told = False
        yield piece


def messages(
    arguments: list[str], files: list[str], stdin: BinaryIO, *, whole: bool
) -> Iterator[bytes | None]:
    """Yield what is to be appended; an argument is a message, a line of a file another."""
    for text in arguments:
        yield os.fsencode(text) + b"\n"
    for name in files or ([] if arguments else ["-"]):
        if name == "-":
            yield from _of(stdin, whole=whole)
        else:
            with Path(name).open("rb", buffering=0) as file:
                yield from _of(file, whole=whole)


def _of(file: BinaryIO, *, whole: bool) -> Iterator[bytes | None]:
    if whole:
        yield file.read()
    else:
        yield from lines(file)

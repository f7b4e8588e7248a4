"""JSON streams: a body becomes messages, messages become wire bytes, and back.

Each message is stored as its own bytes followed by ``,\\n``. A valid JSON text has line ends only
as insignificant white space, so those inside a message become spaces on the way in and ``,\\n``
is an unambiguous separator: a position is on a message boundary exactly when the two bytes before
it are ``,\\n``, and a page of messages is ``[`` + a byte range less its last two bytes + ``]``.

Nothing is re-serialised: numbers of thirty digits, 1e400 and duplicate keys come back as sent.

A body costs memory in proportion to its bytes, whatever they are: itself, its wire form (at most
one and a half times as long), and a piece of it (``json_text``) taken apart.
"""

import mmap

import msgspec

from durastreamd.protocol import Data
from durastreamd.protocol.json_text import (
    ARRAY,
    DEPTH_MAX,
    LINE_ENDS,
    PIECE_BYTES,
    SEPARATOR,
    VALUE,
    WHITE,
    InvalidJsonError,
    LongText,
    TooManyMessagesError,
    check_utf8,
    follow,
    invalid,
    joined,
)

__all__ = [
    "DEPTH_MAX",
    "SEPARATOR",
    "InvalidJsonError",
    "TooManyMessagesError",
    "lines",
    "page",
    "split",
]

# No number of messages that a body of any length could have.
_ANY_NUMBER = 2**63


def split(
    body: Data, messages_max: int = _ANY_NUMBER, *, piece_bytes: int = PIECE_BYTES
) -> tuple[Data, int]:
    """Return the wire bytes of a body's messages and their number; one array level is flattened.

    A number of 0 is an empty array: whether that is allowed is the caller's question. May take
    long where the body is longer than a piece, but never long at once.
    """
    if len(body) > piece_bytes:
        return _split_long(body, messages_max, piece_bytes)
    body = bytes(body)
    if not body.isascii():
        check_utf8(body)
    # Whatever nests deeper has more openers than this, and is at least twice as long.
    if len(body) > 2 * DEPTH_MAX and body.count(b"[") + body.count(b"{") > DEPTH_MAX:
        follow(body, bytearray())
    try:
        if body[:1] == b"[" or (body[:1].isspace() and body.lstrip(WHITE)[:1] == b"["):
            raws = ARRAY.decode(body)
        else:
            VALUE.decode(body)
            return _one_message(body.strip(WHITE)), 1
    except (msgspec.DecodeError, RecursionError) as exc:
        raise invalid(exc) from exc
    if len(raws) > messages_max:
        raise TooManyMessagesError(messages_max)
    return (joined(raws) + SEPARATOR if raws else b""), len(raws)


def _one_message(text: bytes) -> bytes:
    if b"\n" in text or b"\r" in text:
        text = text.translate(LINE_ENDS)
    return text + SEPARATOR


def _split_long(body: Data, messages_max: int, piece_bytes: int) -> tuple[Data, int]:
    check_utf8(body, piece_bytes)
    text = LongText(body, messages_max, piece_bytes)
    # Every message but the last grows by a line end, and was two bytes long with its comma. What
    # is not needed of this memory is never touched, so it costs nothing.
    length = len(body) + min(messages_max, len(body) // 2) + len(SEPARATOR)
    memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    size = 0
    for piece in text.wire():
        memory[size : size + len(piece)] = piece
        size += len(piece)
    if not text.count:
        return b"", 0
    memory[size : size + len(SEPARATOR)] = SEPARATOR
    return memoryview(memory)[: size + len(SEPARATOR)].toreadonly(), text.count


def page(wire: bytes) -> bytes:
    """Return the JSON array of a range of whole messages."""
    return b"[" + wire[: -len(SEPARATOR)] + b"]" if wire else b"[]"


def lines(held: bytes, piece: bytes) -> tuple[bytes, bytes]:
    """Return a piece of wire bytes with a message to a line, and what waits for the next piece.

    A separator may lie across two pieces; its comma waits.
    """
    whole = held + piece
    held = b"," if whole.endswith(b",") else b""
    return whole.removesuffix(held).replace(SEPARATOR, b"\n"), held

"""From the bytes of answers to messages.

Three forms of a page: JSON one message to a line, any other messages each after its length, and
what a server of the base protocol sends, an array or plain bytes. Each is taken apart as it comes,
by something that is fed pieces, so that the blocking and the asynchronous half share it.
"""

import json
import re
from collections.abc import Iterator
from typing import Protocol

from durastreamd.client.errors import AnswerError, CutShortError
from durastreamd.protocol.content_type import is_json, media_type

LINES = "application/x-ndjson"
FRAMED = "application/vnd.durastream.messages"
ACCEPT = f"{LINES}, {FRAMED}, */*;q=0.1"

MESSAGE_BYTES_MAX = 1024 * 1024 * 1024  # of one message, as it is told before its bytes

_GAP = re.compile(r"[ \t\r\n]*")


class Splitter(Protocol):
    """Takes a body apart."""

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the messages that are complete with these bytes."""
        ...

    def end(self) -> list[bytes]:
        """Return what is left at the end of the body; raise if that is no whole message."""
        ...


class LineSplitter:
    """JSON, one message to a line."""

    def __init__(self) -> None:
        self._held: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the lines that ended."""
        first, *rest = piece.split(b"\n")
        self._held.append(first)
        if not rest:
            return []
        found = [b"".join(self._held), *rest[:-1]]
        self._held = [rest[-1]]
        return found

    def end(self) -> list[bytes]:
        """Return a last line that is not ended."""
        left = b"".join(self._held)
        self._held = []
        return [left] if left else []


class FrameSplitter:
    """Messages of any kind, each after its length in four bytes, big-endian."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the messages that are there."""
        held = self._held
        held += piece
        at, found = 0, []
        while at + 4 <= len(held):
            size = int.from_bytes(held[at : at + 4], "big")
            if size > MESSAGE_BYTES_MAX:
                message = f"a message of {size} bytes is announced, more than can be held"
                raise AnswerError(message)
            if at + 4 + size > len(held):
                break
            found.append(bytes(held[at + 4 : at + 4 + size]))
            at += 4 + size
        del held[:at]
        return found

    def end(self) -> list[bytes]:
        """Raise if a message is not complete."""
        if self._held:
            message = f"an answer ends {len(self._held)} bytes into a message"
            raise CutShortError(message)
        return []


class ArraySplitter:
    """A JSON array, as every server has it."""

    def __init__(self) -> None:
        self._held: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """Keep it: an array is taken apart when it is whole."""
        self._held.append(piece)
        return []

    def end(self) -> list[bytes]:
        """Return the elements."""
        body = b"".join(self._held)
        self._held = []
        return elements(body) if body.strip() else []


class WholeSplitter:
    """Bytes whose ends nobody tells: a page is one message."""

    def __init__(self) -> None:
        self._held: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """Keep it until the page ends."""
        self._held.append(piece)
        return []

    def end(self) -> list[bytes]:
        """Return the page, unless it is empty."""
        body = b"".join(self._held)
        self._held = []
        return [body] if body else []


def splitter(content_type: str) -> Splitter:
    """Return what takes apart an answer of this content type."""
    kind = media_type(content_type)
    if kind == LINES:
        return LineSplitter()
    if kind == FRAMED:
        return FrameSplitter()
    return ArraySplitter() if is_json(content_type) else WholeSplitter()


def elements(body: bytes) -> list[bytes]:
    """Return the values of a JSON array, each as it was written."""
    try:
        text = body.decode()
        return [text[begin:end].encode() for begin, end in _places(text)]
    except (ValueError, RecursionError) as exc:
        message = f"the answer of a JSON stream is not JSON: {exc}"
        raise AnswerError(message) from exc


def _places(text: str) -> Iterator[tuple[int, int]]:
    scan = json.JSONDecoder().raw_decode
    at = _past_gap(text, 0)
    if text[at : at + 1] != "[":
        message = "it is not an array"
        raise ValueError(message)
    at = _past_gap(text, at + 1)
    more = text[at : at + 1] != "]"
    while more:
        _, end = scan(text, at)
        yield at, end
        at = _past_gap(text, end)
        more = text[at : at + 1] == ","
        if more:
            at = _past_gap(text, at + 1)
        elif text[at : at + 1] != "]":
            message = f"there is neither comma nor end at character {at}"
            raise ValueError(message)
    if text[at + 1 :].strip():
        message = f"something follows the array at character {at + 1}"
        raise ValueError(message)


def _past_gap(text: str, at: int) -> int:
    found = _GAP.match(text, at)
    return found.end() if found else at

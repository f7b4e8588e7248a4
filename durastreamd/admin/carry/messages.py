"""Messages from a file: one per line, or the bytes of a whole stream.

What comes out are batches in wire form, small ones, with the time each is to have; a file of any
size passes through a few megabytes of memory. A line that cannot be a message of the stream is
refused with its number.
"""

import base64
import binascii
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

import msgspec

from durastreamd.admin.carry.items import Source
from durastreamd.kit.command import CommandError
from durastreamd.kit.status import CORRUPT
from durastreamd.protocol.content_type import is_json, media_type
from durastreamd.protocol.json_mode import SEPARATOR, InvalidJsonError, split

BATCH_BYTES_MAX = 1024 * 1024
BATCH_MESSAGES_MAX = 1000
# The largest message taken from a file: what is larger no server would have taken, either.
MESSAGE_BYTES_MAX = 64 * 1024 * 1024
# A stream of bytes has no messages a client could tell; it is stored in pieces of this size.
PIECE_BYTES = 1024 * 1024


class Arrived(NamedTuple):
    """A batch: its wire bytes, its messages (lengths, or None and their number), its time or -1."""

    data: bytes
    message_count: int
    lengths: list[int] | None
    time_ms: int = -1


class Envelope(msgspec.Struct):
    """A line as ``export --envelope`` writes it; what a message is does not depend on the rest."""

    value: msgspec.Raw = msgspec.Raw(b"")
    text: str | None = None
    base64: str | None = None
    time: int = -1
    stream: str = ""


_ENVELOPE = msgspec.json.Decoder(Envelope)
_STRING = msgspec.json.Decoder(str)


class LineReader:
    """Reads NDJSON into batches for a stream of one type."""

    def __init__(self, source: Source, name: str, content_type: str, *, envelope: bool) -> None:
        self._source = source
        self._name = name
        self._json = is_json(content_type)
        self._text = media_type(content_type).startswith("text/")
        self._envelope = envelope
        self._stream = ""
        self.line = 0

    def batches(self) -> Iterator[Arrived]:
        """Yield the messages in batches; a change of time ends one."""
        held: list[bytes] = []
        numbers: list[int] = []
        size, time_ms = 0, -1
        for message, at_ms in self._messages():
            full = size + len(message) > BATCH_BYTES_MAX or len(held) == BATCH_MESSAGES_MAX
            if held and (full or at_ms != time_ms):
                yield self._batch(held, numbers, time_ms)
                held, numbers, size = [], [], 0
            time_ms = at_ms
            held.append(message)
            numbers.append(self.line)
            size += len(message)
        if held:
            yield self._batch(held, numbers, time_ms)

    def _messages(self) -> Iterator[tuple[bytes, int]]:
        while raw := self._source.readline(MESSAGE_BYTES_MAX + 1):
            self.line += 1
            if len(raw) > MESSAGE_BYTES_MAX:
                self._refuse(f"it is longer than {MESSAGE_BYTES_MAX} bytes")
            line = raw.strip(b" \t\r\n")
            if not line:
                continue
            if self._envelope:
                yield self._opened(line)
            else:
                yield self._message(line), -1

    def _refuse(self, reason: str, line: int = 0) -> NoReturn:
        at = line or self.line
        raise CommandError(CORRUPT, f"{self._name}: line {at}: {reason}; nothing was imported")

    def _opened(self, line: bytes) -> tuple[bytes, int]:
        try:
            found = _ENVELOPE.decode(line)
        except msgspec.MsgspecError as exc:
            self._refuse(f"it is no envelope ({exc})")
        if found.stream and self._stream not in ("", found.stream):
            self._refuse(f"it is of {found.stream}, those before of {self._stream}: one at a time")
        self._stream = self._stream or found.stream
        if self._json:
            if not bytes(found.value):
                self._refuse('a message of a JSON stream is in "value"')
            return bytes(found.value), found.time
        if found.text is not None:
            return self._some(found.text.encode()), found.time
        if found.base64 is not None:
            return self._decoded(found.base64), found.time
        return self._refuse('its message should be in "text" or "base64"')

    def _message(self, line: bytes) -> bytes:
        if self._json:
            return line
        try:
            text = _STRING.decode(line)
        except msgspec.MsgspecError as exc:
            what = "text" if self._text else "base64"
            self._refuse(f"a message of this stream is a JSON string of {what} ({exc})")
        return self._some(text.encode()) if self._text else self._decoded(text)

    def _decoded(self, text: str) -> bytes:
        try:
            return self._some(base64.b64decode(text, validate=True))
        except binascii.Error as exc:
            self._refuse(f"it is not base64 ({exc})")

    def _some(self, data: bytes) -> bytes:
        if not data:
            self._refuse("a message has at least one byte")
        return data

    def _batch(self, held: list[bytes], numbers: list[int], time_ms: int) -> Arrived:
        if not self._json:
            return Arrived(b"".join(held), len(held), [len(part) for part in held], time_ms)
        try:
            # Around all of them, an array: each line is one message, also if it is an array itself.
            wire, count = split(b"[" + b",".join(held) + b"]")
        except InvalidJsonError:
            wire, count = b"", -1
        if count != len(held):
            self._blame(held, numbers)
        return Arrived(bytes(wire), count, None, time_ms)

    def _blame(self, held: list[bytes], numbers: list[int]) -> NoReturn:
        """Refuse the first line that is not one JSON text."""
        for number, line in zip(numbers, held, strict=True):
            try:
                _, count = split(b"[" + line + b"]")
            except InvalidJsonError as exc:
                self._refuse(str(exc).replace("the body", "it"), number)
            if count != 1:
                self._refuse(f"it holds {count} JSON texts, not one", number)
        self._refuse("it is not valid JSON", numbers[0])


def raw_batches(source: Source, name: str, content_type: str) -> Iterator[Arrived]:
    """Yield the bytes of a whole stream in batches; JSON is one array, as a client gets it."""
    if is_json(content_type):
        yield from _array_batches(source, name)
        return
    is_text = media_type(content_type).startswith("text/")
    held = b""
    while data := source.read(PIECE_BYTES - len(held)):
        held += data
        if len(held) < PIECE_BYTES:
            continue
        cut = _whole_characters(held) if is_text else len(held)
        yield Arrived(held[:cut], 1, [cut])
        held = held[cut:]
    if held:
        yield Arrived(held, 1, [len(held)])


def _whole_characters(data: bytes) -> int:
    """Return where to cut UTF-8 so that no character is in two pieces."""
    for back in range(1, 5):
        byte = data[-back]
        if byte & 0xC0 != 0x80:
            needs = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) if needs <= back else len(data) - back
    return len(data)  # not UTF-8 at all


def _array_batches(source: Source, name: str) -> Iterator[Arrived]:
    """Cut a JSON array at line ends where what came before is a run of whole messages.

    Our own exports have one message per line. Of other files lines are gathered until they parse,
    tried ever more rarely, so that a long message does not take the square of its length.
    """
    held = _opening(source, name)
    tried = 0
    while line := source.readline(MESSAGE_BYTES_MAX):
        held += line
        if len(held) > MESSAGE_BYTES_MAX:
            raise _no_array(name, f"a message is longer than {MESSAGE_BYTES_MAX} bytes")
        if len(held) < max(BATCH_BYTES_MAX, tried + tried // 64):
            continue
        body, comma, rest = held.rpartition(SEPARATOR)
        found = _messages_of(body) if comma else None
        tried = len(held)
        if found is not None:
            yield found
            held, tried = rest, 0
    body = held.rstrip(b" \t\r\n")
    if not body.endswith(b"]"):
        raise _no_array(name, "it does not end with ]")
    if body.strip(b" \t\r\n]"):
        found = _messages_of(body[:-1])
        if found is None:
            raise _no_array(name, "it is not valid JSON")
        yield found


def _opening(source: Source, name: str) -> bytes:
    """Return the first line after its bracket."""
    held = b""
    while not held and (line := source.readline(MESSAGE_BYTES_MAX)):
        held = line.lstrip(b" \t\r\n")
    if not held.startswith(b"["):
        raise _no_array(name, "it does not begin with [")
    return held[1:]


def _messages_of(body: bytes) -> Arrived | None:
    try:
        wire, count = split(b"[" + body + b"]")
    except InvalidJsonError:
        return None
    return Arrived(bytes(wire), count, None)


def _no_array(name: str, reason: str) -> CommandError:
    text = (
        f"{name}: {reason}; --format raw takes a JSON stream as one array, as `export` writes it; "
        "nothing was imported"
    )
    return CommandError(CORRUPT, text)

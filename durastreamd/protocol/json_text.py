"""A JSON text, judged a piece at a time: bounded memory, and no call of C that takes long.

``msgspec`` judges a text as a whole, in one call that holds the interpreter: 64 MiB take it 65 ms,
and as a list of elements several seconds and gigabytes. So a large body is cut into pieces, and
each becomes a small text of its own: before it stands what opens the arrays and objects the piece
lies in, after it what closes those it leaves open. ``[{"a":[1,2`` + ``,3]},{"b"`` + ``:4}]`` are
judged as ``[{"a":[1,20]}]``, ``[{"":[0,3]},{"b":0}]`` and ``[{"":4}]``. All of them are valid
exactly when the whole is, and the first level of each is the messages in it.

A cut stands behind a structural character or before a string, because there what may follow
depends on that character and the innermost bracket alone. A string or number longer than a piece
is judged by itself, slice by slice. Brackets are followed in one pass, by a stack of at most
``DEPTH_MAX``.
"""

import codecs
import re
from collections.abc import Iterator

import msgspec

from durastreamd.protocol import Data

SEPARATOR = b",\n"

# Deep enough for any document, shallow enough that no reader's parser gives up on it. msgspec
# itself stops at the interpreter's recursion limit, which is far above this.
DEPTH_MAX = 128

# A piece is judged within 10 ms, whatever it holds: 7 ms for nothing but ``0,``, 5 ms for ``[``.
PIECE_BYTES = 64 * 1024

WHITE = b" \t\r\n"
LINE_ENDS = bytes.maketrans(b"\r\n", b"  ")
ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
VALUE = msgspec.json.Decoder(msgspec.Raw)

_NOT_STRUCTURE = bytes(set(range(256)) - set(b'[]{}"'))
_LEFT, _BRACE, _QUOTE = b'[{"'
_STRUCTURE = (b",", b":", b"[", b"]", b"{", b"}")
# Inside a string, up to its end or to an escape that is not whole; two surrogates are one escape.
_CONTENT = re.compile(
    rb'(?:[^"\\]+|\\[^u]|\\u(?![dD][89abAB]).{4}|\\u[dD][89abAB].{2}\\u.{4})*', re.DOTALL
)
_SCALAR = re.compile(rb"[-+.0-9A-Za-z]*")
_SCALAR_BYTES_MAX = 64  # less digits that change nothing; a valid one has at most ten
_DIGITS = re.compile(rb"([0-9]{2})[0-9]+")
_BYTE = re.compile(r"\(byte ([0-9]+)\)")

# Where a text stands: at its start or its end, after a bracket, a comma, a colon, a value, a key.
_START, _END, _VALUE_ENDED, _KEY_ENDED, _LOST = b"s", b"e", b"v", b"k", b"?"
# What brings a text there within the innermost bracket, and what completes it from there.
_AROUND = {
    (_LEFT, b"["): (b"[", b"]"),
    (_LEFT, b","): (b"[0,", b"0]"),
    (_LEFT, _VALUE_ENDED): (b"[0", b"]"),
    (_BRACE, b"{"): (b"{", b"}"),
    (_BRACE, b","): (b'{"":0,', b'"":0}'),
    (_BRACE, b":"): (b'{"":', b"0}"),
    (_BRACE, _VALUE_ENDED): (b'{"":0', b"}"),
    (_BRACE, _KEY_ENDED): (b'{""', b":0}"),
}
_NOWHERE = (b"", b"")
# Of what was opened at the first level, how much of the messages is not the body's.
_OPENED = {b"[": 0, b",": len(b"0" + SEPARATOR), _VALUE_ENDED: len(b"0")}


class InvalidJsonError(ValueError):
    """The body is not one JSON text we accept; the message says why."""


class TooManyMessagesError(ValueError):
    """The body holds more messages than are taken at once."""

    def __init__(self, messages_max: int) -> None:
        super().__init__(f"the body holds more than {messages_max} messages")


def invalid(reason: object) -> InvalidJsonError:
    """Return the error of a body that is no JSON."""
    return InvalidJsonError(f"the body is not valid JSON: {reason}")


def check_utf8(body: Data, piece_bytes: int = PIECE_BYTES) -> None:
    """Refuse a body that is not UTF-8, which the decoder would let through."""
    at = 0
    try:
        while at < len(body):
            end = at + piece_bytes
            at += codecs.utf_8_decode(body[at:end], "strict", end >= len(body))[1]
    except UnicodeDecodeError as exc:
        place = at + exc.start
        reason = f"the body is not UTF-8: byte {place} is {body[place]:#04x}"
        raise InvalidJsonError(reason) from exc


def _without_escapes(piece: bytes) -> bytes:
    """Return a piece of the same length in which every quote begins or ends a string."""
    return piece.replace(b"\\\\", b"__").replace(b'\\"', b"__") if b"\\" in piece else piece


def follow(piece: bytes, stack: bytearray) -> None:
    """Bring the stack of open brackets up to the end of a piece, in which every string is whole."""
    marks = _without_escapes(piece).translate(None, _NOT_STRUCTURE)
    if b'"' in marks:
        marks = b"".join(marks.split(b'"')[::2])
    depth = len(stack)
    for mark in marks:
        if mark == _LEFT or mark == _BRACE:  # noqa: SIM109  # faster than a look into a tuple
            depth += 1
            if depth > DEPTH_MAX:
                reason = f"the body nests deeper than {DEPTH_MAX} levels"
                raise InvalidJsonError(reason)
            stack.append(mark)
        elif depth:  # else it closes nothing, and the decoder will say so
            depth -= 1
            stack.pop()


class LongText:
    """A body on its way to be messages. No escape may be longer than a piece."""

    def __init__(self, body: Data, messages_max: int, piece_bytes: int) -> None:
        self._body = body
        self._piece_bytes = piece_bytes
        self._at = _white_end(body, piece_bytes)
        self._end = _white_start(body, piece_bytes)
        self._array = self._at < self._end and body[self._at] == _LEFT
        self._stack = bytearray()
        self._state = _START
        self._messages_max = messages_max
        self._separators = 0
        self._any = False

    @property
    def count(self) -> int:
        """Tell how many messages there were so far."""
        return self._separators + self._any

    def wire(self) -> Iterator[bytes]:
        """Yield the bytes of the messages, with separators between them but for the last one."""
        while self._at < self._end:
            limit = min(self._at + self._piece_bytes, self._end)
            cut = limit if limit == self._end else self._cut(limit)
            if cut > self._at:
                yield self._counted(self._piece(cut))
            elif self._body[self._at] == _QUOTE:
                for piece in self._string():
                    yield self._counted(piece)
            else:
                for piece in self._scalar():
                    yield self._counted(piece)
        if self._state != _END:
            reason = "Input data was truncated"
            raise invalid(reason)

    def _counted(self, piece: bytes) -> bytes:
        self._any = self._any or bool(piece)
        if self._array:
            self._separators += piece.count(b"\n")
        if self.count > self._messages_max:
            raise TooManyMessagesError(self._messages_max)
        return piece

    def _cut(self, limit: int) -> int:
        """Return where the next piece ends, which is where it begins if a long token does."""
        piece = _without_escapes(bytes(self._body[self._at : limit]))
        quote = piece.rfind(b'"')
        if piece.count(b'"') % 2:
            return self._at + quote  # before a string
        last = max(piece.rfind(mark, quote + 1) for mark in _STRUCTURE)
        if last >= 0:
            return self._at + last + 1
        if quote >= 0:
            # A string, and nothing after it yet.
            return self._at + piece.rfind(b'"', 0, quote)
        return self._at + len(piece) - len(piece.lstrip(WHITE))

    # --- judging ---

    def _opening(self) -> bytes:
        if not self._stack:
            return b"0" if self._state == _END else b""
        outer = bytes(self._stack[:-1]).replace(b"{", b'{"":')
        return outer + _AROUND[self._stack[-1], self._state][0]

    def _closing(self) -> bytes:
        if self._state == _LOST:
            return b'"'  # no text can be completed by it
        if not self._stack:
            return b""
        outer = self._stack[-2::-1].translate(_CLOSERS)
        # What has no way on is no JSON, and will not be by nothing.
        return _AROUND.get((self._stack[-1], self._state), _NOWHERE)[1] + outer

    def _judged(self, opening: bytes, piece: bytes, closing: bytes) -> list[msgspec.Raw]:
        text = b"".join((opening, piece, closing))
        try:
            if self._array and opening != b"0":
                return ARRAY.decode(text)
            VALUE.decode(text)
        except (msgspec.DecodeError, RecursionError) as exc:
            shift = self._at - len(opening)
            told = _BYTE.sub(lambda found: f"(byte {int(found[1]) + shift})", str(exc))
            raise invalid(told) from exc
        return []

    def _piece(self, cut: int) -> bytes:
        """Judge the piece up to ``cut`` and return the messages in it."""
        piece = bytes(self._body[self._at : cut])
        opening, levels, state = self._opening(), len(self._stack), self._state
        follow(piece, self._stack)
        closing = b""
        if cut == self._end:
            self._state = _END
        else:
            self._state = self._state_after(piece)
            closing = self._closing()
        raws = self._judged(opening, piece, closing)
        self._at = cut
        if not self._array:
            return piece.translate(LINE_ENDS) if b"\n" in piece or b"\r" in piece else piece
        skipped = _OPENED[state] if levels == 1 else max(len(opening) - 1, 0)
        dropped = max(len(closing) - 1, 0)
        return joined(raws)[skipped : -dropped or None]

    def _state_after(self, piece: bytes) -> bytes:
        last = piece.rstrip(WHITE)[-1:]
        if last in (b"]", b"}"):
            return _VALUE_ENDED if self._stack else _END
        if not last:
            return self._state
        return last if last in _STRUCTURE else _LOST

    # --- what is longer than a piece ---

    def _pass_value(self, stand_in: bytes) -> None:
        """Judge whether a value may stand here, and go on behind it."""
        opening = self._opening()
        is_key = self._stack[-1:] == b"{" and self._state != b":"
        if self._stack:
            self._state = _KEY_ENDED if is_key else _VALUE_ENDED
        else:
            self._state = _END
        self._judged(opening, stand_in, self._closing())

    def _string(self) -> Iterator[bytes]:
        self._pass_value(b'""')
        self._at += 1
        yield b'"'
        while True:
            limit = min(self._at + self._piece_bytes, self._end)
            content = _CONTENT.match(self._body, self._at, limit)
            assert content is not None
            piece = content[0]
            ended = content.end() < limit and self._body[content.end()] == _QUOTE
            if not piece and not ended:
                piece = bytes(self._body[self._at : limit])  # an escape that is none, or the end
                self._judge_content(piece + b'"\\')
            self._judge_content(piece)
            self._at = content.end() + ended
            yield piece + b'"' * ended
            if ended:
                return

    def _judge_content(self, piece: bytes) -> None:
        try:
            VALUE.decode(b'"%b"' % piece)
        except msgspec.DecodeError as exc:
            told = _BYTE.sub(lambda found: f"(byte {int(found[1]) + self._at - 1})", str(exc))
            raise invalid(told) from exc

    def _scalar(self) -> Iterator[bytes]:
        """Judge a number by what is left of it without digits that change nothing."""
        short = b""
        start = self._at
        while self._at < self._end:
            found = _SCALAR.match(
                self._body, self._at, min(self._at + self._piece_bytes, self._end)
            )
            piece = found[0] if found is not None else b""
            short = _DIGITS.sub(rb"\1", short + piece)[: _SCALAR_BYTES_MAX + 1]
            if not piece or len(short) > _SCALAR_BYTES_MAX:
                break
            self._at += len(piece)
            yield piece
        if self._at == start or len(short) > _SCALAR_BYTES_MAX:
            reason = f"JSON is malformed: invalid character (byte {start})"
            raise invalid(reason)
        self._pass_value(short)


_CLOSERS = bytes.maketrans(b"[{", b"]}")


def joined(raws: list[msgspec.Raw]) -> bytes:
    """Return messages with separators between them, and line ends nowhere else."""
    wire = SEPARATOR.join(raws)
    if b"\r" in wire or wire.count(b"\n") != len(raws) - 1:
        wire = SEPARATOR.join([bytes(raw).translate(LINE_ENDS) for raw in raws])
    return wire


def _white_end(body: Data, piece_bytes: int) -> int:
    """Return where the white space at the start of a body ends."""
    for at in range(0, len(body), piece_bytes):
        piece = bytes(body[at : at + piece_bytes])
        rest = piece.lstrip(WHITE)
        if rest:
            return at + len(piece) - len(rest)
    return len(body)


def _white_start(body: Data, piece_bytes: int) -> int:
    """Return where the white space at the end of a body begins."""
    for end in range(len(body), 0, -piece_bytes):
        low = max(end - piece_bytes, 0)
        rest = bytes(body[low:end]).rstrip(WHITE)
        if rest:
            return low + len(rest)
    return 0

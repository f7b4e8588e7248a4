"""JSON streams: a body becomes messages, messages become wire bytes, and back.

Each message is stored as its own bytes followed by ``,\\n``. A valid JSON text has line ends only
as insignificant white space, so those inside a message become spaces on the way in and ``,\\n``
is an unambiguous separator: a position is on a message boundary exactly when the two bytes before
it are ``,\\n``, and a page of messages is ``[`` + a byte range less its last two bytes + ``]``.

Nothing is re-serialised: numbers of thirty digits, 1e400 and duplicate keys come back as sent.
"""

import re

import msgspec

SEPARATOR = b",\n"

# Deep enough for any document, shallow enough that no reader's parser gives up on it. msgspec
# itself stops at the interpreter's recursion limit, which is far above this.
DEPTH_MAX = 128

_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
_VALUE = msgspec.json.Decoder(msgspec.Raw)
_LINE_ENDS = bytes.maketrans(b"\r\n", b"  ")
_NOT_STRUCTURE = bytes(set(range(256)) - set(b'[]{}"'))
_INNERMOST = re.compile(rb"\[\]|\{\}")
_STRINGS = re.compile(rb'"[^"]*"')


class InvalidJsonError(ValueError):
    """The body is not one JSON text we accept; the message says why."""


def split(body: bytes) -> tuple[bytes, int]:
    """Return the wire bytes of a body's messages and their number; one array level is flattened.

    A number of 0 is an empty array: whether that is allowed is the caller's question.
    """
    _check_text(body)
    try:
        if body.lstrip(b" \t\r\n")[:1] == b"[":
            messages = [bytes(raw) for raw in _ARRAY.decode(body)]
        else:
            messages = [bytes(_VALUE.decode(body))]
    except (msgspec.DecodeError, RecursionError) as exc:
        reason = f"the body is not valid JSON: {exc}"
        raise InvalidJsonError(reason) from exc
    if not messages:
        return b"", 0
    wire = SEPARATOR.join(message.strip(b" \t\r\n") for message in messages) + SEPARATOR
    if wire.count(b"\n") != len(messages) or b"\r" in wire:
        wire = (
            SEPARATOR.join(m.strip(b" \t\r\n").translate(_LINE_ENDS) for m in messages) + SEPARATOR
        )
    return wire, len(messages)


def _check_text(body: bytes) -> None:
    """Refuse what the splitter lets through: bad UTF-8, a byte order mark, bottomless nesting."""
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as exc:
        reason = f"the body is not UTF-8: byte {exc.start} is {exc.object[exc.start]:#04x}"
        raise InvalidJsonError(reason) from exc
    if body.count(b"[") + body.count(b"{") > DEPTH_MAX and _nests_deep(body):
        reason = f"the body nests deeper than {DEPTH_MAX} levels"
        raise InvalidJsonError(reason)


def _nests_deep(body: bytes) -> bool:
    """Tell whether brackets nest deeper than allowed, by taking away the innermost pairs in turn.

    Strings are taken out first. Each turn is a pass of C, and an ordinary body is gone after a few.
    """
    unescaped = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    skeleton = _STRINGS.sub(b"", unescaped.translate(None, _NOT_STRUCTURE))
    for _ in range(DEPTH_MAX):
        shorter = _INNERMOST.sub(b"", skeleton)
        if len(shorter) == len(skeleton):
            return False  # nothing left, or no JSON: the decoder will say so
        skeleton = shorter
    return bool(skeleton)


def page(wire: bytes) -> bytes:
    """Return the JSON array of a range of whole messages."""
    return b"[" + wire[: -len(SEPARATOR)] + b"]" if wire else b"[]"

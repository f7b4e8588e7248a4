"""Finding messages in bytes that have lost their index entries."""

from collections.abc import Iterator

import msgspec

from durastreamd.protocol.json_mode import SEPARATOR

_VALUE = msgspec.json.Decoder(msgspec.Raw)

# Records made up for bytes without an index hold about this much, as large batches do.
RECORD_BYTES = 1024 * 1024


def messages_of(
    data: bytes, *, json: bool, count: int
) -> Iterator[tuple[int, int, int | list[int]]]:
    """Yield records (start, size, messages) for bytes that held ``count`` messages.

    JSON messages are counted; the lengths of others are made up, unless there was only one.
    """
    if count <= 0 or not data:
        return
    if json:
        yield from _json(data, count)
    else:
        yield 0, len(data), list(_lengths(data, count))


def _json(data: bytes, count: int) -> Iterator[tuple[int, int, int]]:
    start, number, total = 0, 0, 0
    at = 0
    while total + number < count:
        end = data.find(SEPARATOR, at)
        good = end >= 0 and _is_value(data[at:end])
        if end < 0:
            break
        end += len(SEPARATOR)
        if good:
            number += 1
        if number and (not good or end - start >= RECORD_BYTES):
            stop = end if good else at
            yield start, stop - start, number
            total, number, start = total + number, 0, stop
        if not good:
            start = end
        at = end
    if number:
        yield start, at - start, number


def _is_value(text: bytes) -> bool:
    try:
        _VALUE.decode(text)
        text.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return b"\n" not in text


def _lengths(data: bytes, count: int) -> Iterator[int]:
    """Yield at most ``count`` lengths, cutting after a line end where there is one."""
    size = max(RECORD_BYTES, -(-len(data) // count))
    at = 0
    while at < len(data):
        end = min(at + size, len(data))
        line = data.rfind(b"\n", at + 1, end) + 1 if end < len(data) and count > 1 else 0
        last = count == 1
        stop = len(data) if last else (line or end)
        yield stop - at
        at = stop
        count -= 1

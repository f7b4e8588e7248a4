"""From the bytes of answers to messages.

Nothing is parsed that need not be: JSON comes one message to a line, other messages come after
their lengths, and only a server that knows neither has its arrays taken apart.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from durastreamd.spark.errors import ContentError
from durastreamd.spark.rows import Messages, line_messages, messages_of

LENGTH_BYTES = 4  # before each message of a framed body

LINES = "application/x-ndjson"
FRAMED = "application/vnd.durastream.messages"
ACCEPT = f"{LINES}, {FRAMED}, */*;q=0.1"

_GAP = re.compile(r"[ \t\r\n]*")


# --- answers to messages ---


def lines(pieces: Iterator[bytes], number: int) -> Iterator[Messages]:
    """Yield the messages of a body of lines, those of a piece together; the first has a number."""
    held: list[bytes] = []
    for piece in pieces:
        end = piece.rfind(b"\n") + 1
        if end:
            found = line_messages(b"".join([*held, piece[:end]]), number)
            number += found.count
            held = []
            yield found
        if end < len(piece):
            held.append(piece[end:])
    if held:
        yield line_messages(b"".join([*held, b"\n"]), number)


def framed(pieces: Iterator[bytes], number: int) -> Iterator[Messages]:
    """Yield the messages of a body in which each stands after its length."""
    held: list[bytes] = []
    missing = 0  # bytes of the first message in what is held
    for piece in pieces:
        held.append(piece)
        missing -= len(piece)
        if missing > 0:
            continue
        data = b"".join(held)
        begins, ends, at, missing = _frames(data)
        if begins:
            numbers = np.arange(number, number + len(begins))
            number += len(begins)
            yield Messages(data, np.array(begins), np.array(ends), numbers)
        held = [data[at:]] if at < len(data) else []
    if held:
        message = f"An answer ends {sum(map(len, held))} bytes into a message."
        raise ContentError(message)


def _frames(data: bytes) -> tuple[list[int], list[int], int, int]:
    """Return where whole messages begin and end, where the rest begins, how much that lacks."""
    begins: list[int] = []
    ends: list[int] = []
    at = 0
    while at + LENGTH_BYTES <= len(data):
        begin = at + LENGTH_BYTES
        end = begin + int.from_bytes(data[at:begin], "big")
        if end > len(data):
            return begins, ends, at, end - len(data)
        begins.append(begin)
        ends.append(end)
        at = end
    return begins, ends, at, 0


def elements(body: bytes) -> list[bytes]:
    """Return the values of a JSON array, each as it was written."""
    text = body.decode()
    scan = json.JSONDecoder().raw_decode
    at = _past_gap(text, 0)
    if text[at : at + 1] != "[":
        message = "The answer of a JSON stream is not an array."
        raise ContentError(message)
    at = _past_gap(text, at + 1)
    found: list[bytes] = []
    while text[at : at + 1] not in ("]", ""):
        _, end = scan(text, at)
        found.append(text[at:end].encode())
        at = _past_gap(text, end)
        if text[at : at + 1] == ",":
            at = _past_gap(text, at + 1)
    return found


def _past_gap(text: str, at: int) -> int:
    found = _GAP.match(text, at)
    return found.end() if found else at


def ended_lines(data: bytes, separator: bytes) -> tuple[list[bytes], bytes]:
    """Return the lines that are complete, and what follows the last of them."""
    found = data.split(separator)
    return found[:-1], found[-1]


def split_lines(messages: Messages, separator: bytes) -> Messages:
    """Return the lines of messages, each with its message's number; the last need not be ended."""
    found: list[bytes] = []
    numbers: list[int] = []
    times: list[int] = []
    for at, number in enumerate(messages.numbers.tolist()):
        some = messages.text(at).removesuffix(separator).split(separator)
        found += some
        numbers += [number] * len(some)
        if messages.times is not None:
            times += [int(messages.times[at])] * len(some)
    made = messages_of(found, numbers, json=False)
    return made if messages.times is None else replace(made, times=np.array(times, np.int64))

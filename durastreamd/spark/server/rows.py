"""From the bytes of answers to messages, and from messages to record batches.

Nothing is parsed that need not be: JSON comes one message to a line, other messages come after
their lengths, and only a server that knows neither has its arrays taken apart.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import cast

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from durastreamd.spark.arrow import RecordBatch
from durastreamd.spark.errors import ContentError

ROWS_MAX = 10_000  # of a record batch: measured best, see the benchmark
BYTES_MAX = 16 * 1024 * 1024  # of a record batch, so that large messages do not pile up

LINES = "application/x-ndjson"
FRAMED = "application/vnd.durastream.messages"
ACCEPT = f"{LINES}, {FRAMED}, */*;q=0.1"

_GAP = re.compile(r"[ \t\r\n]*")


# --- answers to messages ---


def lines(pieces: Iterator[bytes]) -> Iterator[list[bytes]]:
    """Yield the messages of a body of lines, a list for each piece."""
    held = b""
    for piece in pieces:
        found = (held + piece).split(b"\n")
        held = found.pop()
        if found:
            yield found
    if held:
        yield [held]


def framed(pieces: Iterator[bytes]) -> Iterator[list[bytes]]:
    """Yield the messages of a body in which each stands after its length."""
    held = b""
    for piece in pieces:
        data, at, found = held + piece, 0, []
        while at + 4 <= len(data):
            end = at + 4 + int.from_bytes(data[at : at + 4], "big")
            if end > len(data):
                break
            found.append(data[at + 4 : end])
            at = end
        held = data[at:]
        if found:
            yield found
    if held:
        message = f"An answer ends {len(held)} bytes into a message."
        raise ContentError(message)


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


def split_lines(messages: list[bytes], separator: bytes) -> list[list[bytes]]:
    """Return the lines of each message; the last one need not be ended."""
    return [message.removesuffix(separator).split(separator) for message in messages]


# --- messages to record batches ---


class Batches:
    """Gathers rows of one stream and yields record batches that Spark takes as they are."""

    def __init__(self, schema: StructType, stream: str) -> None:
        self._columns = [each.name for each in schema.fields]
        # The very schema Spark compares with: order, types, nullability.
        self._arrow = to_arrow_schema(schema, timezone="UTC")
        self._stream = stream
        self._values: list[bytes] = []
        self._numbers: list[int] = []
        self._bytes = 0

    def add(self, values: Sequence[bytes], numbers: Sequence[int]) -> Iterator[RecordBatch]:
        """Take rows; yield what is full."""
        self._values += values
        self._numbers += numbers
        self._bytes += sum(map(len, values))
        if len(self._values) >= ROWS_MAX or self._bytes >= BYTES_MAX:
            yield from self._full()

    def _full(self) -> Iterator[RecordBatch]:
        at = 0
        # A piece of tiny messages holds many batches' worth; large ones are few to begin with.
        while len(self._values) - at >= ROWS_MAX or (at == 0 and self._bytes >= BYTES_MAX):
            yield self._batch(self._values[at : at + ROWS_MAX], self._numbers[at : at + ROWS_MAX])
            at += ROWS_MAX
        self._values, self._numbers = self._values[at:], self._numbers[at:]
        self._bytes = sum(map(len, self._values))

    def rest(self) -> Iterator[RecordBatch]:
        """Yield what is left."""
        if self._values:
            yield self._batch(self._values, self._numbers)
        self._values, self._numbers, self._bytes = [], [], 0

    def snapshot(self, blob: bytes, number: int) -> RecordBatch:
        """Return the one row that a snapshot is."""
        return self._batch([blob], [number], snapshot=True)

    def _batch(
        self, values: list[bytes], numbers: list[int], *, snapshot: bool = False
    ) -> RecordBatch:
        made: dict[str, object] = {}
        count = len(values)
        for name in self._columns:
            if name == "value":
                made[name] = self._value_column(values)
            elif name == "offset":
                made[name] = pa.array(numbers, pa.int64())
            elif name == "stream":
                made[name] = pa.repeat(pa.scalar(self._stream, pa.string()), count)
            else:
                made[name] = pa.repeat(pa.scalar(snapshot, pa.bool_()), count)
        columns = [made[name] for name in self._columns]
        return cast(RecordBatch, pa.RecordBatch.from_arrays(columns, schema=self._arrow))

    def _value_column(self, values: list[bytes]) -> object:
        column = pa.array(values, pa.binary())
        kind = self._arrow.field("value").type
        if kind == pa.binary():
            return column
        try:
            return column.cast(kind)
        except pa.ArrowInvalid as exc:
            message = (
                f"Stream {self._stream} holds bytes that are not UTF-8 text; "
                "read it with option valueType=binary."
            )
            raise ContentError(message) from exc

"""Messages to record batches that Spark takes as they are, without a loop over messages.

Both sources bring messages as one buffer with the places where each begins and ends, and from
there everything happens to all rows at once: values are one take from the buffer, numbers and
times are arrays, members of JSON objects are parsed by ``members``.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from durastreamd.spark.arrow import RecordBatch
from durastreamd.spark.errors import ContentError
from durastreamd.spark.members import MemberParser
from durastreamd.spark.schema import (
    OFFSET,
    SNAPSHOT,
    STREAM,
    TIMESTAMP,
    VALUE,
    MemberOptions,
    members_of,
)

ROWS_MAX = 16_384  # of a record batch: some MiB, and a fraction of a second between two
# Of a record batch, so that large messages do not pile up; what is larger is a batch by itself.
BYTES_MAX = 16 * 1024 * 1024

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Messages:
    """Messages of one stream: where each begins and ends in a buffer, its number, its time."""

    data: bytes
    begins: Int64s
    ends: Int64s
    numbers: Int64s
    json: bool = False  # each is known to be one JSON text, and only separators stand between
    times: Int64s | None = None  # in microseconds since 1970

    def part(self, low: int, high: int) -> "Messages":
        """Return those from one to before another."""
        some = slice(low, high)
        begins, ends, numbers = self.begins[some], self.ends[some], self.numbers[some]
        times = None if self.times is None else self.times[some]
        return replace(self, begins=begins, ends=ends, numbers=numbers, times=times)

    def chosen(self, places: Int64s) -> "Messages":
        """Return those at some places."""
        begins, ends, numbers = self.begins[places], self.ends[places], self.numbers[places]
        times = None if self.times is None else self.times[places]
        return replace(self, begins=begins, ends=ends, numbers=numbers, times=times)

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.begins)

    def text(self, at: int) -> bytes:
        """Return one of them."""
        return self.data[self.begins[at] : self.ends[at]]


def messages_of(values: Sequence[bytes], numbers: Sequence[int], *, json: bool) -> Messages:
    """Return messages that are there one by one."""
    lengths = np.fromiter(map(len, values), np.int64, len(values)) + 1
    begins = np.cumsum(lengths) - lengths
    ends = begins + lengths - 1
    return Messages(b"\n".join(values), begins, ends, np.asarray(numbers, np.int64), json)


def line_messages(data: bytes, number: int) -> Messages:
    """Return the JSON messages of a buffer that holds one to a line, each line ended."""
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))
    begins = np.zeros(len(ends), np.int64)
    begins[1:] = ends[:-1] + 1
    return Messages(data, begins, ends, np.arange(number, number + len(ends)), json=True)


class RowMaker:
    """Makes the rows of one query; what is wanted is in its schema."""

    def __init__(self, schema: StructType, options: MemberOptions) -> None:
        # The very schema Spark compares with: order, types, nullability.
        self._arrow = to_arrow_schema(schema, timezone="UTC")
        self._names = [each.name for each in schema.fields]
        members = members_of(schema)
        self._members = {name: self._arrow.field(name).type for name in members.fieldNames()}
        self._parser = MemberParser(members, options) if members.fields else None

    def rows(
        self, stream: str, messages: Messages, *, snapshot: bool = False
    ) -> Iterator[RecordBatch]:
        """Yield the rows of some messages, one of each unless it is malformed and dropped."""
        for start in range(0, messages.count, ROWS_MAX):
            made = self._batch(stream, messages.part(start, start + ROWS_MAX), snapshot=snapshot)
            if made.num_rows:
                yield made

    def _batch(self, stream: str, messages: Messages, *, snapshot: bool) -> RecordBatch:
        made: dict[str, object] = {}
        if snapshot:
            made = {name: pa.nulls(messages.count, kind) for name, kind in self._members.items()}
        elif self._parser is not None:
            parsed = self._parser.columns(stream, messages)
            made = parsed.columns
            if parsed.kept is not None:
                messages = messages.chosen(parsed.kept)
        count = messages.count
        for name in self._names:
            if name == VALUE:
                made[name] = self._values(stream, messages)
            elif name == OFFSET:
                made[name] = _fixed(pa.int64(), messages.numbers)
            elif name == STREAM:
                made[name] = pa.repeat(pa.scalar(stream, pa.string()), count)
            elif name == SNAPSHOT:
                made[name] = pa.repeat(pa.scalar(snapshot, pa.bool_()), count)
            elif name == TIMESTAMP:
                kind = self._arrow.field(name).type
                none = messages.times is None
                made[name] = pa.nulls(count, kind) if none else _fixed(kind, messages.times)
        columns = [made[name] for name in self._names]
        return cast(RecordBatch, pa.RecordBatch.from_arrays(columns, schema=self._arrow))

    def _values(self, stream: str, messages: Messages) -> object:
        """Return the column of values: every second string of the buffer is a message."""
        count, kind = messages.count, self._arrow.field(VALUE).type
        edges = np.empty(2 * count + 1, np.int32)
        edges[0 : 2 * count : 2] = messages.begins
        edges[1 : 2 * count : 2] = messages.ends
        edges[2 * count] = messages.ends[-1] if count else 0
        buffers = [None, pa.py_buffer(edges), pa.py_buffer(messages.data)]
        # Ten times as fast as a list of messages: Arrow copies them one after the other.
        both = pa.Array.from_buffers(kind, 2 * count, buffers)
        values = both.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))
        if kind != pa.binary() and not messages.json:  # JSON was checked when it came in
            try:
                values.validate(full=True)
            except pa.ArrowInvalid:
                message = (
                    f"Stream {stream} holds bytes that are not UTF-8 text, between messages "
                    f"{messages.numbers[0]} and {messages.numbers[-1]}; read it with option "
                    "valueType=binary."
                )
                raise ContentError(message) from None
        return values


def _fixed(kind: object, numbers: Int64s | None) -> object:
    whole = np.ascontiguousarray(numbers, np.int64)
    return pa.Array.from_buffers(kind, len(whole), [None, pa.py_buffer(whole)])


def gathered(batches: Iterable[RecordBatch]) -> Iterator[RecordBatch]:
    """Put small record batches together: a task may read thousands of streams of a few rows."""
    held: list[RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if held and (rows + batch.num_rows > ROWS_MAX or size + batch.nbytes > BYTES_MAX):
            yield _joined(held)
            held, rows, size = [], 0, 0
        held.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
    if held:
        yield _joined(held)


def _joined(held: list[RecordBatch]) -> RecordBatch:
    return held[0] if len(held) == 1 else cast(RecordBatch, pa.concat_batches(held))

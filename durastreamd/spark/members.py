"""Members of JSON messages as typed columns, equal to what ``spark.read.json`` makes of them.

Arrow's JSON parser takes a whole buffer at once, and is strict where Spark is: what it reads, Spark
reads the same, but for times and dates, which it gets as strings and which are converted here. What
it refuses is halved until few messages are left, and these are parsed one by one (``parsing``): one
odd message costs its neighbours twice the time, not ten times.

Two kinds of messages are kept from it, because it ends the process on them or could: a message that
is no object (``null``), and one that may be nested without end.
"""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from durastreamd.spark.errors import ContentError
from durastreamd.spark.parsing import MessageParser
from durastreamd.spark.schema import DROPMALFORMED, FAILFAST, PERMISSIVE, MemberOptions

if TYPE_CHECKING:
    from durastreamd.spark.rows import Messages

UTC = "UTC"

# Below it messages are parsed one by one: Arrow's parser costs as much to set up as some dozen.
FEW = 64
# Nothing shorter is nested so deep that a parser could mind; Spark's own follows 1,000 levels.
NESTED_BYTES = 16 * 1024
NESTED_MAX = 4 * 1024

_DAY = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_ZONE = "(Z|[-+][0-9]{2}:[0-9]{2})"
_CLOCK = "[T ][0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,6})?"
_DATED = f"^{_DAY}$"
_LOCAL = f"^{_DAY}{_CLOCK}$"
_ZONED = f"^{_DAY}{_CLOCK}{_ZONE}$"


class MemberColumns(NamedTuple):
    """The columns of some messages; where some were dropped, the places of those that were not."""

    columns: dict[str, object]
    kept: npt.NDArray[np.int64] | None


class _Part(NamedTuple):
    """The columns of consecutive messages, and which of those were well-formed."""

    columns: list[object]
    good: npt.NDArray[np.bool_]


class MemberParser:
    """Parses the messages of one query."""

    def __init__(self, members: StructType, options: MemberOptions) -> None:
        self._options = options
        parsed = [each for each in members.fields if each.name != options.corrupt]
        self._keeps_corrupt = len(parsed) < len(members.fields)
        self._fields = StructType(parsed)
        self._names = [each.name for each in parsed]
        self._kinds = [to_arrow_type(each.dataType, timezone=UTC) for each in parsed]
        self._one_by_one = MessageParser(self._fields, options.zone)
        self._explicit = None
        if parsed and all(_at_once(each.dataType, top=True) for each in parsed):
            read = [
                (each.name, to_arrow_type(_as_read(each.dataType), timezone=UTC)) for each in parsed
            ]
            self._explicit = pa.schema(read)

    def columns(self, stream: str, messages: "Messages") -> MemberColumns:
        """Return the columns of some messages; raise on a malformed one in FAILFAST."""
        parts = self._parts(messages, 0, messages.count)
        good = np.concatenate([part.good for part in parts]) if parts else np.ones(0, bool)
        made: dict[str, object] = {}
        for at, (name, kind) in enumerate(zip(self._names, self._kinds, strict=True)):
            arrays = [part.columns[at] for part in parts]
            made[name] = arrays[0] if len(arrays) == 1 else _joined(arrays, kind)
        mode = self._options.mode
        all_good = bool(good.all())
        if mode == FAILFAST and not all_good:
            raise _malformed(stream, messages, int(np.argmin(good)))
        if self._keeps_corrupt:
            texts: list[str | None] = [None] * len(good)
            for bad in np.flatnonzero(~good).tolist() if mode == PERMISSIVE else ():
                texts[bad] = messages.text(bad).decode(errors="replace")
            made[self._options.corrupt] = pa.array(texts, pa.string())
        if mode != DROPMALFORMED or all_good:
            return MemberColumns(made, None)
        kept = np.flatnonzero(good)
        return MemberColumns({name: _taken(made[name], kept) for name in made}, kept)

    def _parts(self, messages: "Messages", low: int, high: int) -> list[_Part]:
        """Parse messages, as many at once as can be."""
        if low == high:
            return []
        if self._explicit is None or not messages.json:
            return [self._slowly(messages, low, high)]
        if high - low > FEW or (low == 0 and high == messages.count):
            some = messages.part(low, high)
            if _safe(some) and (found := self._at_once(some)) is not None:
                return [found]
        if high - low <= FEW:
            return [self._slowly(messages, low, high)]
        middle = (low + high) // 2
        return self._parts(messages, low, middle) + self._parts(messages, middle, high)

    def _slowly(self, messages: "Messages", low: int, high: int) -> _Part:
        rows, good = [], np.ones(high - low, bool)
        for at in range(low, high):
            row, fits = self._one_by_one.row(messages.text(at))
            rows.append(row)
            good[at - low] = fits
        made = [
            pa.array([row.get(name) for row in rows], kind)
            for name, kind in zip(self._names, self._kinds, strict=True)
        ]
        return _Part(made, good)

    def _at_once(self, messages: "Messages") -> _Part | None:
        """Parse a buffer of JSON objects; None where one of them is not as Spark wants it."""
        data = _lines(messages)
        size = max(len(data), 1024)
        read = pj.ReadOptions(use_threads=False, block_size=size)
        parse = pj.ParseOptions(explicit_schema=self._explicit, unexpected_field_behavior="ignore")
        try:
            table = pj.read_json(pa.BufferReader(data), read_options=read, parse_options=parse)
            if table.num_rows != messages.count:
                return None
            made = [
                _converted(_whole(table.column(name)), kind, self._options.zone)
                for name, kind in zip(self._names, self._kinds, strict=True)
            ]
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None
        return (
            None if any(each is None for each in made) else _Part(made, np.ones(len(table), bool))
        )


def _malformed(stream: str, messages: "Messages", at: int) -> ContentError:
    shown = messages.text(at)[:200].decode(errors="replace")
    return ContentError(
        f"Stream {stream}: message {messages.numbers[at]} does not fit the schema: {shown!r}. "
        "mode=PERMISSIVE makes null of what does not fit and DROPMALFORMED leaves it out."
    )


def _safe(messages: "Messages") -> bool:
    """Tell whether all are objects, and none can be nested too deep for Arrow's parser."""
    data = np.frombuffer(messages.data, np.uint8)
    if not (data[messages.begins] == ord("{")).all():
        return False
    for at in np.flatnonzero(messages.ends - messages.begins > NESTED_BYTES).tolist():
        text = messages.text(at)
        if text.count(b"[") + text.count(b"{") > NESTED_MAX:
            return False
    return True


def _lines(messages: "Messages") -> bytes | bytearray:
    """Return the messages with nothing but white space between them."""
    low, high = int(messages.begins[0]), int(messages.ends[-1])
    data = messages.data[low:high]
    gaps = messages.ends[:-1] - low
    if not len(gaps) or (np.frombuffer(data, np.uint8)[gaps] == ord("\n")).all():
        return data
    # In a segment a comma stands before the line end.
    blank = bytearray(data)
    np.frombuffer(blank, np.uint8)[gaps] = ord(" ")
    return blank


# --- types ---


def _at_once(kind: DataType, *, top: bool) -> bool:
    """Tell whether Arrow's parser reads a type as Spark does, with ``_converted`` for its times."""
    if isinstance(kind, StructType):
        return all(_at_once(each.dataType, top=False) for each in kind)
    if isinstance(kind, ArrayType):
        return _at_once(kind.elementType, top=False)
    timed = isinstance(kind, DateType | TimestampType | TimestampNTZType)
    return not isinstance(kind, MapType | BinaryType) and (top or not timed)


def _as_read(kind: DataType) -> DataType:
    """Return the type that Arrow's parser is told."""
    if isinstance(kind, StructType):
        return StructType([StructField(each.name, _as_read(each.dataType)) for each in kind])
    if isinstance(kind, ArrayType):
        return ArrayType(_as_read(kind.elementType))
    timed = isinstance(kind, DateType | TimestampType | TimestampNTZType)
    return StringType() if timed else kind


def _converted(column: object, kind: object, zone: str) -> object | None:
    """Return a column of its type; None where a text is to be looked at by itself."""
    if column.type == kind:  # type: ignore[attr-defined]
        return column
    made: object = None
    if kind == pa.date32():
        made = pc.cast(column, kind) if _all_match(column, _DATED) else None
    elif kind.tz is None:  # type: ignore[attr-defined]
        made = pc.cast(column, kind) if _all_match(column, _LOCAL) else None
    elif _all_match(column, _ZONED):
        made = pc.cast(column, kind)
    elif zone == UTC and _all_match(column, _LOCAL):
        made = pc.cast(pc.cast(column, pa.timestamp("us")), kind)
    return made


def _all_match(column: object, pattern: str) -> bool:
    found = pc.all(pc.match_substring_regex(column, pattern)).as_py()
    return found is None or bool(found)


def _whole(column: object) -> object:
    if column.num_chunks == 1:  # type: ignore[attr-defined]
        return column.chunk(0)  # type: ignore[attr-defined]
    return column.combine_chunks()  # type: ignore[attr-defined]


def _joined(arrays: list[object], kind: object) -> object:
    return pa.concat_arrays(arrays) if arrays else pa.array([], kind)


def _taken(column: object, kept: npt.NDArray[np.int64]) -> object:
    return column.take(pa.array(kept))  # type: ignore[attr-defined]

"""Rows that are to be written, taken apart: which bytes go to which stream."""

import base64
import datetime as dt
import json
from collections.abc import Iterator
from typing import cast

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegralType,
    StringType,
    StructType,
)

from durastreamd.spark.arrow import RecordBatch
from durastreamd.spark.errors import OptionError, SinkError
from durastreamd.spark.options import SinkOptions

# Of these Python makes the same JSON as Spark's to_json.
_PLAIN = (BooleanType, IntegralType, FloatType, DoubleType, StringType, BinaryType, DateType)


def check_schema(schema: StructType, options: SinkOptions) -> None:
    """Refuse rows that say neither what to write nor where."""
    columns = {each.name: each.dataType for each in schema.fields}
    named = bool(options.stream or options.path)
    if "stream" in columns:
        if not isinstance(columns["stream"], StringType):
            message = f"The column stream is a string, not {columns['stream'].simpleString()}."
            raise OptionError(message)
    elif not named:
        message = (
            "Say where to write: option stream, save(<URL of a stream>), or a column stream "
            f"(there are only {', '.join(columns) or 'none'})."
        )
        raise OptionError(message)
    value = columns.get("value")
    if value is not None and not isinstance(value, StringType | BinaryType):
        message = (
            f"The column value is a string or binary, not {value.simpleString()}; "
            "use to_json for structures, or cast it."
        )
        raise OptionError(message)
    if not columns.keys() - {"stream"}:
        message = "There is nothing to write: add a column value, or columns for a JSON object."
        raise OptionError(message)
    for name, kind in columns.items():
        if value is None and name != "stream" and (odd := _odd(kind)) is not None:
            message = (
                f"The column {name} has the type {odd.simpleString()}, which only Spark writes as "
                "Spark does: write a column value, made by to_json(struct(*))."
            )
            raise OptionError(message)


def _odd(kind: DataType) -> DataType | None:
    """Return a part of a type whose JSON would not be that of to_json."""
    if isinstance(kind, StructType):
        return next((odd for each in kind if (odd := _odd(each.dataType)) is not None), None)
    if isinstance(kind, ArrayType):
        return _odd(kind.elementType)
    return None if isinstance(kind, _PLAIN) else kind


def _plain(value: object) -> object:
    """Return what JSON has no type for as Spark's to_json writes it."""
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise AssertionError(value)  # no column of such a type is taken


def _without_nulls(value: object) -> object:
    """Return a row without members that are null, at every depth, as to_json leaves them out."""
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_without_nulls(each) for each in value]
    return value


def _object(row: dict[str, object]) -> bytes:
    try:
        return _ENCODER.encode(_without_nulls(row)).encode()
    except ValueError as exc:
        message = f"JSON has no NaN and no infinity; use to_json(struct(*)) as value: {exc}"
        raise SinkError(message) from exc


_ENCODER = json.JSONEncoder(
    default=_plain, ensure_ascii=False, allow_nan=False, separators=(",", ":")
)


class RowSplitter:
    """Takes record batches apart: which bytes go to which stream."""

    def __init__(self, schema: StructType, options: SinkOptions) -> None:
        self._columns = [each.name for each in schema.fields]
        self._only = options.stream or (options.site().name if options.path else "")

    def groups(self, batch: RecordBatch) -> Iterator[tuple[str, list[bytes]]]:
        """Yield the values for each stream, in the order of the rows."""
        values = self._values(batch)
        if self._only or "stream" not in self._columns:
            yield self._only, values
            return
        found: dict[str, list[bytes]] = {}
        for name, value in zip(batch.column("stream").to_pylist(), values, strict=True):
            if not isinstance(name, str) or not name:
                message = "A row has no stream: the column stream is null or empty."
                raise SinkError(message)
            found.setdefault(name, []).append(value)
        yield from found.items()

    def _values(self, batch: RecordBatch) -> list[bytes]:
        if "value" not in self._columns:
            rows = batch.to_pylist()
            for row in rows:
                row.pop("stream", None)
            return [_object(row) for row in rows]
        values = batch.column("value").cast(pa.binary()).to_pylist()
        if None in values:
            message = "A row has no value: the column value is null; filter such rows out."
            raise SinkError(message)
        return cast(list[bytes], values)

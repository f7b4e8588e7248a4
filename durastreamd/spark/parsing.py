"""One JSON message at a time, taken apart as Spark's own JSON reader does it.

The slow way, for messages that Arrow's parser refuses or would read otherwise than Spark (see
``members``). It walks along the text by the schema, so that a string column gets the very text of
what stands there, be it a number or an object. What does not fit its column is null and makes the
message malformed; the rest of it is kept, as Spark keeps it. In an array or a map it spoils the
whole of that, except in an object there, of which the other members are kept.

Narrower than Spark in what nobody should rely on: times are ISO 8601, with Spark's shorter forms,
of years 1 to 9999, and zones are Z or hours and minutes; a date is no number of days.
"""

import base64
import json
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation, localcontext
from json.decoder import scanstring  # type: ignore[attr-defined]
from zoneinfo import ZoneInfo

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

# A value and where it ends in the text.
Parsed = tuple[object, int]
Parse = Callable[[str, int], Parsed]

_GAP = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_BITS: dict[type[DataType], int] = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}
_NOT_NUMBERS = {
    "NaN": float("nan"),
    "Infinity": float("inf"),
    "+INF": float("inf"),
    "INF": None,
    "-Infinity": float("-inf"),
    "-INF": float("-inf"),
}
_DATE = re.compile(r"([0-9]{4})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T].*)?)?)?")
_TIME = re.compile(
    r"([0-9]{4})(?:-([0-9]{1,2})(?:-([0-9]{1,2})"
    r"(?:[ T]([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]{0,9}))?)?)?"
    r" ?(Z|[-+][0-9]{1,2}(?::?[0-9]{1,2})?)?)?)?)?"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class MisfitError(Exception):
    """A value does not fit its column; caught where the column is."""


def _no_constant(name: str) -> object:
    message = f"{name} is no JSON"
    raise ValueError(message)


# Only for where things end: numbers are left alone, whatever their length.
_scan: Parse = json.JSONDecoder(  # type: ignore[attr-defined]
    parse_int=len, parse_float=len, parse_constant=_no_constant
).scan_once


def _past_gap(text: str, at: int) -> int:
    found = _GAP.match(text, at)
    return found.end() if found else at


class MessageParser:
    """Parses messages into the values of columns."""

    def __init__(self, members: StructType, zone: str) -> None:
        self._zone = ZoneInfo(zone)
        self._misfits = 0
        self._columns = {each.name: self._parser(each.dataType) for each in members.fields}

    def row(self, message: bytes) -> tuple[dict[str, object], bool]:
        """Return the members of a message that fit, and whether all of it did."""
        try:
            text = message.decode()
            start = _past_gap(text, 0)
            _, end = _scan(text, start)
            if _past_gap(text, end) != len(text) or text[start] != "{":
                return {}, False
            self._misfits = 0
            found, _ = self._members(self._columns, text, start)
        except (ValueError, StopIteration, RecursionError, IndexError):
            return {}, False  # no JSON at all, or nested deeper than anybody follows
        return found, not self._misfits

    def _parser(self, kind: DataType) -> Parse:
        """Return what parses a value of a type; null is one of every type."""
        inner = self._nested(kind) or self._simple(kind)

        def parse(text: str, at: int) -> Parsed:
            return (None, at + 4) if text[at] == "n" else inner(text, at)

        return parse

    # --- what holds others ---

    def _members(
        self, columns: dict[str, Parse], text: str, at: int
    ) -> tuple[dict[str, object], int]:
        """Parse an object, whose text is known to be one; of a member named twice the last fits."""
        found: dict[str, object] = {}
        at = _past_gap(text, at + 1)
        while text[at] != "}":
            name, at = scanstring(text, at + 1)
            at = _past_gap(text, _past_gap(text, at) + 1)
            parse = columns.get(name)
            try:
                if parse is None:
                    _, at = _scan(text, at)
                else:
                    found[name], at = parse(text, at)
            except MisfitError:
                self._misfits += 1
                _, at = _scan(text, at)
            at = _past_gap(text, at)
            if text[at] == ",":
                at = _past_gap(text, at + 1)
        return found, at + 1

    def _nested(self, kind: DataType) -> Parse | None:
        if isinstance(kind, StructType):
            return self._struct({each.name: self._parser(each.dataType) for each in kind})
        if isinstance(kind, ArrayType):
            return _array(self._parser(kind.elementType))
        if isinstance(kind, MapType):
            return _map(self._parser(kind.valueType))
        return None

    def _struct(self, columns: dict[str, Parse]) -> Parse:
        def parse(text: str, at: int) -> Parsed:
            if text[at] != "{":
                raise MisfitError
            return self._members(columns, text, at)

        return parse

    # --- what does not ---

    def _simple(self, kind: DataType) -> Parse:
        made: dict[type[DataType], Parse] = {
            StringType: _string,
            BooleanType: _boolean,
            BinaryType: _of_string(_binary),
            FloatType: _double,
            DoubleType: _double,
            DateType: _of_string(_date),
            TimestampType: self._timestamp,
            TimestampNTZType: _of_string(lambda text: _moment(text, None)),
        }
        if isinstance(kind, DecimalType):
            return _decimal(kind)
        found = made.get(type(kind))
        return found if found is not None else _integer(_BITS[type(kind)])

    def _timestamp(self, text: str, at: int) -> Parsed:
        if text[at] == '"':
            return _of_string(lambda found: _moment(found, self._zone))(text, at)
        seconds, end = _LONG(text, at)
        assert isinstance(seconds, int)
        try:
            return _EPOCH + timedelta(seconds=seconds), end
        except OverflowError:
            raise MisfitError from None


def _array(element: Parse) -> Parse:
    def parse(text: str, at: int) -> Parsed:
        if text[at] != "[":
            raise MisfitError
        found = []
        at = _past_gap(text, at + 1)
        while text[at] != "]":
            value, at = element(text, at)
            found.append(value)
            at = _past_gap(text, at)
            if text[at] == ",":
                at = _past_gap(text, at + 1)
        return found, at + 1

    return parse


def _map(value_of: Parse) -> Parse:
    def parse(text: str, at: int) -> Parsed:
        if text[at] != "{":
            raise MisfitError
        found = []  # not a dict: Spark keeps a name that comes twice
        at = _past_gap(text, at + 1)
        while text[at] != "}":
            name, at = scanstring(text, at + 1)
            at = _past_gap(text, _past_gap(text, at) + 1)
            value, at = value_of(text, at)
            found.append((_encodable(name), value))
            at = _past_gap(text, at)
            if text[at] == ",":
                at = _past_gap(text, at + 1)
        return found, at + 1

    return parse


def _encodable(text: str) -> str:
    """Return a text without lone surrogates, which have no UTF-8; Java puts this in their place."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def _string(text: str, at: int) -> Parsed:
    if text[at] == '"':
        found, end = scanstring(text, at + 1)
        return _encodable(found), end
    _, end = _scan(text, at)
    return text[at:end], end


def _boolean(text: str, at: int) -> Parsed:
    if text[at] == "t":
        return True, at + 4
    if text[at] == "f":
        return False, at + 5
    raise MisfitError


def _of_string(convert: Callable[[str], object]) -> Parse:
    def parse(text: str, at: int) -> Parsed:
        if text[at] != '"':
            raise MisfitError
        found, end = scanstring(text, at + 1)
        try:
            return convert(found), end
        except (ValueError, OverflowError):
            raise MisfitError from None

    return parse


def _number(text: str, at: int) -> "re.Match[str]":
    found = _NUMBER.match(text, at)
    if found is None:
        raise MisfitError
    return found


def _integer(bits: int) -> Parse:
    # Java's parser takes a byte without a sign for one, too: 255 is -1.
    highest = 2 ** (bits - 1) - 1 if bits > 8 else 255
    digits_max = len(str(highest)) + 1

    def parse(text: str, at: int) -> Parsed:
        found = _number(text, at)
        if found[1] or found[2] or len(found[0]) > digits_max:
            raise MisfitError
        value = int(found[0])
        if not -(2 ** (bits - 1)) <= value <= highest:
            raise MisfitError
        return value - 256 if value > highest >> 1 and bits == 8 else value, found.end()

    return parse


_LONG = _integer(64)


def _double(text: str, at: int) -> Parsed:
    if text[at] == '"':
        name, end = scanstring(text, at + 1)
        if (value := _NOT_NUMBERS.get(name)) is None:
            raise MisfitError
        return value, end
    found = _number(text, at)
    return float(found[0]), found.end()


def _decimal(kind: DecimalType) -> Parse:
    step, limit = Decimal(1).scaleb(-kind.scale), Decimal(10) ** (kind.precision - kind.scale)

    def parse(text: str, at: int) -> Parsed:
        if text[at] == '"':
            given, end = scanstring(text, at + 1)
            given = given.replace(",", "")
            if not re.fullmatch(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?", given):
                raise MisfitError
        else:
            found = _number(text, at)
            given, end = found[0], found.end()
        try:
            with localcontext(prec=2 * kind.precision + len(given)):
                exact = Decimal(given)
                if abs(exact) >= limit:
                    raise MisfitError
                value = exact.quantize(step, ROUND_HALF_UP)
        except InvalidOperation:
            raise MisfitError from None
        if abs(value) >= limit:
            raise MisfitError
        return value, end

    return parse


def _binary(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _date(text: str) -> date:
    found = _DATE.fullmatch(text.strip(" "))
    if found is None:
        raise ValueError
    return date(int(found[1]), int(found[2] or 1), int(found[3] or 1))


def _moment(text: str, zone: ZoneInfo | None) -> datetime:
    """Return the moment a text names; without a zone of its own it is in ``zone``.

    None is for columns that know no zones, and take none.
    """
    found = _TIME.fullmatch(text.strip(" "))
    if found is None or (found[8] and zone is None):
        raise ValueError
    lowest = (1, 1, 1, 0, 0, 0)
    year, month, day, hour, minute, second = (
        int(part) if part else low for part, low in zip(found.groups()[:6], lowest, strict=True)
    )
    micros = int((found[7] or "0").ljust(6, "0")[:6])
    made = datetime(year, month, day, hour, minute, second, micros)  # noqa: DTZ001
    if zone is None:
        return made
    if not found[8]:
        return made.replace(tzinfo=zone).astimezone(UTC)
    return made.replace(tzinfo=_offset(found[8])).astimezone(UTC)


def _offset(text: str) -> timezone:
    if text == "Z":
        return UTC
    digits = text[1:].replace(":", "")
    hours, minutes = int(digits[:2] if ":" not in text else text[1:].split(":")[0]), 0
    if ":" in text:
        minutes = int(text.split(":")[1])
    elif len(digits) > 2:
        minutes = int(digits[2:])
    found = timedelta(hours=hours, minutes=minutes)
    if minutes > 59 or found > timedelta(hours=18):
        raise ValueError
    return timezone(-found if text[0] == "-" else found)

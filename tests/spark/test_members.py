"""Columns of a schema: equal to ``spark.read.json``, at once where that can be, in every mode."""

import json
import math
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from durastreamd.spark.errors import ContentError
from durastreamd.spark.members import FEW
from durastreamd.spark.parsing import MessageParser
from durastreamd.spark.rows import RowMaker, line_messages, messages_of
from durastreamd.spark.schema import DROPMALFORMED, FAILFAST, MemberOptions
from tests.spark import json_messages
from tests.spark.directories import Directory
from tests.spark.driving import Hand

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CORRUPT = "_corrupt_record"
ODD = (0.0, 0.003, 0.05, 0.3)  # how much of the messages does not fit


def of(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def rows(schema: StructType, *messages: str, options: MemberOptions | None = None) -> list[object]:
    """Return the rows of messages, as lists of their columns."""
    found = line_messages("".join(f"{each}\n" for each in messages).encode(), 0)
    made = RowMaker(schema, options or MemberOptions()).rows("s", found)
    return [[*row.values()] for batch in made for row in batch.to_pylist()]


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The messages that were parsed by themselves."""
    found: list[bytes] = []
    parse = MessageParser.row

    def spy(self: MessageParser, message: bytes) -> tuple[dict[str, object], bool]:
        found.append(message)
        return parse(self, message)

    monkeypatch.setattr(MessageParser, "row", spy)
    return found


# --- as Spark reads them ---


def same(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_columns_are_equal_to_those_of_sparks_own_reader(
    spark: "SparkSession", tmp_path: Path, seed: int
) -> None:
    rng = Random(seed)
    simple = (json_messages.SIMPLE, json_messages.QUICK)[seed % 2]
    columns = json_messages.schema(rng, simple=simple)
    schema = StructType.fromDDL(f"{columns}, {CORRUPT} STRING")
    assert isinstance(schema, StructType)
    kind = json.loads(StructType.fromDDL(columns).json())
    messages = [json_messages.message(rng, kind, rng.choice(ODD)) for _ in range(400)]
    (tmp_path / "lines.json").write_text("".join(f"{each}\n" for each in messages))
    read = spark.read.schema(schema).json(str(tmp_path / "lines.json"))
    wanted = [[*row.values()] for row in read.toArrow().to_pylist()]
    for message, want, got in zip(messages, wanted, rows(schema, *messages), strict=True):
        assert same(want, got), (columns, message, want, got)


@pytest.mark.spark
@pytest.mark.slow
def test_both_sources_make_the_columns_of_a_schema(
    spark: "SparkSession", hand: Hand, name: str, tmp_path: Path
) -> None:
    given = [{"id": n, "at": f"2026-01-01T00:00:{n % 60:02}Z", "in": {"x": [n]}} for n in range(99)]
    texts = [*map(json.dumps, given), '{"id":"none"}', "null", "7"]
    url = hand.make(name, f"[{','.join(texts)}]".encode())
    with Directory(tmp_path / "data") as made:
        made.create("/a")
        made.append("/a", *(each.encode() for each in texts))
    (tmp_path / "lines.json").write_text("\n".join(texts))
    schema = f"id LONG, at TIMESTAMP, in STRUCT<x: ARRAY<INT>>, {CORRUPT} STRING"
    wanted = spark.read.schema(schema).json(str(tmp_path / "lines.json")).collect()
    plan = spark.read.schema(schema)
    assert plan.format("durastream").load(url).collect() == wanted
    assert plan.format("durastream-segments").load(str(tmp_path / "data")).collect() == wanted
    query = (
        spark.readStream.schema(f"offset LONG, {schema}")
        .format("durastream")
        .option("mode", "DROPMALFORMED")
        .load(url)
        .writeStream.format("memory")
        .queryName("members")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = spark.sql("SELECT * FROM members ORDER BY offset").collect()
    assert [tuple(row)[1:] for row in found] == [tuple(row) for row in wanted[:99]]


# --- at once, or one by one ---


def test_one_odd_message_costs_its_neighbours_little(one_by_one: list[bytes]) -> None:
    messages = [f'{{"a":{n}}}' for n in range(5000)]
    messages[3333] = '{"a":"x"}'
    found = rows(of(a=LongType(), _corrupt_record=StringType()), *messages)
    assert [row for row in found if row[1] is not None] == [[None, '{"a":"x"}']]  # type: ignore[index]
    assert [row[0] for row in found] == [*range(3333), None, *range(3334, 5000)]  # type: ignore[index]
    assert len(one_by_one) <= 2 * FEW


def test_ordinary_messages_are_never_parsed_one_by_one(one_by_one: list[bytes]) -> None:
    schema = of(
        a=LongType(),
        d=DateType(),
        t=TimestampType(),
        n=DecimalType(9, 2),
        s=of(x=ArrayType(StringType())),
    )
    message = {"a": 1, "d": "2026-01-02", "t": "2026-01-02T03:04:05.6Z", "n": 1.5, "s": {"x": [""]}}
    local = {**message, "t": "2026-01-02 03:04:05"}
    assert len(rows(schema, *[json.dumps(message)] * 500)) == 500
    assert len(rows(schema, *[json.dumps(local)] * 500, "{}")) == 501
    assert not one_by_one


@pytest.mark.parametrize(
    "odd", ["null", "7", '"x"', "[1]", "true", '{"b":' + "[" * 99_999 + "]" * 99_999 + "}"]
)
def test_what_arrows_parser_could_not_bear_is_kept_from_it(odd: str) -> None:
    found = rows(of(a=LongType(), _corrupt_record=StringType()), '{"a":1}', odd, '{"a":2}')
    assert found == [[1, None], [None, odd], [2, None]]


def test_messages_of_other_streams_may_be_json_too_and_are_checked() -> None:
    maker = RowMaker(of(a=LongType(), _corrupt_record=StringType()), MemberOptions())
    texts = [b'{"a":1}', b'{"a":2}{"a":3}', b"", b'{"a":\n4}', b"\xff", b'{"a":NaN}', b'{"a":1']
    found = [
        row
        for batch in maker.rows("s", messages_of(texts, range(7), json=False))
        for row in batch.to_pylist()
    ]
    assert [row["a"] for row in found] == [1, None, None, 4, None, None, None]
    assert [row[CORRUPT] is None for row in found] == [True, False, False, True, *[False] * 3]


# --- what the options say ---


def test_malformed_messages_are_dropped_with_their_offsets() -> None:
    options = MemberOptions(DROPMALFORMED)
    schema = of(offset=LongType(), a=LongType(), value=StringType())
    messages = ['{"a":0}', "[]", '{"a":2}', '{"a":"x"}', '{"a":4}']
    assert rows(schema, *messages, options=options) == [
        [0, 0, '{"a":0}'],
        [2, 2, '{"a":2}'],
        [4, 4, '{"a":4}'],
    ]
    assert rows(schema, "[]", options=options) == []


def test_failfast_names_the_message() -> None:
    with pytest.raises(ContentError, match=r"s: message 1 does not fit .*'\{\"a\":\"x\"\}'.*PERM"):
        rows(of(a=LongType()), '{"a":0}', '{"a":"x"}', options=MemberOptions(FAILFAST))


def test_a_time_without_a_zone_is_in_that_of_the_option() -> None:
    def moment(zone: str, text: str) -> object:
        options = MemberOptions(zone=zone)
        return rows(of(a=TimestampType()), f'{{"a":"{text}"}}', options=options)

    summer = [[datetime(2026, 7, 1, 10, tzinfo=UTC)]]
    assert moment("Europe/Berlin", "2026-07-01T12:00:00") == summer
    assert moment("Europe/Berlin", "2026-07-01T10:00:00Z") == summer
    assert moment("UTC", "2026-07-01T10:00:00") == summer


def test_a_corrupt_record_has_a_column_of_any_name() -> None:
    options = MemberOptions(corrupt="bad")
    assert rows(of(a=LongType(), bad=StringType()), "[1]", options=options) == [[None, "[1]"]]
    assert rows(of(bad=StringType()), "[1]", "{}", options=options) == [["[1]"], [None]]

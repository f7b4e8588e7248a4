"""The source without a JVM: readers driven as Spark drives them, against a real server."""

import threading
import time
from collections import Counter
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from durastreamd.client import CutShortError, UnreachableError, client as client_module
from durastreamd.spark.errors import ContentError, DataLossError, OptionError
from durastreamd.spark.options import SourceOptions, parse
from durastreamd.spark.rows import ROWS_MAX
from durastreamd.spark.server.offsets import initial
from durastreamd.spark.server.source import StreamReader, schema_of
from tests.spark.driving import (
    BINARY,
    TEXT,
    Hand,
    batch_rows,
    batch_values,
    drain,
    overheard,
    replay,
    step,
    stream_reader,
)
from tests.support.patience import PATIENCE_S

reusing = settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])


TEXTS = StringType()


def of(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def texts(*numbers: int) -> list[str]:
    return [str(number) for number in numbers]


def count(up_to: int, start: int = 0) -> list[int]:
    return list(range(start, up_to))


# --- what is read ---


def test_a_stream_is_read_by_its_url_with_names_and_numbers(hand: Hand, name: str) -> None:
    url = hand.make(name, [{"a": 1}, [2]], "three")
    (rows,) = batch_rows(path=url)
    assert rows == [
        {"value": '{"a": 1}', "stream": name, "offset": 0},
        {"value": "[2]", "stream": name, "offset": 1},
        {"value": '"three"', "stream": name, "offset": 2},
    ]


def test_a_list_a_bucket_and_a_pattern_are_read(hand: Hand, name: str) -> None:
    hand.bucket(name)
    for number, each in enumerate(["run-1", "run-2", "other"]):
        hand.make(each, number, bucket=name)
        hand.make(f"{name}/{each}", number + 10)
    server = hand.server.url
    assert batch_values(url=server, subscribe=f"{name}/other, {name}/run-1") == ["12", "10"]
    assert batch_values(url=server, bucket=name) == ["2", "0", "1"]
    assert batch_values(url=server, bucket=name, subscribePattern="run-.") == ["0", "1"]
    assert batch_values(url=server, bucket=name, subscribe="run-2") == ["1"]
    assert batch_values(url=server, bucket=name, subscribePattern="run") == []


def test_messages_that_are_not_json_come_as_they_were_appended(hand: Hand, name: str) -> None:
    hand.make(f"{name}-t", b"one\ntwo\n", b"three", kind=TEXT)
    hand.make(f"{name}-b", b"\x00\xff", b"\x01", kind=BINARY)
    text, binary = hand.url(f"{name}-t"), hand.url(f"{name}-b")
    assert batch_values(path=text) == ["one\ntwo\n", "three"]
    assert batch_values(path=binary) == [b"\x00\xff", b"\x01"]
    (rows,) = batch_rows(path=text, lineSep="\n")
    assert [(row["value"], row["offset"]) for row in rows] == [("one", 0), ("two", 0), ("three", 1)]
    server = hand.server.url
    both = batch_values(url=server, subscribe=f"{name}-t,{name}-b")
    assert both == [b"\x00\xff", b"\x01", b"one\ntwo\n", b"three"]


def test_a_binary_stream_read_as_text_is_refused_by_its_type_and_by_its_bytes(
    hand: Hand, name: str
) -> None:
    hand.make(f"{name}-b", b"\xff", kind=BINARY)
    hand.make(f"{name}-t", b"\xff", kind=TEXT)
    with pytest.raises(ContentError, match=r"application/octet-stream, .* valueType=binary"):
        batch_values(path=hand.url(f"{name}-b"), valueType="string")
    with pytest.raises(ContentError, match=r"not UTF-8 text, .* valueType=binary"):
        batch_values(path=hand.url(f"{name}-t"))


def test_begin_and_end_are_given_by_offset_number_or_time(hand: Hand, name: str) -> None:
    url = hand.make(name)
    offsets = [hand.add(name, number) for number in range(5)]
    assert batch_values(path=url, startingOffsets=f'{{"{name}": "{offsets[1]}"}}') == texts(2, 3, 4)
    assert batch_values(path=url, startingOffsets=f'{{"{name}": 3}}') == texts(3, 4)
    assert batch_values(path=url, endingOffsets=f'{{"{name}": 2}}') == texts(0, 1)
    assert batch_values(path=url, endingOffsets=f'{{"{name}": "{offsets[0]}"}}') == texts(0)
    assert batch_values(path=url, startingOffsets="latest") == []
    assert batch_values(path=url, startingTimestamp="0") == texts(*range(5))
    later = int(time.time() * 1000) + 100_000
    assert batch_values(path=url, startingTimestamp=later) == []
    assert batch_values(path=url, endingTimestamp="2020-01-01T00:00:00Z") == []
    with pytest.raises(OptionError, match="lies before the beginning"):
        batch_values(path=url, startingOffsets="latest", endingOffsets=f'{{"{name}": 2}}')
    with pytest.raises(OptionError, match="'nonsense' is no offset"):
        batch_values(path=url, startingOffsets=f'{{"{name}": "nonsense"}}')


def test_a_large_range_is_cut_into_partitions_that_join_without_gap(hand: Hand, name: str) -> None:
    url = hand.make(name, [f"{number:04}" for number in range(1000)])
    for cut in ({"minPartitions": 7}, {"maxBytesPerPartition": 1300}):
        parts = batch_rows(path=url, **cut)
        assert len(parts) == 7
        assert all(130 < len(rows) < 160 for rows in parts)
        assert [row["offset"] for rows in parts for row in rows] == count(1000)
    assert len(batch_rows(path=url)) == 1
    assert len(batch_rows(path=hand.make(name + "-small", 1, 2), minPartitions=9)) == 2


def test_batches_of_rows_stay_small_in_rows_and_in_bytes(hand: Hand, name: str) -> None:
    url = hand.make(name, *[["x" * 300_000] * 10 for _ in range(6)], list(range(25_000)))
    reader = stream_reader(path=url)
    end = reader.latestOffset(initial(), ReadAllAvailable())
    (part,) = reader.partitions(initial(), end)
    sizes = [(batch.num_rows, batch.nbytes) for batch in reader.read(part)]
    assert sum(rows for rows, _ in sizes) == 25_060
    assert max(rows for rows, _ in sizes) <= ROWS_MAX
    assert max(size for _, size in sizes) < 20_000_000


# --- micro-batches ---


@given(limit=st.integers(1, 40), bodies=st.lists(st.integers(1, 12), min_size=1, max_size=8))
@reusing
def test_batches_respect_the_limit_and_hold_every_row_once_in_order(
    hand: Hand, limit: int, bodies: list[int]
) -> None:
    name = f"limits-{time.monotonic_ns()}"
    numbers = iter(range(1000))
    url = hand.make(name, *[[next(numbers) for _ in range(size)] for size in bodies])
    found = list(drain(stream_reader(path=url, maxOffsetsPerTrigger=limit, pollTimeoutMs=1)))
    assert [int(cast(str, value)) for each in found for value in each.values] == count(sum(bodies))
    assert all(len(each.rows) <= limit for each in found)
    assert len(found) == -(-sum(bodies) // limit)


def test_a_limit_of_bytes_holds_and_a_larger_message_still_passes(hand: Hand, name: str) -> None:
    url = hand.make(name, ["x" * 10] * 10, "y" * 500, ["z"] * 3)
    reader = stream_reader(path=url, maxBytesPerTrigger=100, pollTimeoutMs=1)
    sizes = [sum(len(str(value)) + 2 for value in each.values) for each in drain(reader)]
    assert [size > 100 for size in sizes] == [False, False, True, False]
    both = stream_reader(path=url, maxBytesPerTrigger=100, maxOffsetsPerTrigger=4, pollTimeoutMs=1)
    assert [len(each.rows) for each in drain(both)] == [4, 4, 2, 1, 3]


def test_limits_are_divided_over_streams_by_what_each_has(hand: Hand, name: str) -> None:
    hand.make(f"{name}-1", list(range(90)))
    hand.make(f"{name}-2", list(range(10)))
    reader = stream_reader(
        url=hand.server.url, subscribe=f"{name}-1,{name}-2", maxOffsetsPerTrigger=20
    )
    first = step(reader, initial())
    assert Counter(row["stream"] for row in first.rows) == {f"{name}-1": 18, f"{name}-2": 2}
    assert len(first.partitions) == 1, "small streams share a task"


def test_trigger_once_takes_everything(hand: Hand, name: str) -> None:
    url = hand.make(name, list(range(50)))
    reader = stream_reader(path=url, maxOffsetsPerTrigger=7)
    assert len(step(reader, initial(), ReadAllAvailable()).rows) == 50


def test_a_batch_waits_for_enough_rows_but_not_for_ever(hand: Hand, name: str) -> None:
    url = hand.make(name, [1, 2])
    given = {"minOffsetsPerTrigger": 3, "pollTimeoutMs": 1}
    reader = stream_reader(path=url, maxTriggerDelay="1h", **given)
    first = step(reader, initial())
    hand.add(name, [3, 4])
    assert step(reader, first.end).rows == []
    hand.add(name, 5)
    assert step(reader, first.end).values == texts(3, 4, 5)
    hasty = stream_reader(path=url, maxTriggerDelay="0ms", **given)
    assert step(hasty, first.end).values == texts(3, 4, 5)


def test_available_now_ends_where_the_streams_ended(hand: Hand, name: str) -> None:
    hand.bucket(name)
    hand.make("a", list(range(10)), bucket=name)
    reader = stream_reader(
        url=hand.server.url, bucket=name, maxOffsetsPerTrigger=4, pollTimeoutMs=60_000
    )
    reader.prepareForTriggerAvailableNow()
    hand.add("a", [99], bucket=name)
    hand.make("b", [99], bucket=name)
    assert [len(each.rows) for each in drain(reader)] == [4, 4, 2]


def test_new_streams_of_a_bucket_are_found_and_read_from_their_beginning(
    hand: Hand, name: str
) -> None:
    hand.bucket(name)
    hand.make("a", [1], bucket=name)
    reader = stream_reader(
        url=hand.server.url, bucket=name, startingOffsets="latest", pollTimeoutMs=1
    )
    first = step(reader, initial())
    assert first.rows == []
    hand.make("b", [2, 3], bucket=name)
    hand.add("a", 4, bucket=name)
    hand.make("empty", bucket=name)
    second = step(reader, first.end)
    assert second.values == texts(4, 2, 3)
    assert step(reader, second.end).end == second.end
    # The same rows after a restart, also for the stream that was new in this batch.
    hand.add("b", 5, bucket=name)
    again = stream_reader(url=hand.server.url, bucket=name, startingOffsets="latest")
    assert replay(again, first.end, second.end).values == texts(4, 2, 3)
    hand.add("empty", 6, bucket=name)
    assert step(again, second.end).values == texts(5, 6)


def test_latest_is_anchored_by_the_first_batch(hand: Hand, name: str) -> None:
    url = hand.make(name, [1, 2])
    reader = stream_reader(path=url, startingOffsets="latest")
    assert reader.initialOffset() == reader.initialOffset() == initial()
    end = reader.latestOffset(initial(), ReadAllAvailable())
    hand.add(name, 3)
    # Batch 0 was logged, not committed; the driver died and asks a new process.
    again = stream_reader(path=url, startingOffsets="latest")
    assert again.initialOffset() == initial()
    first = replay(again, initial(), end)
    assert first.rows == []
    assert step(again, first.end).values == texts(3)


@given(
    limit=st.integers(1, 9),
    parts=st.integers(0, 4),
    other=st.integers(0, 9),
    growth=st.integers(0, 5),
)
@reusing
def test_a_batch_reads_the_same_rows_in_the_same_partitions_when_it_runs_again(
    hand: Hand, limit: int, parts: int, other: int, growth: int
) -> None:
    name = f"replays-{time.monotonic_ns()}"
    url = hand.make(name, list(range(20)))
    reader = stream_reader(path=url, maxOffsetsPerTrigger=limit, minPartitions=parts)
    first = step(reader, initial())
    second = step(reader, first.end)
    hand.add(name, *range(growth))
    again = stream_reader(path=url, maxOffsetsPerTrigger=1 + other, minPartitions=other)
    assert replay(again, first.start, first.end) == first
    assert replay(again, second.start, second.end) == second


# --- waiting ---


def test_an_idle_query_waits_for_news_and_hears_it_at_once(hand: Hand, name: str) -> None:
    url = hand.make(name, [1])
    reader = stream_reader(path=url, pollTimeoutMs=int(2000 * PATIENCE_S))
    first = step(reader, initial())
    timer = threading.Timer(0.3, hand.add, (name, 2))
    timer.start()
    assert step(reader, first.end).values == texts(2)
    timer.join()
    reader.stop()


def test_an_idle_query_waits_as_long_as_it_may_and_asks_little(
    hand: Hand, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand.bucket(name)
    for each in range(5):
        hand.make(f"s{each}", [1], bucket=name)
    reader = stream_reader(url=hand.server.url, bucket=name, pollTimeoutMs=100)
    first = step(reader, initial())
    asked = overheard(monkeypatch)
    for _ in range(3):
        assert reader.latestOffset(first.end, ReadAllAvailable()) == first.end
    assert len(asked) == 6, "one listing before and one after each wait, no stream by itself"
    assert reader.reportLatestOffset() is not None
    reader.stop()


def test_a_closed_stream_is_not_waited_for_in_a_spin(
    hand: Hand, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = hand.make(name, [1])
    assert hand.http.post(url, headers={"Stream-Closed": "true"}).status_code == 204
    reader = stream_reader(path=url, pollTimeoutMs=150)
    first = step(reader, initial())
    asked = overheard(monkeypatch)
    assert step(reader, first.end).rows == []
    assert len(asked) <= 2, "one look before the wait and one after it"


# --- the way there ---


def test_a_connection_lost_in_the_midst_is_taken_up_where_it_broke(
    hand: Hand, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = hand.make(name, *[list(range(at, at + 1000)) for at in range(0, 10_000, 1000)])
    pieces = client_module.Body.pieces
    broken = 0

    def breaking(self: client_module.Body, size: int = 5000) -> object:
        nonlocal broken
        for number, piece in enumerate(pieces(self, 5000)):
            if number == 3 + broken and broken < 4:
                broken += 1
                message = "reset"
                raise CutShortError(message)
            yield piece

    monkeypatch.setattr(client_module.Body, "pieces", breaking)
    assert batch_values(path=url, retryIntervalMs=1) == texts(*range(10_000))
    assert broken == 4


def test_nobody_there_is_one_clear_error_at_load() -> None:
    options = parse(
        SourceOptions, {"path": "http://127.0.0.1:9/v1/stream/a", "retryTimeoutMs": "0"}
    )
    with pytest.raises(UnreachableError, match=r"no answer from http://127.0.0.1:9 "):
        schema_of(options)


def test_a_missing_stream_is_one_clear_error(hand: Hand, name: str) -> None:
    with pytest.raises(DataLossError, match=f"Stream {name} is not there"):
        batch_values(path=hand.url(name))


@pytest.mark.parametrize(
    "schema",
    [of(value=TEXTS), of(offset=LongType(), value=BinaryType()), of(stream=TEXTS)],
    ids=str,
)
def test_a_choice_of_columns_is_a_schema(hand: Hand, name: str, schema: StructType) -> None:
    url = hand.make(name, [1])
    reader = StreamReader(parse(SourceOptions, {"path": url}), schema)
    done = step(reader, initial())
    assert [[*row] for row in done.rows] == [schema.fieldNames()]


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        (of(value=LongType()), r"value of format durastream is string or binary, not bigint"),
        (of(value=TEXTS, snapshot=BooleanType()), "snapshot goes with onSnapshot=restart"),
        (of(offset=TEXTS), r"get_json_object\(value, '\$\.offset'\)"),
        (StructType([StructField("value", TEXTS, nullable=False)]), "may lack anything"),
        (of(a=ArrayType(LongType(), containsNull=False)), "a array<bigint> nullable, throughout"),
        (of(a=MapType(LongType(), TEXTS)), "does not parse map<bigint,string>, .*as string"),
        (of(a=ArrayType(of(b=VariantType()))), "does not parse variant"),
        (of(_corrupt_record=LongType()), "keeps malformed messages, so it is a string"),
    ],
    ids=lambda each: str(each)[:40],
)
def test_a_schema_that_does_not_fit_is_one_clear_error(schema: StructType, told: str) -> None:
    options = parse(SourceOptions, {"path": "http://127.0.0.1:9/v1/stream/a"})
    with pytest.raises(OptionError, match=told):
        StreamReader(options, schema)

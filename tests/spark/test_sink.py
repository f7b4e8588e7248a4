"""The sink without a JVM: producers and chunks, written twice, refused, made to wait."""

import datetime as dt
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from durastreamd.client import UnreachableError
from durastreamd.spark.errors import OptionError, SinkError
from durastreamd.spark.options import SinkOptions, parse
from durastreamd.spark.server import appends
from durastreamd.spark.server.appends import SinkProducer, Written
from durastreamd.spark.server.format import DurastreamSource
from durastreamd.spark.server.sink import BatchSinkWriter, StreamSinkWriter, WriteTask
from tests.spark.driving import BINARY, TEXT, Hand, batch_values
from tests.spark.writing import BOTH, VALUE, batches, options, rows_of, run, task
from tests.support.daemon import Daemon
from tests.support.plain_server import Scripted, plain_server


def write(
    made: SinkOptions,
    rows: list[dict[str, object]],
    producer: SinkProducer,
    schema: StructType = VALUE,
) -> Written:
    return WriteTask(made, schema).append(batches(rows), producer, Written(0))


# --- once ---


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=12),
    limit=st.integers(1, 200),
    reached=st.integers(0, 12),
)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_batch_written_again_after_it_broke_off_anywhere_is_there_once(
    hand: Hand, sizes: list[int], limit: int, reached: int
) -> None:
    name = f"once-{hash((tuple(sizes), limit, reached)) & 0xFFFFFFFFFFFF:x}"
    hand.http.delete(hand.url(name))
    hand.make(name)
    made = options(hand, stream=name, maxAppendBytes=limit)
    rows = rows_of(*[f'"{number:02}{"x" * size}"' for number, size in enumerate(sizes)])
    for epoch in range(2):
        producer = SinkProducer("query.0", epoch)
        task = WriteTask(made, VALUE)
        appender = appends.Appender(made, task.settings, producer)
        # The task dies after some rows were taken, perhaps appended; its successor sends all.
        appender.add(name, [str(row["value"]).encode() for row in rows[:reached]], Written(0))
        done = write(made, rows, producer)
        assert done.streams == {name: len(rows)}
        again = write(made, rows, producer)
        assert again.repeated == again.appends == done.appends
    texts = [str(row["value"]).strip('"') for row in rows]
    assert hand.values(name) == texts * 2


def test_a_small_partition_is_one_append_so_its_order_does_not_matter(
    hand: Hand, name: str
) -> None:
    hand.make(name)
    made = options(hand, stream=name)
    first = write(made, rows_of("1", "2", "3"), SinkProducer("q.0", 0))
    assert (first.appends, first.repeated) == (1, 0)
    second = write(made, rows_of("3", "1", "2"), SinkProducer("q.0", 0))
    assert (second.appends, second.repeated) == (1, 1)
    assert hand.values(name) == [1, 2, 3]


def test_skipped_batches_are_no_gap_and_a_zombie_is_fenced(hand: Hand, name: str) -> None:
    hand.make(name)
    made = options(hand, stream=name)
    for epoch in (0, 1, 5):
        write(made, rows_of(str(epoch)), SinkProducer("q.0", epoch))
    with pytest.raises(SinkError, match=r"403 .*\(STALE_EPOCH\): .* stop one of them"):
        write(made, rows_of("666"), SinkProducer("q.0", 3))
    assert hand.values(name) == [0, 1, 5]


def test_another_number_of_chunks_on_the_second_run_is_noticed(hand: Hand, name: str) -> None:
    hand.make(name)
    small = options(hand, stream=name, maxAppendBytes=4)
    with pytest.raises(SinkError, match=r"409 .*\(SEQUENCE_GAP\): .* commitMode=driver"):
        appender = appends.Appender(small, small.client_settings(), SinkProducer("q.0", 0))
        appender._target(name).seq = 2
        appender.add(name, [b"1"], Written(0))
        appender._append(appender._target(name), Written(0))


# --- what is written where ---


def test_rows_go_to_the_stream_they_name_in_their_order(hand: Hand, name: str) -> None:
    rows: list[dict[str, object]] = [
        {"stream": f"{name}-{n % 3}", "value": str(n)} for n in range(20)
    ]
    made = options(hand, createStreams="true")
    write(made, rows, SinkProducer("q.0", 0), BOTH)
    for rest in range(3):
        assert hand.values(f"{name}-{rest}") == [n for n in range(20) if n % 3 == rest]


def test_streams_of_a_bucket_are_written_by_their_names(hand: Hand, name: str) -> None:
    hand.bucket(name)
    made = options(hand, bucket=name, createStreams="true")
    write(made, rows_of("1", stream="a b"), SinkProducer("q.0", 0), BOTH)
    assert hand.values("a%20b", bucket=name) == [1]


def test_columns_become_json_objects(hand: Hand, name: str) -> None:
    hand.make(name)
    schema = StructType([StructField("stream", StringType()), StructField("n", LongType())])
    row = {
        "stream": name,
        "n": 1,
        "none": None,
        "day": dt.date(2030, 1, 31),
        "deep": {"list": ["\u00e9", None], "none": None, "in": {"none": None}},
        "raw": b"\x00\xff",
    }
    write(options(hand), [row], SinkProducer("q.0", 0), schema)
    assert hand.values(name) == [
        {"n": 1, "day": "2030-01-31", "deep": {"list": ["\u00e9", None], "in": {}}, "raw": "AP8="}
    ]
    with pytest.raises(SinkError, match="no NaN"):
        write(options(hand), [{"stream": name, "n": float("nan")}], SinkProducer("q.0", 1), schema)


@pytest.mark.parametrize(
    "kind",
    [
        MapType(StringType(), LongType()),
        DecimalType(9, 2),
        TimestampType(),
        ArrayType(StructType([StructField("at", TimestampNTZType())])),
    ],
    ids=str,
)
def test_columns_that_only_spark_writes_as_spark_does_are_refused(kind: DataType) -> None:
    made = parse(SinkOptions, {"url": "http://127.0.0.1:9", "stream": "a"})
    with pytest.raises(OptionError, match=r"column odd has the type .*to_json\(struct\(\*\)\)"):
        WriteTask(made, StructType([StructField("odd", kind)]))
    WriteTask(made, StructType([StructField("odd", kind), *VALUE.fields]))


def test_text_and_binary_rows_are_messages_and_read_back_as_they_were(
    hand: Hand, name: str
) -> None:
    for kind, values in ((TEXT, ["one\ntwo", "three"]), (BINARY, [b"\x00\xff", b"\n"])):
        each = f"{name}-{kind['Content-Type'][:4]}"
        url = hand.make(each, kind=kind)
        write(options(hand, stream=each), rows_of(*values), SinkProducer("q.0", 0))
        assert batch_values(path=url) == values
    lines = f"{name}-lines"
    url = hand.make(lines, kind=TEXT)
    made = options(hand, stream=lines, lineSep="\n")
    done = write(made, rows_of("one", "", "two"), SinkProducer("q.0", 0))
    assert done.appends == 1
    assert batch_values(path=url, lineSep="\n") == ["one", "", "two"]
    with pytest.raises(SinkError, match="holds lineSep and would be read as two"):
        write(made, rows_of("a\nb"), SinkProducer("q.0", 1))


# --- refusals ---


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize(
    "values", [["1,2"], [""], ["{"], ['{"a":1}]'], ["nonsense"], ['{"a":1', '"b":2},3']]
)
def test_a_value_that_is_not_one_json_text_is_refused_before_it_is_sent(
    hand: Hand, name: str, values: list[str], monkeypatch: pytest.MonkeyPatch, *, quick: bool
) -> None:
    if not quick:
        monkeypatch.setattr(appends, "_ELEMENTS", None)
    hand.make(name)
    with pytest.raises(SinkError, match=r"holds JSON and a row's value is none"):
        write(options(hand, stream=name), rows_of("1", *values), SinkProducer("q.0", 0))
    write(options(hand, stream=name), rows_of(" 1 ", "[2]\n"), SinkProducer("q.0", 0))
    assert hand.values(name) == [1, [2]]


def test_nulls_are_refused(hand: Hand, name: str) -> None:
    hand.make(name)
    with pytest.raises(SinkError, match="the column value is null"):
        write(options(hand, stream=name), rows_of("1", None), SinkProducer("q.0", 0))
    rows: list[dict[str, object]] = [
        {"stream": name, "value": "1"},
        {"stream": None, "value": "2"},
    ]
    with pytest.raises(SinkError, match="the column stream is null"):
        write(options(hand), rows, SinkProducer("q.0", 0), BOTH)


def test_streams_that_are_missing_closed_or_of_another_type_are_told_apart(
    hand: Hand, name: str
) -> None:
    producer = SinkProducer("q.0", 0)
    with pytest.raises(SinkError, match="set createStreams=true"):
        write(options(hand, stream=name), rows_of("1"), producer)
    hand.make(name)
    with pytest.raises(SinkError, match="holds application/json; option contentType says text"):
        write(options(hand, stream=name, contentType="text/plain"), rows_of("1"), producer)
    assert hand.http.post(hand.url(name), headers={"Stream-Closed": "true"}).status_code == 204
    with pytest.raises(SinkError, match=r"409 STREAM_CLOSED: .*must go to another stream"):
        write(options(hand, stream=name), rows_of("1"), producer)


def test_an_append_that_is_too_large_is_told_although_it_was_not_all_sent(tmp_path: Path) -> None:
    with Daemon(tmp_path, settings={"writes.append_bytes_max": 100_000}) as daemon:
        said = {"url": daemon.url, "stream": "a", "createStreams": "true", "retryTimeoutMs": "2000"}
        made = parse(SinkOptions, {**said, "maxAppendBytes": "100000000"})
        with pytest.raises(SinkError, match=r"413 PAYLOAD_TOO_LARGE: .* Lower maxAppendBytes"):
            write(made, rows_of('"' + "x" * 20_000_000 + '"'), SinkProducer("q.0", 0))


def test_a_busy_server_is_waited_for_and_a_dead_one_is_told() -> None:
    head = Scripted(200, {"Content-Type": "application/json"})
    with plain_server() as server:
        said = {"url": server.url, "stream": "a", "retryIntervalMs": "1"}
        made = parse(SinkOptions, said)
        server.script += [head, *[Scripted(503)] * 3, Scripted(429), Scripted(0), Scripted(200)]
        done = write(made, rows_of("1"), SinkProducer("q.0", 0))
        assert (done.appends, done.repeated) == (1, 0)
        posts = [headers for method, _, headers in server.seen if method == "POST"]
        assert len(posts) == 6
        assert {each["producer-seq"] for each in posts} == {"0"}
    dead = parse(SinkOptions, {**said, "retryTimeoutMs": "0"})
    with pytest.raises(UnreachableError, match="no answer from"):
        write(dead, rows_of("1"), SinkProducer("q.0", 0))


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ([], "Say where to write"),
        (["value"], "Say where to write"),
        (["stream"], "nothing to write"),
    ],
)
def test_rows_that_say_too_little_are_refused(hand: Hand, columns: list[str], told: str) -> None:
    schema = StructType([StructField(name, StringType()) for name in columns])
    with pytest.raises(OptionError, match=told):
        BatchSinkWriter(options(hand), schema)
    numbers = StructType([StructField("value", LongType())])
    with pytest.raises(OptionError, match="string or binary, not bigint; use to_json"):
        BatchSinkWriter(options(hand, stream="a"), numbers)
    with pytest.raises(OptionError, match="column stream is a string"):
        BatchSinkWriter(options(hand), StructType([StructField("stream", LongType())]))


def test_modes_and_options_that_a_sink_does_not_have_are_refused(hand: Hand) -> None:
    source = DurastreamSource({"url": hand.server.url, "stream": "a"})
    with pytest.raises(OptionError, match="Streams only grow"):
        source.writer(VALUE, overwrite=True)
    with pytest.raises(OptionError, match="Streams only grow"):
        source.streamWriter(schema=VALUE, overwrite=True)
    with pytest.raises(OptionError, match="txnAppId is for batch jobs"):
        StreamSinkWriter(options(hand, stream="a", txnAppId="x", txnVersion=1), VALUE)
    with pytest.raises(OptionError, match="closeOnFinish is for batch jobs"):
        StreamSinkWriter(options(hand, stream="a", closeOnFinish="true"), VALUE)


# --- writers, with a task's context in place of Spark's ---


def test_a_streaming_query_needs_to_know_its_batch(
    hand: Hand, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand.make(name)
    writer = StreamSinkWriter(options(hand, stream=name), VALUE)
    with task(monkeypatch, 0, None), pytest.raises(SinkError, match="exactly once needs both"):
        writer.write(batches(rows_of("1")))


def test_a_query_writes_each_batch_of_each_partition_once(
    hand: Hand, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand.make(name)
    writer = StreamSinkWriter(options(hand, stream=name, commitMode="partition"), VALUE)
    for batch in (1, 2, 2):
        for partition in (1, 2):
            with task(monkeypatch, partition, batch):
                writer.write(batches(rows_of(f"{batch}{partition}")))
    assert hand.values(name) == [11, 12, 21, 22]


@pytest.mark.parametrize("mode", ["partition", "driver"])
def test_a_batch_job_repeated_under_its_name_and_version_writes_once(
    hand: Hand, name: str, mode: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hand.make(name)
    report = tmp_path / "report"
    job = {"stream": name, "txnAppId": name, "commitMode": mode, "reportFile": report}
    for version, expected in ((3, [1, 2]), (3, [1, 2]), (4, [1, 2, 1, 2])):
        writer = BatchSinkWriter(options(hand, txnVersion=version, **job), VALUE)
        writer.commit([*run(monkeypatch, writer, [["1", "2"]])])
        assert hand.values(name) == expected
    told = [json.loads(line) for line in report.read_text().splitlines()]
    assert [(each["rows"], each["recognised"]) for each in told] == [(2, 0), (2, 2), (2, 0)]
    for _ in range(2):
        writer = BatchSinkWriter(options(hand, stream=name, commitMode=mode), VALUE)
        writer.commit([*run(monkeypatch, writer, [["9"]])])
    assert hand.values(name)[4:] == [9, 9], "another job without a name is another job"


@pytest.mark.parametrize("mode", ["partition", "driver"])
def test_a_batch_job_closes_what_it_wrote(
    hand: Hand, name: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = hand.make(name)
    made = options(hand, stream=name, closeOnFinish="true", commitMode=mode)
    writer = BatchSinkWriter(made, VALUE)
    with task(monkeypatch, 0, None):
        message = writer.write(batches(rows_of("1")))
    writer.commit([message])
    assert hand.http.head(url).headers["stream-closed"] == "true"
    assert hand.values(name) == [1]

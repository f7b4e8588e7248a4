"""The segments source without a JVM: every committed row once, in order, and damage named."""

import json
import re
import shutil
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from durastreamd.errors import CorruptDataError, DataDirectoryError, DurastreamError
from durastreamd.spark.errors import ContentError, OptionError
from durastreamd.spark.options import parse
from durastreamd.spark.segments.options import SegmentOptions
from durastreamd.spark.segments.plan import Extent, Journalled, size_of
from durastreamd.spark.segments.read import Losses
from durastreamd.spark.segments.source import SegmentPartition, SegmentReader, SegmentSource
from durastreamd.storage import journal
from durastreamd.storage.disk import Disk
from tests.spark.directories import BINARY, JSON, TEXT, Directory, planned, rows_in, rows_of

SCHEMA = StructType(
    [
        StructField("value", StringType()),
        StructField("stream", StringType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
    ]
)
ITEMS = [b'{"n":%d,"t":"%s"}' % (n, b"x" * (n % 37)) for n in range(60)]


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path / "data", segment_bytes_max=400, state_every_bytes=300)


def filled(directory: Directory, count: int = 40) -> Directory:
    """A JSON stream of many segments, its last records in the journal alone."""
    directory.create("/orders")
    for number in range(0, count, 2):
        directory.append("/orders", ITEMS[number], ITEMS[number + 1])
        if number % 6 == 4:
            directory.checkpoint()
    return directory


# --- what is read ---

KEYS = ("/json", "/text", "logs/bin")
STREAM = st.integers(0, 7)  # of those there are by then, forks and their forks included
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), STREAM, st.integers(1, 5)),
        st.tuples(st.just("checkpoint"), st.just(0), st.just(0)),
        st.tuples(st.just("fork"), STREAM, st.integers(0, 9)),
        st.tuples(st.just("snapshot"), STREAM, st.integers(0, 9)),
    ),
    max_size=30,
)


@settings(max_examples=60)
@given(STEPS, st.integers(1, 600))
def test_every_committed_row_is_read_once_and_in_order(
    steps: list[tuple[str, int, int]], piece_bytes: int
) -> None:
    home = Path(tempfile.mkdtemp())
    made = Directory(home / "data", segment_bytes_max=120, state_every_bytes=200)
    made.bucket("logs")
    for key, kind in zip(KEYS, (JSON, TEXT, BINARY), strict=True):
        made.create(key, kind)
    try:
        for number, (step, which, count) in enumerate(steps):
            key = list(made.expected)[which % len(made.expected)]
            rows = made.expected[key]
            if step == "append":
                made.append(key, *(ITEMS[(number + n) % 60] for n in range(count)))
            elif step == "checkpoint":
                made.checkpoint()
            elif step == "fork":
                made.fork(f"/fork{number}", key, min(count, len(rows)))
            elif rows and made.engine.namespace.by_key[key].snapshot is None:
                made.snapshot(key, made.ends[key, rows[min(count, len(rows) - 1)].offset])
        assert rows_of(made.root, maxBytesPerPartition=piece_bytes) == made.rows()
    finally:
        made.release()
        shutil.rmtree(home)


def test_large_segments_are_split_on_records_and_small_streams_share_a_task(
    tmp_path: Path,
) -> None:
    made = Directory(tmp_path / "data")
    made.create("/large")
    for number in range(200):
        made.append("/large", ITEMS[number % 60])
    for number in range(50):
        made.create(f"/small{number:02}")
        made.append(f"/small{number:02}", b"1")
    made.checkpoint()
    tasks = planned(made.root, maxBytesPerPartition=1000)
    sizes = [sum(map(size_of, task)) for task in tasks]
    total = sum(sizes)
    assert len(tasks) == pytest.approx(total / 1000, rel=0.3)
    assert max(sizes) < 1200
    assert rows_of(made.root, maxBytesPerPartition=1000) == made.rows()
    assert len(planned(made.root, minPartitions=7)) == pytest.approx(7, abs=2)
    assert len(planned(made.root)) == 1


def test_records_of_the_journal_are_part_of_it(directory: Directory) -> None:
    filled(directory)
    pieces = [piece for task in planned(directory.root) for piece in task]
    assert any(isinstance(piece, Journalled) for piece in pieces)
    assert rows_of(directory.root) == directory.rows()


def test_a_torn_end_of_the_journal_is_not(directory: Directory) -> None:
    filled(directory)
    newest = max(directory.root.glob("journal/*.jnl"))
    directory.release()
    newest.write_bytes(newest.read_bytes()[:-1])
    assert rows_of(directory.root)["orders"] == directory.rows()["orders"][:-2]


def test_a_plan_stays_good_when_a_checkpoint_moves_the_journal_to_segments(
    directory: Directory,
) -> None:
    tasks = planned(filled(directory).root)
    directory.append("/orders", b"7")
    directory.checkpoint()
    rows = [row for task in tasks for row in rows_in(directory.root, iter(task))]
    assert rows == directory.rows()["orders"][:-1]


def test_a_directory_that_changes_under_the_plan_is_looked_at_again(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(directory)
    read = journal.read_journal_file
    numbers: list[int] = []

    def busy(disk: Disk, uuid: bytes, number: int) -> journal.JournalFile:
        if not numbers:  # the server begins a new journal file while the old one is being read
            directory.engine.journal.rotate()
        elif len(numbers) < 3:  # or takes a checkpoint
            directory.append("/orders", b"7")
            directory.checkpoint()
        numbers.append(number)
        return read(disk, uuid, number)

    monkeypatch.setattr(journal, "read_journal_file", busy)
    assert rows_of(directory.root) == directory.rows()
    assert len(numbers) > 3


def test_nothing_in_the_directory_changes(directory: Directory) -> None:
    filled(directory)
    before = {path: path.read_bytes() for path in directory.root.rglob("*") if path.is_file()}
    rows_of(directory.root)
    assert before == {p: p.read_bytes() for p in directory.root.rglob("*") if p.is_file()}


def test_offsets_and_timestamps_bound_a_read(directory: Directory) -> None:
    rows = filled(directory).rows()["orders"]
    for low in range(0, len(rows), 7):
        start = json.dumps({"orders": rows[low].offset + 1})
        end = json.dumps({"orders": f"{directory.ends['/orders', rows[-3].offset]:016d}"})
        found = rows_of(directory.root, startingOffsets=start, endingOffsets=end)
        assert found.get("orders", []) == rows[low + 1 : -2]
        since, until = rows[low].time_ms, rows[-3].time_ms
        told = datetime.fromtimestamp(until / 1000, UTC).isoformat()
        found = rows_of(directory.root, startingTimestamp=since, endingTimestamp=told)
        wanted = [row for row in rows if since <= row.time_ms < until]
        assert found.get("orders", []) == wanted


def test_streams_are_chosen_by_name_pattern_or_bucket(tmp_path: Path) -> None:
    with Directory(tmp_path / "data") as made:
        made.bucket("logs")
        for key in ("/a", "/deep/b", "logs/c", "logs/d"):
            made.create(key)
            made.append(key, b"1")
        assert set(rows_of(made.root)) == {"a", "deep/b", "/logs/c", "/logs/d"}
        assert set(rows_of(made.root, subscribe="a, deep/b,/logs/c")) == {"a", "deep/b", "/logs/c"}
        assert set(rows_of(made.root, subscribePattern="/logs/.*|a")) == {"/logs/c", "/logs/d", "a"}
        assert set(rows_of(made.root, subscribePattern="/logs/")) == set()
        assert set(rows_of(made.root, bucket="logs")) == {"c", "d"}
        assert set(rows_of(made.root, bucket="logs", subscribe="c")) == {"c"}
        assert set(rows_of(made.root, bucket="logs", subscribePattern="[d-z]")) == {"d"}


def test_text_that_is_none_is_named(tmp_path: Path) -> None:
    with Directory(tmp_path / "data") as made:
        made.create("/text", TEXT)
        made.append("/text", "grün".encode(), b"\xff")
        with pytest.raises(
            ContentError, match="text holds bytes that are not UTF-8 text, between messages 0 and 1"
        ):
            list(_reader(made.root).read(SegmentPartition(planned(made.root)[0])))
        assert [row.value for row in rows_of(made.root)["text"]] == ["grün".encode(), b"\xff"]


def _reader(root: Path, **options: str) -> SegmentReader:
    return SegmentReader(SCHEMA, parse(SegmentOptions, {"path": str(root), **options}))


# --- damage ---


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def test_a_damaged_record_fails_the_read_or_is_left_out(directory: Directory) -> None:
    rows = filled(directory).rows()["orders"]
    segment = directory.file("/orders", ".log", 1)
    flip(segment, 30)
    where = re.escape(f"{segment.relative_to(directory.root)}:0: record")
    with pytest.raises(CorruptDataError, match=rf"{where} .* of stream 'orders' are lost"):
        rows_of(directory.root)
    losses = Losses(fail=False)
    found = rows_of(directory.root, losses, failOnDataLoss="false")["orders"]
    (loss,) = losses.found
    lost = directory.lost("/orders", [loss])
    assert 1 <= len(lost) <= 4
    assert found == [row for row in rows if row not in lost]


HARMS: dict[str, Callable[[bytearray, bytes], None]] = {
    "flipped": lambda data, _: data.__setitem__(-30, data[-30] ^ 1),
    "zeroed": lambda data, _: data.__setitem__(slice(-60, -20), bytes(40)),
    "another stream's": lambda data, other: data.__setitem__(slice(None), other),
    "short": lambda data, _: data.__delitem__(slice(-20, None)),
}


@pytest.mark.parametrize("suffix", [".log", ".idx"])
@pytest.mark.parametrize("harm", HARMS)
def test_the_source_refuses_rot_at_rest(directory: Directory, harm: str, suffix: str) -> None:
    """As Spark runs it: what comes before the error is true, and the error says where it is."""
    filled(directory).create("/other")
    for number in range(0, 40, 2):
        directory.append("/other", ITEMS[-number - 1], ITEMS[-number - 2])
        if number % 6 == 4:
            directory.checkpoint()
    expected = [row.offset for row in directory.rows()["orders"]]
    path = directory.file("/orders", suffix, 1)  # at rest: others come after it
    data = bytearray(path.read_bytes())
    HARMS[harm](data, directory.file("/other", suffix, 1).read_bytes())
    path.write_bytes(data)
    read = 0
    reader = _reader(directory.root, subscribe="orders")
    where = re.escape(str(path.relative_to(directory.root).parent))
    with pytest.raises(
        CorruptDataError, match=rf"{where}/\d+\.(log|idx):\d+: .* 'orders' are lost"
    ):
        for partition in reader.partitions():
            for batch in reader.read(partition):
                offsets = batch.column("offset").to_pylist()  # type: ignore[attr-defined]
                assert offsets == expected[read : read + len(offsets)]
                read += len(offsets)
    assert read < len(expected)
    other = _reader(directory.root, subscribe="other")
    whole = [batch for part in other.partitions() for batch in other.read(part)]
    rows = sum(batch.num_rows for batch in whole)  # type: ignore[attr-defined]
    assert rows == len(directory.rows()["other"])


def test_every_flipped_bit_of_a_segment_and_its_index_is_seen_or_harmless(
    directory: Directory,
) -> None:
    directory.create("/orders")
    for number in range(3):
        directory.append("/orders", ITEMS[number])
    directory.checkpoint()
    rows = directory.rows()["orders"]
    for suffix in (".log", ".idx"):
        path = directory.file("/orders", suffix)
        whole = path.read_bytes()
        for at in range(len(whole)):
            flip(path, at)
            losses = Losses(fail=False)
            found = rows_of(directory.root, losses, failOnDataLoss="false").get("orders", [])
            path.write_bytes(whole)
            assert set(found) <= set(rows), (suffix, at)
            assert found == rows or losses.found, (suffix, at)
            lost = set(directory.lost("/orders", losses.found))
            assert set(found) | lost == set(rows), (suffix, at)


@pytest.mark.parametrize("suffix", [".log", ".idx"])
def test_a_missing_file_is_named(directory: Directory, suffix: str) -> None:
    rows = filled(directory).rows()["orders"]
    path = directory.file("/orders", suffix, 1)
    path.unlink()
    with pytest.raises(CorruptDataError, match=re.escape(str(path.relative_to(directory.root)))):
        rows_of(directory.root)
    losses = Losses(fail=False)
    found = rows_of(directory.root, losses, failOnDataLoss="false")["orders"]
    lost = set(directory.lost("/orders", losses.found))
    assert lost
    assert set(found) == set(rows) - lost


def test_checksums_may_be_left_alone(directory: Directory) -> None:
    filled(directory)
    flip(directory.file("/orders", ".log", 1), 30)
    found = [
        row
        for task in planned(directory.root)
        for row in rows_in(directory.root, iter(task), verify=False)
    ]
    assert len(found) == len(directory.rows()["orders"])


def test_what_was_left_out_is_reported_in_a_file(directory: Directory, tmp_path: Path) -> None:
    filled(directory)
    flip(directory.file("/orders", ".log", 1), 30)
    bad = tmp_path / "bad"
    reader = _reader(directory.root, failOnDataLoss="false", badRecordsPath=str(bad))
    for _ in range(2):  # a task that is run again reports once
        for partition in reader.partitions():
            list(reader.read(partition))
    (report,) = bad.iterdir()
    (line,) = report.read_text().splitlines()
    assert json.loads(line)["stream"] == "orders"


def test_a_damaged_stream_fails_the_plan_or_is_left_out(directory: Directory) -> None:
    filled(directory).create("/other")
    directory.append("/other", b"1")
    path = directory.file("/orders", ".idx", -1)
    path.write_bytes(path.read_bytes()[:-50])  # what the catalogue says is durable is not there
    with pytest.raises(DurastreamError, match=r"'orders' is damaged: .*\.idx"):
        planned(directory.root)
    found = rows_of(directory.root, failOnDataLoss="false")
    assert found == {"other": directory.rows()["other"]}


# --- errors of the user ---


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"offset": "1"}, "offset is no option of format durastream-segments"),
        ({"subscribe": "a", "subscribePattern": "b"}, "subscribe and subscribePattern exclude"),
        ({"path": ""}, "Which data directory?"),
        ({"subscribePattern": "("}, "subscribePattern is not a regular expression"),
        ({"startingOffsets": "now"}, "startingOffsets is earliest or JSON"),
        ({"endingOffsets": '{"a": 1.5}'}, "endingOffsets is latest or JSON"),
        (
            {"startingTimestamp": "yesterday"},
            "is ms since 1970, or RFC 3339 with a time zone, not 'yesterday'",
        ),
        ({"valueType": "json"}, "valueType is one of auto, string, binary, not 'json'"),
        ({"verifyChecksums": "maybe"}, "verifyChecksums is true or false, not 'maybe'"),
        (
            {"maxBytesPerPartition": "0"},
            "maxBytesPerPartition is a whole number, at least 1, not '0'",
        ),
        ({"subscribe": "orders,none"}, "there is no stream 'none' in"),
        ({"bucket": "none"}, "there is no bucket 'none' in"),
        ({"startingOffsets": '{"orders": "0000000000000003"}'}, "is no offset of stream 'orders'"),
        ({"startingOffsets": '{"orders": "9000000000000003"}'}, "is no offset of stream 'orders'"),
        ({"startingOffsets": '{"orders": 5}'}, "5 is no offset of stream 'orders', which is there"),
        ({"subscribe": "bytes", "valueType": "string"}, "is application/octet-stream, which is"),
    ],
)
def test_a_wrong_option_is_named(directory: Directory, options: dict[str, str], says: str) -> None:
    filled(directory, 4).create("/bytes", BINARY)
    directory.append("/bytes", b"\xff")
    with pytest.raises(OptionError, match=re.escape(says)):
        planned(directory.root, **options)


def test_a_wrong_directory_is_named(tmp_path: Path) -> None:
    def columns(path: Path) -> object:
        return SegmentSource({"path": str(path)}).schema()

    with pytest.raises(DataDirectoryError, match="nowhere is not a directory on this machine"):
        columns(tmp_path / "nowhere")
    with pytest.raises(DataDirectoryError, match="no durastreamd data directory here"):
        columns(tmp_path)
    Directory(tmp_path / "data").release()
    assert columns(tmp_path / "data") == (
        "value STRING, stream STRING, offset LONG, timestamp TIMESTAMP"
    )
    with Directory(tmp_path / "data") as made:
        made.create("/bytes", BINARY)
    assert str(columns(tmp_path / "data")).startswith("value BINARY")
    identity = tmp_path / "data" / "DURASTREAMD"
    identity.write_text(identity.read_text().replace("format 1", "format 9"))
    with pytest.raises(DataDirectoryError, match="has format 9, this durastreamd reads format 1"):
        columns(tmp_path / "data")


def test_an_empty_plan_reads_nothing(tmp_path: Path) -> None:
    with Directory(tmp_path / "data") as made:
        assert planned(made.root) == []
        assert list(_reader(made.root).read(InputPartition(None))) == []


def test_extents_name_bytes_and_hold_none() -> None:
    assert all(kind in (str, int, bool) for kind in Extent.__annotations__.values())

"""The jobs as a user runs them: a command line, a summary, an exit status."""

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from durastreamd.kit.console import Console
from durastreamd.kit.status import CORRUPT, INTERRUPTED, NO_INPUT, OK, USAGE
from durastreamd.spark import cli
from durastreamd.spark.jobs import export
from durastreamd.spark.jobs.compact import Compaction
from durastreamd.spark.server.places import StreamInfo
from tests.spark.directories import Directory
from tests.spark.test_segments import ITEMS, flip
from tests.support.daemon import Daemon

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.usefixtures("delta", "plots")]
JSON = {"Content-Type": "application/json"}


class Run(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out.splitlines()[-1])
        return found


def run(*arguments: object) -> Run:
    """Run a job with its summary as JSON."""
    out, err = io.StringIO(), io.StringIO()
    status = cli.main(["--json", *map(str, arguments)], Console(out, err))
    return Run(status, out.getvalue(), err.getvalue())


class Stream:
    """A stream of the running server."""

    def __init__(self, server: Daemon, http: httpx.Client, name: str) -> None:
        self.http, self.name, self.url = http, name, server.stream(name)
        assert http.put(self.url, headers=JSON).status_code == 201

    def append(self, *messages: object) -> None:
        body = json.dumps(messages)
        assert self.http.post(self.url, headers=JSON, content=body).status_code in (200, 204)

    def read(self) -> list[Any]:
        found: list[Any] = self.http.get(self.url, params={"offset": "-1"}).json()
        return found

    def snapshot(self) -> object:
        return self.http.get(f"{self.url}/snapshot", follow_redirects=True).json()


@pytest.fixture
def stream(
    server: Daemon, http: httpx.Client, request: pytest.FixtureRequest, spark: SparkSession
) -> Stream:
    return Stream(server, http, request.node.name)


@pytest.fixture
def directory(tmp_path: Path, spark: SparkSession) -> Iterator[Directory]:
    with Directory(tmp_path / "data", segment_bytes_max=600, state_every_bytes=300) as made:
        made.create("/orders")
        for number in range(0, 40, 2):
            made.append("/orders", ITEMS[number], ITEMS[number + 1], producer=("p", number, 0))
            if number == 30:
                made.checkpoint()
        yield made


def exported(target: Path) -> list[tuple[str, int, bytes]]:
    """Return the rows of every Parquet file, by any reader's rule: those whose name has no dot."""
    found = []
    for path in target.rglob("[!._]*.parquet"):
        parts = dict(part.split("=") for part in path.parent.relative_to(target).parts)
        for row in pq.ParquetFile(path).read().to_pylist():
            value = row["value"]
            raw = value if isinstance(value, bytes) else value.encode()
            found.append((parts["stream"], row["offset"], raw))
    return sorted(found)


# --- export ---


def test_export_goes_on_where_it_ended(server: Daemon, stream: Stream, tmp_path: Path) -> None:
    job = ("export", "--url", server.url, "--stream", stream.name, "--to", tmp_path / "out")
    stream.append(*range(10))
    assert run(*job).summary["rows"] == 10
    stream.append(*range(10, 25))
    assert run(*job).summary["rows"] == 15
    again = run(*job)
    assert (again.status, again.summary["rows"]) == (OK, 0)
    assert exported(tmp_path / "out") == [
        (stream.name, number, b"%d" % number) for number in range(25)
    ]


def test_export_of_a_directory_goes_on_where_it_ended(directory: Directory, tmp_path: Path) -> None:
    out = tmp_path / "out"
    job = ("export", "--data-dir", directory.root, "--to", out)
    directory.create("/a/b, c")
    directory.append("/a/b, c", b"1")
    assert run(*job).summary == run_summary(41, 1, 2, out)
    directory.append("/orders", b"7", b"8")
    assert run(*job).summary == run_summary(2, 1, 1, out)
    assert run(*job).summary == run_summary(0, 0, 0, out)
    wanted = [
        (quote(name, safe=""), row.offset, row.value)
        for name, rows in directory.rows().items()
        for row in rows
    ]
    assert exported(out) == sorted(wanted)
    day = out / "stream=orders" / "date=2025-06-15"
    assert day.is_dir()


class _Anything:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def run_summary(rows: int, batches: int, streams: int, out: Path) -> dict[str, object]:
    counts: dict[str, object] = {"rows": rows, "batches": batches, "streams": streams}
    return {**counts, "to": str(out), "seconds": _Anything()}


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_an_export_that_died_is_run_again_and_adds_nothing_twice(
    directory: Directory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    out = tmp_path / "out"
    job = ("export", "--data-dir", directory.root, "--to", out, "--format", kind)
    save = export.save_checkpoint

    def die(home: Path, state: export.Checkpoint) -> None:
        if state.pending is None:
            raise KeyboardInterrupt
        save(home, state)

    monkeypatch.setattr(export, "save_checkpoint", die)
    assert run(*job).status == INTERRUPTED
    assert len(exported(out)) == 40
    monkeypatch.setattr(export, "save_checkpoint", save)
    directory.append("/orders", b"7")  # what comes meanwhile is for the next run
    directory.checkpoint()  # and the tasks of the next one are others
    assert run(*job).summary["rows"] == 40
    assert run(*job).summary["rows"] == 1
    rows = [("orders", row.offset, row.value) for row in directory.rows()["orders"]]
    assert exported(out) == rows
    if kind == "delta":
        table = pa.table(DeltaTable(str(out)).to_pyarrow_table())
        assert sorted(table["offset"].to_pylist()) == list(range(41))


def test_an_export_to_delta_is_a_transaction_for_each_batch(
    server: Daemon, stream: Stream, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    option = ("--option", "maxOffsetsPerTrigger=10", "--format", "delta")
    job = ("export", "--url", server.url, "--stream", stream.name, "--to", out, *option)
    stream.append(*range(25))
    assert run(*job).summary["batches"] == 3
    table = DeltaTable(str(out))
    assert table.version() == 2
    assert sorted(table.to_pyarrow_table()["offset"].to_pylist()) == list(range(25))
    # A commit that Spark forgot is run again: the table knows it.
    commits = sorted((out / "_checkpoint" / "commits").glob("[0-9]*"))
    commits[-1].unlink()
    (commits[-1].parent / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    assert run(*job).status == OK
    table = DeltaTable(str(out))
    assert sorted(table.to_pyarrow_table()["offset"].to_pylist()) == list(range(25))


# --- import ---


@pytest.mark.parametrize("unordered", [False, True])
def test_an_import_run_twice_is_there_once_and_in_order(
    server: Daemon,
    stream: Stream,
    tmp_path: Path,
    unordered: bool,  # noqa: FBT001
) -> None:
    for name, first in (("b", 20), ("a", 0)):
        lines = [json.dumps({"n": number}) for number in range(first, first + 20)]
        (tmp_path / f"{name}.json").write_text("\n".join(lines) + "\n\n")
    chosen = ["--unordered"] if unordered else []
    more = ["--option", "maxAppendBytes=64"]
    job = ("import", tmp_path, "--url", server.url, "--stream", stream.name, *more, *chosen)
    for _ in range(2):
        assert run(*job).summary["files"] == 2
    found = [message["n"] for message in stream.read()]
    assert sorted(found) == list(range(40))
    if not unordered:
        assert found == list(range(40))
    assert run(*job, "--id", "again").status == OK
    assert len(stream.read()) == 80


def test_parquet_rows_choose_their_streams(
    server: Daemon, http: httpx.Client, spark: SparkSession, tmp_path: Path
) -> None:
    pq.write_table(
        pa.table({"to": ["chosen-1", "chosen-2", "chosen-1"], "n": [1, 2, 3]}),
        tmp_path / "a.parquet",
    )
    job = ["import", tmp_path / "a.parquet", "--url", server.url, "--format", "parquet"]
    assert run(*job, "--stream-column", "to", "--create").status == OK
    assert http.get(server.stream("chosen-1")).json() == [{"n": 1}, {"n": 3}]
    assert http.get(server.stream("chosen-2")).json() == [{"n": 2}]
    wrong = run(*job, "--stream-column", "topic")
    assert (wrong.status, "has no column 'topic'; it has to, n" in wrong.err) == (USAGE, True)


def test_text_becomes_lines(server: Daemon, http: httpx.Client, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\ntwo\n")
    job = ("import", tmp_path / "a.txt", "--url", server.url, "--format", "text", "--create")
    assert run(*job, "--stream", "lines").status == OK
    assert http.get(server.stream("lines")).text == "one\n\ntwo\n"


# --- compact ---


def grow(state: object, message: object) -> object:
    """A fold: sums, and forgets a key whose sum is 0."""
    assert isinstance(message, dict)
    total = (state["sum"] if isinstance(state, dict) else 0) + message["n"]
    return {"sum": total} if total else None


def break_down(state: object, message: object) -> object:
    del state, message
    reason = "no"
    raise ValueError(reason)


def test_compact_publishes_the_last_value_of_each_key(server: Daemon, stream: Stream) -> None:
    job = ("compact", "--url", server.url, "--stream", stream.name, "--key", "k")
    stream.append(*({"k": f"key {n % 3}", "n": n} for n in range(10)))
    done = run(*job, "--dry-run")
    assert done.summary["published"] is False
    assert run(*job).summary["keys"] == 3
    newest = {f"key {n % 3}": {"k": f"key {n % 3}", "n": n} for n in range(10)}
    assert stream.snapshot() == newest
    stream.append({"k": "key 1", "n": 99}, {"k": "new", "n": 100})
    assert run(*job).summary["messages"] == 2
    newest |= {"key 1": {"k": "key 1", "n": 99}, "new": {"k": "new", "n": 100}}
    assert stream.snapshot() == newest
    assert run(*job).summary == {"published": False}  # nothing new


def test_compact_folds_as_told_in_the_order_of_the_stream(server: Daemon, stream: Stream) -> None:
    where = ("compact", "--url", server.url, "--stream", stream.name, "--key", "$.k")
    fold = ("--fold", "tests.spark.test_jobs:grow")
    stream.append(*({"k": n % 2, "n": n} for n in range(10)), {"k": 2, "n": 0})
    assert run(*where, *fold).summary["keys"] == 2
    assert stream.snapshot() == {"0": {"sum": 20}, "1": {"sum": 25}}
    stream.append({"k": 0, "n": -20}, {"k": 1, "n": 1})
    assert run(*where, *fold).summary["keys"] == 1
    assert stream.snapshot() == {"1": {"sum": 26}}
    stream.append({"k": 1, "n": 1})
    broken = run(*where, "--fold", "tests.spark.test_jobs:break_down")
    assert "break_down failed on message 13 of key '1': ValueError('no')" in broken.err


def test_compact_touches_nothing_that_is_appended_meanwhile(
    server: Daemon, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream.append({"k": 1, "n": 1})
    rows = Compaction._rows

    def late(me: Compaction, look: StreamInfo) -> DataFrame:
        stream.append({"k": 1, "n": 2})
        return rows(me, look)

    monkeypatch.setattr(Compaction, "_rows", late)
    assert run("compact", "--url", server.url, "--stream", stream.name, "--key", "k").status == OK
    assert stream.snapshot() == {"1": {"k": 1, "n": 1}}
    floor = stream.http.head(stream.url).headers["stream-snapshot-offset"]
    left = stream.http.get(stream.url, params={"offset": floor}).json()
    assert left == [{"k": 1, "n": 2}]


def test_compact_says_what_it_cannot_fold(server: Daemon, stream: Stream) -> None:
    where = ("compact", "--url", server.url, "--stream", stream.name)
    stream.append({"n": 1})
    done = run(*where, "--key", "k")
    assert done.status != OK
    assert f"a message of stream '{stream.name}' has no key 'k'" in done.err
    tail = stream.http.head(stream.url).headers["stream-next-offset"]
    stream.http.put(f"{stream.url}/snapshot/{tail}", content=b"[1]", headers=JSON)
    stream.append({"k": 1})
    done = run(*where, "--key", "k")
    assert (done.status, "was not made by compact" in done.err) == (CORRUPT, True)
    done = run("compact", "--url", server.url, "--stream", "none-here", "--key", "k")
    assert (done.status, "there is no stream 'none-here'" in done.err) == (NO_INPUT, True)


# --- audit and stats ---


def test_audit_finds_what_is_damaged_and_nothing_else(directory: Directory) -> None:
    clean = run("audit", "--data-dir", directory.root)
    assert (clean.status, clean.summary["findings"]) == (OK, [])
    assert clean.summary["segments"] == len(list(directory.root.rglob("*.idx")))
    path = directory.file("/orders", ".log", 0)
    flip(path, 5)
    found = run("audit", "--data-dir", directory.root)
    (finding,) = found.summary["findings"]
    assert found.status == CORRUPT
    assert finding["stream"] == "orders"
    assert finding["path"] == str(path.relative_to(directory.root))


def test_stats_counts_and_draws(directory: Directory, tmp_path: Path) -> None:
    directory.bucket("logs")
    directory.create("logs/web")
    directory.now += 60_000
    directory.append("logs/web", b"1")
    directory.now += 5_000
    directory.append("logs/web", b"2", producer=("q", 0, 0))
    picture = tmp_path / "plot.svg"
    done = run("stats", "--data-dir", directory.root, "--plot", picture)
    assert done.status == OK
    orders, web = done.summary["streams"]
    assert (orders["stream"], orders["messages"]) == ("orders", 40)
    assert orders["bytes"] == sum(len(item) + 2 for item in ITEMS[:40])
    assert orders["producers"] == 1
    assert (web["stream"], web["messages"], web["gap_ms"]) == ("/logs/web", 2, 5001)
    buckets = [(b["bucket"], b["messages"]) for b in done.summary["buckets"]]
    assert buckets == [("", 40), ("logs", 2)]
    assert re.search("Messages per second.*Bytes held", picture.read_text(), re.DOTALL)


def test_rows_come_through_spark_as_they_are(directory: Directory, spark: SparkSession) -> None:
    rows = spark.read.format("durastream-segments").load(str(directory.root))
    assert rows.dtypes == [
        ("value", "string"),
        ("stream", "string"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
    ]
    found = [(row.value.encode(), row.offset) for row in rows.orderBy("offset").collect()]
    assert found == [(row.value, row.offset) for row in directory.rows()["orders"]]
    view = "CREATE OR REPLACE TEMPORARY VIEW o USING `durastream-segments` OPTIONS (path '{}')"
    spark.sql(view.format(directory.root))
    asked = "SELECT 1 FROM o WHERE get_json_object(value, '$.n') >= 20"
    assert len(spark.sql(asked).collect()) == 20

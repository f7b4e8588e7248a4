"""The parts of the jobs that need no JVM: arguments, plans, folds, files, figures."""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import Row
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from durastreamd.errors import DataDirectoryError
from durastreamd.kit.command import CommandError
from durastreamd.kit.console import Console
from durastreamd.kit.status import (
    CORRUPT,
    INTERNAL,
    IO_ERROR,
    NO_INPUT,
    NO_PERMISSION,
    UNAVAILABLE,
    USAGE,
)
from durastreamd.spark import cli
from durastreamd.spark.errors import DataLossError, FoldError
from durastreamd.spark.jobs import audit, compact, export, files, importing, plot, stats
from durastreamd.spark.options import parse
from durastreamd.spark.segments.options import SegmentOptions
from durastreamd.storage.log import placement_at
from tests.spark.directories import NOW, Directory, planned
from tests.spark.test_segments import ITEMS, flip

SCHEMA = StructType(
    [
        StructField("value", StringType()),
        StructField("stream", StringType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
    ]
)


# --- arguments: told before a JVM is started ---

URL = ("--url", "http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["audit", "--data-dir", "/nowhere"], NO_INPUT, "/nowhere is not a directory"),
        (["stats", "--data-dir", "/nowhere"], NO_INPUT, "/nowhere is not a directory"),
        (["export", "--data-dir", "/nowhere", "--to", "/x"], NO_INPUT, "/nowhere is not a direct"),
        (["export", "--data-dir", "/", "--to", "/x"], NO_INPUT, "no durastreamd data directory"),
        (["export", "--data-dir", "/", "--to", "what://x"], USAGE, "neither a directory nor"),
        (["export", *URL, "--to", "/x", "--option", "a=1"], USAGE, "a is no option of format"),
        (["stats", "--data-dir", "/", "--plot", "a.pdf"], USAGE, "ends in .svg or .png, not"),
        (["stats", "--data-dir", "/", "--plot", "/no/a.svg"], IO_ERROR, "no directory /no"),
        (["compact", *URL, "--stream", "a", "--key", "k", "--fold", "f"], USAGE, "MODULE:FUNCTION"),
        (["compact", *URL, "--stream", "a", "--key", "k", "--fold", "no:f"], USAGE, "No module"),
        (["import", "a", *URL], USAGE, "say where rows go: --stream NAME, or --stream-column"),
        (["import", "a", *URL, "--stream-column", "s", "--format", "text"], USAGE, "use --stream"),
        (["import", "a", "--url", "nothing", "--stream", "s"], USAGE, "is not a URL of a server"),
    ],
)
def test_a_wrong_argument_is_named(arguments: list[str], status: int, says: str) -> None:
    err = io.StringIO()
    assert cli.main(arguments, Console(io.StringIO(), err)) == status
    assert says in err.getvalue()
    assert err.getvalue().startswith("dspipeline: ")
    assert "Traceback" not in err.getvalue()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["export", *URL, "--to", "/x", "--option", "a"], "--option takes NAME=VALUE, not 'a'"),
        (["--conf", "a", "audit", "--data-dir", "/"], "--conf takes KEY=VALUE, not 'a'"),
        (["audit"], "required: --data-dir"),
        (["guess"], "invalid choice: 'guess'"),
    ],
)
def test_a_wrong_command_line_is_usage(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert (ended.value.code, says in capsys.readouterr().err) == (USAGE, True)


@pytest.mark.parametrize("missing", ["pyspark", "pyarrow", "numpy"])
def test_without_spark_it_says_what_to_install(missing: str) -> None:
    program = (
        f"import sys; sys.modules[{missing!r}] = None; from durastreamd.spark.cli import main;"
        "sys.exit(main(['audit', '--data-dir', '/']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    told = (
        f"dspipeline: {missing} is not installed; this brings it: {sys.executable} -m pip install"
    )
    assert (done.returncode, done.stdout) == (UNAVAILABLE, "")
    assert done.stderr.startswith(told)
    assert "'pyspark" in done.stderr
    assert "'pyarrow" in done.stderr


def test_nothing_hides_a_module_of_python_under_spark_submit() -> None:
    home = Path(cli.__file__).parent
    assert {path.stem for path in home.iterdir()} & sys.stdlib_module_names == set()


# --- audit ---


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    made = Directory(tmp_path / "data", segment_bytes_max=300, state_every_bytes=300)
    made.create("/orders")
    for number in range(0, 40, 2):
        made.append("/orders", ITEMS[number], ITEMS[number + 1], producer=("p", number, 0))
        if number % 6 == 4:
            made.checkpoint()
    return made


def audited(root: Path) -> list[str]:
    found = audit.plan(str(root))
    return [str(x) for part in found.parts for x in audit.findings(str(root), part)]


def test_a_sound_directory_has_no_findings(directory: Directory) -> None:
    directory.snapshot("/orders", directory.ends["/orders", 3])
    directory.checkpoint()
    assert audited(directory.root) == []


@pytest.mark.parametrize("suffix", [".log", ".idx"])
def test_every_file_of_every_segment_is_looked_at(directory: Directory, suffix: str) -> None:
    paths = sorted(directory.root.rglob(f"*{suffix}"))
    assert len(paths) > 2
    for path in paths[:-1] if suffix == ".log" else paths:
        whole = path.read_bytes()
        flip(path, len(whole) // 2)
        (found,) = {line.partition(":")[0] for line in audited(directory.root)}
        assert found == str(path.relative_to(directory.root))
        path.unlink()
        assert any(str(path.stem) in line for line in audited(directory.root)), path
        path.write_bytes(whole)


def test_a_damaged_snapshot_is_found(directory: Directory) -> None:
    directory.snapshot("/orders", directory.ends["/orders", 3])
    directory.checkpoint()
    (path,) = directory.root.rglob("*.snap")
    flip(path, 1)
    (line,) = audited(directory.root)
    assert "the snapshot does not verify" in line
    path.unlink()
    (line,) = audited(directory.root)
    assert "the file is not there" in line


def test_tasks_share_the_bytes_out() -> None:
    def part(size: int) -> audit.AuditPart:
        return audit.AuditPart("a", 1, placement_at(0), size)

    tasks = audit.tasks_of([part(size) for size in (1, 50, 60, 2, 40)], 60)
    assert [[p.size for p in task] for task in tasks] == [[60], [50], [40, 2, 1]]


# --- export ---


def batch(*rows: tuple[str, str, int, int]) -> object:
    kinds = (pa.string(), pa.string(), pa.int64(), pa.timestamp("us", tz="UTC"))
    columns = [
        pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), kinds, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=SCHEMA.names)


DAY_US = 86_400_000_000


def test_a_task_writes_a_file_for_each_stream_and_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "OPEN_MAX", 2)
    task = files.TaskFiles(str(tmp_path), SCHEMA, files.mark_of("q", 3, 7))
    task.add(batch(("1", "a/b", 0, 0), ("2", "c", 0, 0), ("3", "a/b", 1, DAY_US)))
    task.add(batch(("4", "a/b", 2, 5)))
    added = {file.path: file.rows for file in task.finish()}
    assert added == {
        "stream=a%2Fb/date=1970-01-01/q-00000003-00007-000.parquet": 1,
        "stream=a%2Fb/date=1970-01-01/q-00000003-00007-001.parquet": 1,
        "stream=a%2Fb/date=1970-01-02/q-00000003-00007-000.parquet": 1,
        "stream=c/date=1970-01-01/q-00000003-00007-000.parquet": 1,
    }
    found = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    assert found == set(added)  # no draft is left
    table = pq.read_table(tmp_path)
    assert sorted(table["value"].to_pylist()) == ["1", "2", "3", "4"]
    assert set(table["stream"].to_pylist()) == {"a/b", "c"}


@pytest.mark.usefixtures("delta")
def test_a_batch_is_in_a_delta_table_once(tmp_path: Path) -> None:
    for number, times in ((0, 2), (1, 1)):
        task = files.TaskFiles(str(tmp_path), SCHEMA, files.mark_of("q", number, 0))
        task.add(batch(("1", "a b/c", number, number)))
        added = task.finish()
        done = [
            files.commit_delta(str(tmp_path), SCHEMA, added, ("q", number)) for _ in range(times)
        ]
        assert done == [True, False][:times]
    table = DeltaTable(str(tmp_path))
    assert (table.version(), files.delta_version(str(tmp_path), "q")) == (1, 1)
    rows = table.to_pyarrow_table()
    assert sorted(rows["offset"].to_pylist()) == [0, 1]
    assert set(rows["stream"].to_pylist()) == {"a b/c"}
    actions = pa.table(table.get_add_actions(flatten=True))
    for name in ("offset", "timestamp"):
        lows, highs = actions[f"min.{name}"].to_pylist(), actions[f"max.{name}"].to_pylist()
        assert sorted(lows) == sorted(highs) == sorted(rows[name].to_pylist()), "for skipping"


def test_an_export_knows_the_life_of_what_it_exported() -> None:
    state = export.Checkpoint("q", 2, {"a": 5, "b": 7}, {"a": 6, "b": 8}, {"a": "1", "b": "1"})
    same = export.Ends({}, {"a": 9, "c": 1}, {"a": "1", "c": "1"})
    kept = export.of_these_lives(state, same, fail=True)
    assert (kept.done, kept.pending) == (state.done, state.pending)
    assert kept.lives == {"a": "1", "b": "1", "c": "1"}
    anew = export.Ends({}, {"a": 9}, {"a": "2"})
    with pytest.raises(DataLossError, match=r"Stream a was deleted and made anew .*failOnData"):
        export.of_these_lives(state, anew, fail=True)
    begun = export.of_these_lives(state, anew, fail=False)
    assert (begun.done, begun.pending, begun.lives["a"]) == ({"b": 7}, {"b": 8}, "2")
    before = export.Checkpoint("q", 2, {"a": 5})
    assert export.of_these_lives(before, anew, fail=True).done == {"a": 5}


def test_a_checkpoint_is_whole_or_refused(tmp_path: Path) -> None:
    state = export.Checkpoint("q", 2, {"a": 1}, {"a": 3})
    export.save_checkpoint(tmp_path / "c", state)
    assert export.load_checkpoint(tmp_path / "c") == state
    assert export.load_checkpoint(tmp_path / "none").batch == 0
    (tmp_path / "c" / export.OFFSETS).write_text("{")
    with pytest.raises(CommandError, match="is no checkpoint of an export"):
        export.load_checkpoint(tmp_path / "c")


# --- compact and import ---


def count(state: object, message: object) -> object:
    assert isinstance(message, int)
    total = (state if isinstance(state, int) else 0) + message
    return total or None


def bad(state: object, message: object) -> object:
    return {state, message}


def test_a_fold_goes_key_by_key_and_may_forget_one() -> None:
    def row(key: str, number: int, value: object) -> Row:
        return Row(key=key, number=number, value=json.dumps(value))

    rows = [
        row("a", -1, 10), row("a", 0, 1), row("a", 4, 2),
        row("b", 1, 5), row("b", 2, -5),
        row("c", 3, 7),
    ]  # fmt: skip
    name = "tests.spark.test_jobs_parts:count"
    assert list(compact.fold_rows(rows, name)) == [("a", "13"), ("c", "7")]
    with pytest.raises(FoldError, match="a state of key 'c' that is no JSON"):
        list(compact.fold_rows(rows[-1:], "tests.spark.test_jobs_parts:bad"))
    with pytest.raises(FoldError, match="failed on message 3 of key 'c'"):
        list(compact.fold_rows([row("c", 3, "x")], name))
    assert (compact.key_path("a.b"), compact.key_path("$.a.b")) == ("$['a.b']", "$.a.b")


def test_a_file_has_one_producer_until_it_changes() -> None:
    file = importing.File("a", 1, 2)
    names = {
        importing.producer_of(each, name)
        for each in (
            file,
            file._replace(size=2),
            file._replace(time_ms=3),
            importing.File("b", 1, 2),
        )
        for name in ("", "again")
    }
    assert len(names) == 8
    assert importing.producer_of(file, "") == importing.producer_of(importing.File("a", 1, 2), "")


# --- stats ---


def test_records_tell_messages_and_bytes(directory: Directory) -> None:
    directory.fork("/fork", "/orders", 3)  # in the midst of a record
    found: dict[str, list[int]] = {}
    for task in planned(directory.root):
        for each in stats.records_of(str(directory.root), task):
            for row in cast(list[dict[str, Any]], each.to_pylist()):
                sums = found.setdefault(row["stream"], [0, 0])
                sums[0] += row["messages"]
                sums[1] += row["bytes"]
    sizes = [len(item) + 2 for item in ITEMS]
    assert found == {"orders": [40, sum(sizes[:40])], "fork": [3, sum(sizes[:3])]}
    options = parse(SegmentOptions, {"path": str(directory.root)})
    assert stats.producers_of(options) == {"orders": 1, "fork": 0}


def table_of(count: int) -> list[stats.StreamStats]:
    return [
        stats.StreamStats(
            f"/logs/{n}" if n % 2 else f"s{n}", 10 * n, 999 * n, NOW, NOW + 1000 * n, 5, NOW, 1
        )
        for n in range(count, 0, -1)
    ]


def test_the_table_is_aligned_and_summed_by_bucket() -> None:
    table = table_of(3)
    buckets = stats.buckets_of(table, "")
    out = io.StringIO()
    stats.write_tables(table, buckets, Console(out))
    lines = out.getvalue().splitlines()
    assert len({line.index("2025") for line in lines[1:4]}) == 1
    assert "2.9 KiB" in lines[1]
    assert [(b.bucket, b.streams, b.messages) for b in buckets] == [("", 1, 20), ("logs", 2, 40)]
    assert [b.bucket for b in stats.buckets_of(table, "mine")] == ["mine"]


@pytest.mark.usefixtures("plots")
@pytest.mark.parametrize(("streams", "kind"), [(1, "svg"), (12, "svg"), (3, "png")])
def test_the_plot_names_what_it_shows(tmp_path: Path, streams: int, kind: str) -> None:
    table = table_of(streams)
    bins = [stats.Bin(row.stream, NOW + slot * 100, 5, 50) for row in table for slot in (0, 3)]
    path = tmp_path / f"a.{kind}"
    plot.draw(str(path), table, bins, 100)
    data = path.read_bytes()
    if kind == "png":
        assert data.startswith(b"\x89PNG")
        return
    text = data.decode()
    assert "Messages per second" in text
    shown = [row.stream for row in table if f">{row.stream}<" in text]
    assert len(shown) == min(streams, plot.SHOWN_MAX)
    assert (plot.REST in text) == (streams > plot.SHOWN_MAX)


def test_errors_of_tasks_are_told_in_their_own_words() -> None:
    text = "blah\ndurastreamd.errors.CorruptDataError: a.log:5: record 3 does not verify\n\tat x"
    assert cli.told_by(text) == (CORRUPT, "a.log:5: record 3 does not verify")
    assert cli.told_by("[USER_RAISED_EXCEPTION] no key 'k' SQLSTATE: P0001\n") == (
        INTERNAL,
        "no key 'k'",
    )
    assert cli.told_by("java.lang.OutOfMemoryError: heap") is None
    for name, status in (
        ("client.errors.UnreachableError", UNAVAILABLE),
        ("client.errors.ServerRefusedError", UNAVAILABLE),
        ("client.errors.DeniedError", NO_PERMISSION),
        ("client.errors.SettingsError", USAGE),
        ("spark.errors.OptionError", USAGE),
        ("spark.errors.DataLossError", INTERNAL),
        ("of.a.later.version.NewError", INTERNAL),
    ):
        assert cli.told_by(f"durastreamd.{name}: so\n") == (status, "so")
    assert cli.explain(DataDirectoryError("x")) == (NO_INPUT, "x")
    assert cli.explain(RuntimeError("x")) is None

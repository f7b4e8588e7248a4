"""Where ``export`` writes: Parquet files that any reader finds whole and no crash doubles.

A task's file is named after its batch and partition and takes its final name only when it is
whole. A batch that runs again therefore replaces its own files instead of adding to them; what
that rests on is that a batch has the same rows in the same partitions every time, which is what
the source promises. There is no log beside the files that a reader would have to know.

As a Delta table the files of a batch become visible in one commit, which also says which batch it
was (an application transaction); a batch that is there already is not committed again.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs, parquet
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from durastreamd.spark.errors import OptionError, SinkError
from durastreamd.spark.tasks import this_batch, this_partition

PARQUET, DELTA = "parquet", "delta"
OPEN_MAX = 100  # files a task writes at once; more are finished and begun again under a new number
STREAM, DATE, TIME, OFFSET = "stream", "date", "timestamp", "offset"


class FileTree(NamedTuple):
    """A directory of any file system pyarrow knows."""

    system: object
    path: str

    @property
    def local(self) -> bool:
        """Tell whether a name can be changed in one step."""
        return bool(self.system.type_name == "local")  # type: ignore[attr-defined]


def place_of(target: str) -> FileTree:
    """Return the directory a path or URI names."""
    try:
        system, path = fs.FileSystem.from_uri(target if "://" in target else f"file://{target}")
    except pa.ArrowInvalid as exc:
        reason = f"{target!r} is neither a directory nor a URI of a file system: {exc}"
        raise OptionError(reason) from exc
    return FileTree(system, path.rstrip("/"))


@dataclass
class Added:
    """A file that was written."""

    path: str  # below the target
    size: int
    rows: int
    values: dict[str, str]  # of the partition columns
    lows: dict[str, object] = field(default_factory=dict)  # of columns that readers choose by
    highs: dict[str, object] = field(default_factory=dict)

    def stats(self) -> str:
        """Return what a Delta table says of it, so that readers can pass it over."""
        made = {"numRecords": self.rows, "minValues": self.lows, "maxValues": self.highs}
        return json.dumps({**made, "nullCount": dict.fromkeys(self.lows, 0)})


@dataclass
class Wrote(WriterCommitMessage):
    """What a task wrote."""

    query: str
    files: list[Added] = field(default_factory=list)


class _ParquetFile:
    """One Parquet file in the making, under a name nobody reads."""

    def __init__(self, place: FileTree, path: str, schema: object) -> None:
        self.path = path
        self._place = place
        folder, _, name = path.rpartition("/")
        self._final = f"{place.path}/{path}"
        # Object stores show a file when it is whole, and cannot rename.
        self._draft = f"{place.path}/{folder}/.{name}.new" if place.local else self._final
        self._system = place.system
        self._system.create_dir(f"{place.path}/{folder}", recursive=True)  # type: ignore[attr-defined]
        self._writer = parquet.ParquetWriter(
            self._draft, schema, filesystem=place.system, compression="zstd"
        )
        self.rows = 0
        self._known = [name for name in (OFFSET, TIME) if name in schema.names]  # type: ignore[attr-defined]
        self._lows: dict[str, object] = {}
        self._highs: dict[str, object] = {}

    def write(self, batch: object) -> None:
        """Add rows."""
        self._writer.write_batch(batch)
        self.rows += batch.num_rows  # type: ignore[attr-defined]
        for name in self._known:
            ends = pc.min_max(batch.column(name)).as_py()  # type: ignore[attr-defined]
            if ends["min"] is not None:
                self._lows[name] = min(self._lows.get(name, ends["min"]), ends["min"])
                self._highs[name] = max(self._highs.get(name, ends["max"]), ends["max"])

    def finish(self, values: dict[str, str]) -> Added:
        """Give the file its name."""
        self._writer.close()
        if self._draft != self._final:
            self._system.move(self._draft, self._final)  # type: ignore[attr-defined]
        info = self._system.get_file_info(self._final)  # type: ignore[attr-defined]
        lows = {name: _shown(low) for name, low in self._lows.items()}
        highs = {name: _shown(high) for name, high in self._highs.items()}
        return Added(self.path, info.size, self.rows, values, lows, highs)


def _shown(value: object) -> object:
    """Return a value as the statistics of a Delta table have it, exact: a reader skips by it."""
    if not isinstance(value, datetime):
        return value
    return value.isoformat(timespec="microseconds").replace("+00:00", "Z")


class TaskFiles:
    """Writes the rows of a task: a directory per stream, and per day where rows have a time."""

    def __init__(self, target: str, schema: StructType, mark: str) -> None:
        self._place = place_of(target)
        whole = to_arrow_schema(schema, timezone="UTC")
        self._dated = TIME in whole.names
        self._schema = pa.schema([each for each in whole if each.name != STREAM])
        self._mark = mark
        self._open: dict[tuple[str, str], _ParquetFile] = {}
        self._counts: dict[tuple[str, str], int] = {}
        self.done: list[Added] = []

    def add(self, batch: object) -> None:
        """Take a record batch apart by stream and day."""
        table = pa.Table.from_batches([batch])
        days = pc.strftime(table[TIME], format="%Y-%m-%d") if self._dated else None
        for stream in pc.unique(table[STREAM]).to_pylist():
            mine = pc.equal(table[STREAM], stream)
            for day in pc.unique(days.filter(mine)).to_pylist() if days is not None else [""]:
                chosen = mine if days is None else pc.and_(mine, pc.equal(days, day))
                rows = table.filter(chosen).drop_columns([STREAM])
                for part in rows.cast(self._schema).to_batches():
                    self._file((stream, day)).write(part)

    def _file(self, key: tuple[str, str]) -> _ParquetFile:
        if key not in self._open:
            if len(self._open) >= OPEN_MAX:
                self._finish(next(iter(self._open)))
            count = self._counts.get(key, 0)
            self._counts[key] = count + 1
            path = f"{folder_of(*key)}/{self._mark}-{count:03d}.parquet"
            self._open[key] = _ParquetFile(self._place, path, self._schema)
        return self._open[key]

    def _finish(self, key: tuple[str, str]) -> None:
        values = {STREAM: key[0], **({DATE: key[1]} if key[1] else {})}
        self.done.append(self._open.pop(key).finish(values))

    def finish(self) -> list[Added]:
        """Finish every file."""
        for key in list(self._open):
            self._finish(key)
        return self.done


def folder_of(stream: str, day: str) -> str:
    """Return the directory of a stream (and a day), as Hive names them."""
    folder = f"{STREAM}={quote(stream, safe='')}"
    return f"{folder}/{DATE}={day}" if day else folder


def mark_of(query: str, batch: int, partition: int) -> str:
    """Return the name of a task's files; the same task has the same name every time."""
    return f"{batch_mark(query, batch)}-{partition:05d}"


def batch_mark(query: str, batch: int) -> str:
    """Return how the names of a batch's files begin."""
    return f"{query}-{batch:08d}"


class _Target(NamedTuple):
    path: str
    kind: str


class _Tasks:
    """What both writers do; pickled to executors."""

    def __init__(self, target: _Target, schema: StructType) -> None:
        self._target = target
        self._schema = schema

    def run(self, batches: Iterator[object], query: str, batch: int) -> Wrote:
        """Write one partition."""
        mark = mark_of(query, batch, this_partition())
        files = TaskFiles(self._target.path, self._schema, mark)
        for each in batches:
            files.add(each)
        return Wrote(query, files.finish())

    def commit(self, messages: list[WriterCommitMessage | None], batch: int) -> None:
        """Make the files of a batch part of the table, where there is one."""
        done = [each for each in messages if isinstance(each, Wrote)]
        if self._target.kind == DELTA and done:
            added = [file for each in done for file in each.files]
            commit_delta(self._target.path, self._schema, added, (done[0].query, batch))


class StreamFilesWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query."""

    def __init__(self, target: _Target, schema: StructType) -> None:
        self._tasks = _Tasks(target, schema)

    def write(self, iterator: Iterator[object]) -> Wrote:
        """Write one partition of a batch: in a task."""
        return self._tasks.run(iterator, *this_batch())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit a batch: in the driver."""
        self._tasks.commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing: the batch runs again and replaces its files."""


class BatchFilesWriter(DataSourceArrowWriter):
    """Writes one batch job, which says itself which query and batch it is."""

    def __init__(self, target: _Target, schema: StructType, query: str, batch: int) -> None:
        self._tasks = _Tasks(target, schema)
        self._query, self._batch = query, batch

    def write(self, iterator: Iterator[object]) -> Wrote:
        """Write one partition: in a task."""
        return self._tasks.run(iterator, self._query, self._batch)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the job: in the driver."""
        self._tasks.commit(messages, self._batch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing: the job runs again and replaces its files."""


class FilesSink(DataSource):
    """The sink of the export job; registered by it."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "durastream-files"

    def _target(self) -> _Target:
        return _Target(self.options["path"], self.options.get("kind", PARQUET))

    def writer(self, schema: StructType, overwrite: bool) -> BatchFilesWriter:  # noqa: FBT001
        """Return what writes for a batch job."""
        del overwrite
        query, batch = self.options["query"], int(self.options["batch"])
        return BatchFilesWriter(self._target(), schema, query, batch)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamFilesWriter:  # noqa: FBT001, N802
        """Return what writes for a streaming query."""
        del overwrite
        return StreamFilesWriter(self._target(), schema)


# --- Delta ---


def commit_delta(
    target: str, schema: StructType, added: list[Added], transaction: tuple[str, int]
) -> bool:
    """Add files to a Delta table in one commit; False if this batch is in it already."""
    try:
        from deltalake import CommitProperties, DeltaTable, Schema, Transaction
        from deltalake.transaction import (
            AddAction,
            create_table_with_add_actions,
        )
    except ImportError as exc:
        reason = "--format delta needs the extra: pip install 'durastreamd[delta]'"
        raise SinkError(reason) from exc
    actions = [
        AddAction(
            file.path,
            file.size,
            file.values,
            time.time_ns() // 1_000_000,
            data_change=True,
            stats=file.stats(),
        )
        for file in added
    ]
    columns = to_arrow_schema(schema, timezone="UTC")
    dated = TIME in columns.names
    if dated:
        columns = columns.append(pa.field(DATE, pa.string()))
    schema_of = Schema.from_arrow(columns)
    by = [STREAM, DATE] if dated else [STREAM]
    query, batch = transaction
    properties = CommitProperties(app_transactions=[Transaction(query, batch)])
    if not DeltaTable.is_deltatable(target):
        if not actions:
            return False
        create_table_with_add_actions(
            target, schema_of, actions, partition_by=by, commit_properties=properties
        )
        return True
    if delta_version(target, query) >= batch:
        return False
    DeltaTable(target).create_write_transaction(
        [*actions], "append", schema_of, by, commit_properties=properties
    )
    return True


def delta_version(target: str, query: str) -> int:
    """Return the last batch of a query that a Delta table has, -1 for none."""
    from deltalake import DeltaTable

    if not DeltaTable.is_deltatable(target):
        return -1
    known = DeltaTable(target).transaction_version(query)
    return -1 if known is None else int(known)

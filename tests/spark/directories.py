"""Data directories made on the spot, and their rows as the segments source reads them."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

from pyspark.sql.types import (
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from durastreamd.engine import checkpoint as cp
from durastreamd.engine.opening import open_engine
from durastreamd.engine.options import EngineOptions
from durastreamd.model.draft import AppendCommand, Draft, Payload
from durastreamd.model.namespace import CreateCommand, ForkPoint
from durastreamd.model.records import Record, Snapshot
from durastreamd.spark.options import parse
from durastreamd.spark.rows import RowMaker
from durastreamd.spark.schema import MemberOptions
from durastreamd.spark.segments.options import SegmentOptions
from durastreamd.spark.segments.plan import Piece
from durastreamd.spark.segments.read import Loss, Losses, PieceReader, messages_in
from durastreamd.spark.segments.source import name_of, plan
from durastreamd.storage import format as fmt
from durastreamd.storage.blobs import BlobWriter
from durastreamd.storage.disk import RealDisk

NOW = 1_750_000_000_000
JSON, TEXT, BINARY = "application/json", "text/plain", "application/octet-stream"


class Row(NamedTuple):
    value: bytes
    stream: str
    offset: int
    time_ms: int


OPENED: list["Directory"] = []  # released after the test at the latest


def release_directories() -> None:
    """Release every directory that is still open."""
    for each in OPENED:
        each.release()
    OPENED.clear()


class Directory:
    """A data directory with an engine at work on it."""

    def __init__(self, root: Path, **options: int) -> None:
        root.mkdir(mode=0o700, exist_ok=True)
        self.root = root
        self.disk = RealDisk(str(root))
        self.options = EngineOptions(**options)
        self.now = NOW
        self.engine, _ = open_engine(
            self.disk, self.options, lambda: os.urandom(16), NOW, create=True
        )
        self.expected: dict[str, list[Row]] = {}
        self.ends: dict[tuple[str, int], int] = {}  # position behind each message
        self._held = True
        OPENED.append(self)

    def release(self) -> None:
        """Give the directory back."""
        if self._held:
            self.engine.release()
            self._held = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def commit(self, drafted: tuple[Record, bytes | memoryview] | None) -> None:
        assert drafted is not None
        self.engine.commit([drafted])

    def bucket(self, name: str) -> None:
        _, change = self.engine.namespace.decide_bucket(name, self.now, exists=True)
        assert change is not None
        self.commit((change, b""))

    def create(self, key: str, kind: str = JSON) -> None:
        command = CreateCommand(key, content_type=kind)
        self.commit(self.engine.namespace.decide_create(command, self.now)[1])
        self.expected[key] = []

    def rows(self) -> dict[str, list[Row]]:
        """Return what a read of everything must find, by the names of streams."""
        named = {str(name_of(key)): rows for key, rows in self.expected.items() if rows}
        return {name: [row._replace(stream=name) for row in rows] for name, rows in named.items()}

    def fork(self, key: str, source: str, messages: int) -> None:
        """Fork a stream after some of its messages."""
        inherited = self.expected[source][:messages]
        stream = self.engine.namespace.by_key[source]
        position = self.ends[source, inherited[-1].offset] if inherited else stream.floor
        ordinal = self.engine.view(stream).ordinal_at(position)
        point = ForkPoint(source, position, ordinal, position)
        self.commit(
            self.engine.namespace.decide_create(CreateCommand(key, fork=point), self.now)[1]
        )
        self.expected[key] = [row._replace(stream=key) for row in inherited]
        for row in inherited:
            self.ends[key, row.offset] = self.ends[source, row.offset]

    def append(
        self, key: str, *messages: bytes, producer: tuple[str, int, int] | None = None
    ) -> None:
        """Append messages in one record."""
        stream = self.engine.namespace.by_key[key]
        if self.engine.needs_loading(stream):
            stream.detail = self.engine.load_detail(stream)
        self.now += 1
        draft = Draft(stream, 100)
        if stream.json:
            payload = Payload(b"".join(m + b",\n" for m in messages), len(messages))
            draft.decide(AppendCommand(payload, stream.content_type, producer=producer))
        for message in () if stream.json else messages:
            draft.decide(AppendCommand(Payload(message), stream.content_type))
        position, number = stream.tail, stream.messages
        self.commit(draft.record(self.now))
        for message in messages:
            position += len(message) + (2 if stream.json else 0)
            self.expected[key].append(Row(message, key, number, self.now))
            self.ends[key, number] = position
            number += 1

    def snapshot(self, key: str, position: int) -> None:
        stream = self.engine.namespace.by_key[key]
        writer = BlobWriter(self.disk, stream.id, position, 1)
        writer.write(b"folded")
        writer.finish()
        blob = Snapshot(stream.id, position, 1, "text/plain", writer.size, writer.sum)
        _, publish = self.engine.namespace.decide_publish(key, blob, self.now)
        assert publish is not None
        self.commit((publish, b""))
        self.expected[key] = [
            row for row in self.expected[key] if self.ends[key, row.offset] > position
        ]

    def lost(self, key: str, losses: list[Loss]) -> list[Row]:
        """Return the rows of a stream that losses cover."""
        rows = self.rows()[str(name_of(key))]
        ends = {row: self.ends[key, row.offset] for row in rows}
        return [row for row in rows if any(loss.low < ends[row] <= loss.high for loss in losses)]

    def checkpoint(self) -> None:
        self.engine.journal.rotate()
        cp.run(cp.checkpoint(self.engine))

    def file(self, key: str, suffix: str, number: int = 0) -> Path:
        """Return a segment or an index of a stream."""
        stream = self.engine.namespace.by_key[key]
        return sorted((self.root / fmt.stream_dir(stream.id)).glob(f"*{suffix}"))[number]


SCHEMA = StructType(
    [
        StructField("value", BinaryType()),
        StructField("stream", StringType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
    ]
)


def planned(root: Path, **options: object) -> list[tuple[Piece, ...]]:
    return plan(parse(SegmentOptions, _options(root, options)))


def _options(root: Path, options: Mapping[str, object]) -> dict[str, str]:
    chosen = {"path": str(root), "valueType": "binary"}
    return {**chosen, **{name: str(value) for name, value in options.items()}}


def rows_in(
    root: Path, pieces: Iterator[Piece], losses: Losses | None = None, *, verify: bool = True
) -> Iterator[Row]:
    reader = PieceReader(str(root), losses or Losses(fail=True), verify=verify)
    maker = RowMaker(SCHEMA, MemberOptions())
    for piece in pieces:
        for group in reader.groups(piece):
            for batch in maker.rows(group.extent.name, messages_in(group)):
                batch.validate(full=True)  # type: ignore[attr-defined]
                for row in cast(list[dict[str, Any]], batch.to_pylist()):
                    time_ms = round(row["timestamp"].timestamp() * 1000)
                    yield Row(row["value"], row["stream"], row["offset"], time_ms)


def rows_of(root: Path, losses: Losses | None = None, **options: object) -> dict[str, list[Row]]:
    """Return the rows by stream, in the order they come."""
    found: dict[str, list[Row]] = {}
    for pieces in planned(root, **options):
        for row in rows_in(root, iter(pieces), losses):
            found.setdefault(row.stream, []).append(row)
    return found

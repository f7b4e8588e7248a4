"""``dspipeline compact``: a stream folded by key, published as its snapshot.

The fold covers the snapshot that is there and every message up to the tail as it was when the job
began; it is published at that very offset. Writers go on meanwhile: what they append lies behind
the offset and is not touched. Two compactions at once are safe, too: the server refuses a snapshot
below the one it has, and what both folded is the same.

The snapshot is one JSON object: each key with its state. Without ``--fold`` the state is the last
message. ``--fold MODULE:FUNCTION`` names a function of (state or None, message) that returns the
next state, or None to forget the key; messages are parsed, in the order of the stream.

A published snapshot replaces the messages below it: reading them is answered 410 from then on.
"""

import argparse
import importlib
import json
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from pyspark.sql import DataFrame, Row, SparkSession, functions as F  # noqa: N812

from durastreamd.client import Client, ServerRefusedError
from durastreamd.kit import show
from durastreamd.kit.command import Command, CommandError
from durastreamd.kit.console import Console
from durastreamd.kit.status import CORRUPT, NO_INPUT, OK, USAGE
from durastreamd.protocol.content_type import JSON, is_json
from durastreamd.spark.errors import FoldError
from durastreamd.spark.jobs.job import progress_of, session_of
from durastreamd.spark.jobs.source import add_options
from durastreamd.spark.options import SourceOptions, parse
from durastreamd.spark.server.places import ServerStreams, StreamInfo

Fold = Callable[[object, object], object]
FOLDED = "key STRING, state STRING"
TRIES = 3


class FoldedSnapshot(NamedTuple):
    """What is to be published."""

    offset: str
    body: bytes
    keys: int
    messages: int


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", metavar="URL", required=True, help="the server")
    parser.add_argument("--bucket", metavar="NAME", default="", help="the stream's bucket")
    parser.add_argument("--stream", metavar="NAME", required=True, help="the stream, which is JSON")
    parser.add_argument(
        "--key", metavar="PATH", required=True, help="of a message's key: a member, or $.a.b"
    )
    parser.add_argument(
        "--fold", metavar="MODULE:FUNCTION", default="", help="makes the next state of a key"
    )
    parser.add_argument("--dry-run", action="store_true", help="fold, but do not publish")
    parser.add_argument("--output", metavar="FILE", help="write the snapshot to a file, too")
    add_options(parser)


def load_fold(name: str) -> Fold:
    """Return the function ``module:function`` names."""
    module, colon, function = name.partition(":")
    if not colon or not module or not function:
        reason = f"--fold takes MODULE:FUNCTION, not {name!r}"
        raise CommandError(USAGE, reason)
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as exc:
        reason = f"--fold {name}: {exc}; is the module on PYTHONPATH, here and on the executors?"
        raise CommandError(USAGE, reason) from exc
    if not callable(found):
        reason = f"--fold {name} is no function"
        raise CommandError(USAGE, reason)
    folding: Fold = found
    return folding


def key_path(given: str) -> str:
    """Return a key as Spark's get_json_object wants it."""
    return given if given.startswith("$") else f"$['{given}']"


# --- folding ---


def fold_rows(rows: Iterable[Row], name: str) -> Iterator[tuple[str, str]]:
    """Fold rows that come sorted by key and number; runs in an executor.

    A row of number -1 is the state of a key so far.
    """
    fold = load_fold(name)
    key: str | None = None
    state: object = None
    for row in rows:
        if row.key != key:
            if key is not None and state is not None:
                yield key, _encoded(key, state, name)
            key, state = row.key, None
        message = json.loads(row.value)
        state = message if row.number < 0 else _folded(fold, state, message, row, name)
    if key is not None and state is not None:
        yield key, _encoded(key, state, name)


def _folded(fold: Fold, state: object, message: object, row: Row, name: str) -> object:
    try:
        return fold(state, message)
    except Exception as exc:
        reason = f"{name} failed on message {row.number} of key {row.key!r}: {exc!r}"
        raise FoldError(reason) from exc


def _encoded(key: str, state: object, name: str) -> str:
    try:
        return json.dumps(state, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as exc:
        reason = f"{name} made a state of key {key!r} that is no JSON: {exc}"
        raise FoldError(reason) from exc


def folded(rows: DataFrame, fold: str) -> DataFrame:
    """Return (key, state) of rows (key, number, value)."""
    if not fold:
        last = F.max_by("value", "number").alias("state")
        return rows.groupBy("key").agg(last)
    ordered = rows.repartition("key").sortWithinPartitions("key", "number")
    return ordered.rdd.mapPartitions(lambda part: fold_rows(part, fold)).toDF(FOLDED)


# --- the stream ---


class Compaction:
    """One attempt to fold a stream, as it is now."""

    def __init__(self, spark: SparkSession, args: argparse.Namespace) -> None:
        self._spark = spark
        self._args = args
        self._options = source_options(args)
        self._streams = ServerStreams(parse(SourceOptions, self._options))
        self._client: Client = self._streams.client
        self.seen: StreamInfo | None = None

    def look(self) -> StreamInfo:
        """Return the stream's ends, or say why it cannot be folded."""
        name = self._args.stream
        look = self._streams.look(name)
        if look is None:
            reason = f"there is no stream {name!r} at {self._streams.url(name)}"
            raise CommandError(NO_INPUT, reason)
        if not is_json(look.content_type):
            reason = f"stream {name!r} is {look.content_type}; only JSON can be folded by key"
            raise CommandError(USAGE, reason)
        return look

    def states(self, look: StreamInfo) -> dict[str, object]:
        """Return the states of the snapshot that is there."""
        if not look.snapshot:
            return {}
        url = f"{self._streams.url(self._args.stream)}/snapshot/{look.snapshot}"
        try:
            found = json.loads(self._client.get(url).body)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            reason = (
                f"{url} is no JSON object of keys and states, so it was not made by compact; "
                "folding over it would lose what it holds"
            )
            raise CommandError(CORRUPT, reason)
        return found

    def fold(self) -> FoldedSnapshot | None:
        """Fold up to the tail of this moment; None where there is nothing new."""
        self.seen = look = self.look()
        if look.tail.token == look.snapshot or look.tail.number == look.first.number:
            return None
        rows = self._rows(look)
        states = self.states(look)
        if states:
            kept = [(key, -1, json.dumps(state)) for key, state in states.items()]
            before = self._spark.createDataFrame(kept, "key STRING, number LONG, value STRING")
            rows = before.unionByName(rows)
        found = folded(rows, self._args.fold).collect()
        members = ",\n".join(f"{json.dumps(row.key)}:{row.state}" for row in sorted(found))
        count = look.tail.number - max(look.first.number, 0)
        return FoldedSnapshot(look.tail.token, f"{{{members}}}".encode(), len(found), count)

    def _rows(self, look: StreamInfo) -> DataFrame:
        # Exact bounds: a snapshot that another one publishes meanwhile makes the read fail.
        options = {
            **self._options,
            "startingOffsets": json.dumps({self._args.stream: look.first.token}),
            "endingOffsets": json.dumps({self._args.stream: look.tail.token}),
        }
        read = self._spark.read.format("durastream").options(**options).load()
        key = F.get_json_object("value", key_path(self._args.key)).alias("key")
        rows = read.select(key, F.col("offset").alias("number"), "value")
        nobody = f"a message of stream {self._args.stream!r} has no key {self._args.key!r}: "
        said = F.concat(F.lit(nobody), F.substring("value", 1, 200))
        return rows.withColumn(
            "key", F.when(F.col("key").isNull(), F.raise_error(said)).otherwise(F.col("key"))
        )

    def publish(self, snapshot: FoldedSnapshot) -> bool:
        """Publish; False where another compaction was faster and went further."""
        url = f"{self._streams.url(self._args.stream)}/snapshot/{snapshot.offset}"
        headers = {"Content-Type": JSON}
        try:
            self._client.request("PUT", url, headers, snapshot.body)
        except ServerRefusedError as exc:
            if exc.status == 410:
                return False
            raise
        return True


def source_options(args: argparse.Namespace) -> dict[str, str]:
    """Return the options that read the stream."""
    chosen = {"url": args.url, "bucket": args.bucket, "subscribe": args.stream}
    return {**{name: value for name, value in chosen.items() if value}, **args.option}


def _run(args: argparse.Namespace, console: Console) -> int:
    if args.fold:
        load_fold(args.fold)
    parse(SourceOptions, source_options(args))
    spark = session_of(args)
    begin = time.monotonic()
    with progress_of(spark, console):
        snapshot, published = _compact(Compaction(spark, args), console, dry=args.dry_run)
    seconds = time.monotonic() - begin
    if snapshot is None:
        console.summary(f"{args.stream}: nothing new to compact", {"published": False})
        return OK
    if args.output:
        with open(args.output, "wb") as file:
            file.write(snapshot.body)
    done = "published" if published else "not published"
    text = (
        f"{args.stream}: {snapshot.messages:,} messages folded into {snapshot.keys:,} keys, "
        f"{show.size(len(snapshot.body))}, {done} at {snapshot.offset} in {seconds:.1f} s"
    )
    members: dict[str, object] = {
        "stream": args.stream,
        "messages": snapshot.messages,
        "keys": snapshot.keys,
        "bytes": len(snapshot.body),
        "offset": snapshot.offset,
        "published": published,
        "seconds": round(seconds, 3),
    }
    console.summary(text, members)
    return OK


def _compact(
    compaction: Compaction, console: Console, *, dry: bool
) -> tuple[FoldedSnapshot | None, bool]:
    for left in reversed(range(TRIES)):
        try:
            snapshot = compaction.fold()
        except Exception:
            # A snapshot that another one published takes the history we were reading.
            before = compaction.seen
            if not left or before is None or compaction.look().snapshot == before.snapshot:
                raise
            console.note("the stream was compacted by another meanwhile; folding it again")
            continue
        if snapshot is None or dry:
            return snapshot, False
        if compaction.publish(snapshot):
            return snapshot, True
        console.note("a newer snapshot is there; nothing was published")
        return snapshot, False
    raise AssertionError


COMMAND = Command(
    "compact", "fold a stream by key and publish it as its snapshot", _arguments, _run
)

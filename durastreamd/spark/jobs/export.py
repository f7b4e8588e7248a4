"""``dspipeline export``: streams as Parquet or Delta, each run going on where the last one ended.

Over HTTP it is a streaming query that ends when it has caught up: Spark's checkpoint says what was
exported. From a data directory it is a batch between two sets of offsets, kept in the same place:
``pending`` is written before the work and ``done`` after it, so a run that died is run again with
the bounds it had, and replaces what it left.
"""

import argparse
import json
import os
import re
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from pyarrow import fs
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from durastreamd.kit.command import Command, CommandError
from durastreamd.kit.console import Console
from durastreamd.kit.status import OK, USAGE
from durastreamd.offline.opening import Opened, disk_at, with_directory
from durastreamd.spark.errors import DataLossError
from durastreamd.spark.jobs import files
from durastreamd.spark.jobs.job import progress_of, session_of
from durastreamd.spark.jobs.source import add_source, source_options
from durastreamd.spark.options import SourceOptions, parse
from durastreamd.spark.segments.options import SegmentOptions
from durastreamd.spark.segments.source import chosen, is_binary
from durastreamd.storage import datadir

OFFSETS = "offsets.json"


class Done(NamedTuple):
    """What a run exported."""

    rows: int
    batches: int
    streams: int


def _arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    parser.add_argument("--to", metavar="DIR", required=True, help="directory or URI of the export")
    parser.add_argument(
        "--format",
        choices=(files.PARQUET, files.DELTA),
        default=files.PARQUET,
        help="of the export",
    )
    parser.add_argument(
        "--checkpoint",
        metavar="DIR",
        help="where it is kept what was exported; default: _checkpoint in the export",
    )


def _run(args: argparse.Namespace, console: Console) -> int:
    target = args.to if "://" in args.to else str(Path(args.to).absolute())
    files.place_of(target)
    checkpoint = args.checkpoint or f"{target}/_checkpoint"
    options = source_options(args)
    if args.url is None:  # wrong options and a missing directory are told before a JVM is started
        datadir.read_identity(disk_at(parse(SegmentOptions, options).path))
    else:
        parse(SourceOptions, options)
    spark = session_of(args)
    spark.dataSource.register(files.FilesSink)
    begin = time.monotonic()
    with progress_of(spark, console):
        if args.url is None:
            done = _from_directory(spark, options, target, checkpoint, args.format)
        else:
            done = _from_server(spark, options, target, checkpoint, args.format)
    seconds = time.monotonic() - begin
    text = (
        f"exported {done.rows:,} messages of {done.streams} streams in {done.batches} batches "
        f"to {target} in {seconds:.1f} s"
    )
    members: dict[str, object] = {**done._asdict(), "to": target, "seconds": round(seconds, 3)}
    console.summary(text, members)
    return OK


# --- over HTTP ---


def _from_server(
    spark: SparkSession, options: dict[str, str], target: str, checkpoint: str, kind: str
) -> Done:
    rows = spark.readStream.format("durastream").options(**options).load()
    query = (
        rows.writeStream.format(files.FilesSink.name())
        .options(path=target, kind=kind)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    except BaseException:
        query.stop()
        raise
    return _progress(query)


def _progress(query: StreamingQuery) -> Done:
    rows = batches = 0
    streams: set[str] = set()
    for progress in query.recentProgress:
        rows += progress.numInputRows
        batches += progress.numInputRows > 0
        for source in progress.sources:
            try:
                places = json.loads(source.endOffset or "{}").get("streams", {})
            except (ValueError, AttributeError):
                places = {}
            streams |= set(places) if isinstance(places, dict) else set()
    return Done(rows, batches, len(streams))


# --- from a data directory ---


class Checkpoint(NamedTuple):
    """How far the export of a data directory has come."""

    query: str
    batch: int
    done: dict[str, int]  # messages exported of each stream
    pending: dict[str, int] | None = None  # the ends of a batch under way
    lives: dict[str, str] = {}  # noqa: RUF012  # which life of its name was exported, of each


def load_checkpoint(home: Path) -> Checkpoint:
    """Return the checkpoint, a new one where there is none."""
    path = home / OFFSETS
    if not path.exists():
        return Checkpoint(uuid.uuid4().hex[:12], 0, {})
    try:
        return Checkpoint(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as exc:
        reason = f"{path} is no checkpoint of an export: {exc}; give another --checkpoint"
        raise CommandError(USAGE, reason) from exc


def save_checkpoint(home: Path, state: Checkpoint) -> None:
    """Write the checkpoint, durable and whole."""
    home.mkdir(parents=True, exist_ok=True)
    beside = home / f".{OFFSETS}.new"
    with beside.open("w", encoding="utf-8") as file:
        json.dump(state._asdict(), file)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(home / OFFSETS)


class Ends(NamedTuple):
    """Of each chosen stream its first message, the one after its last, the life of its name."""

    firsts: dict[str, int]
    tails: dict[str, int]
    lives: dict[str, str]


def _ends(options: SegmentOptions) -> Ends:
    def look(found: Opened) -> Ends:
        streams = [(name, stream) for name, stream in chosen(found, options) if not stream.damage]
        views = {name: found.engine.view(stream) for name, stream in streams}
        firsts = {name: view.ordinal_at(view.floor) for name, view in views.items()}
        lives = {name: found.engine.incarnation(stream) for name, stream in streams}
        return Ends(firsts, {name: stream.messages for name, stream in streams}, lives)

    return with_directory(options.path, look)


def of_these_lives(state: Checkpoint, found: Ends, *, fail: bool) -> Checkpoint:
    """Return a checkpoint without streams that were deleted and made anew, or raise for one."""
    known = state.lives
    anew = {name for name, life in found.lives.items() if known.get(name, life) != life}
    if anew and fail:
        message = (
            f"Stream {min(anew)} was deleted and made anew since it was exported; the new one is "
            "another stream. With --option failOnDataLoss=false it is exported from its beginning."
        )
        raise DataLossError(message)
    done = {name: end for name, end in state.done.items() if name not in anew}
    pending = state.pending
    if pending is not None:
        pending = {name: end for name, end in pending.items() if name not in anew}
    return state._replace(done=done, pending=pending, lives={**known, **found.lives})


def _from_directory(
    spark: SparkSession, options: dict[str, str], target: str, checkpoint: str, kind: str
) -> Done:
    if "://" in checkpoint:
        reason = "the checkpoint of a data directory's export is a local directory; --checkpoint"
        raise CommandError(USAGE, reason)
    home = Path(checkpoint)
    made = parse(SegmentOptions, options)
    firsts, tails, _ = found = _ends(made)
    state = of_these_lives(load_checkpoint(home), found, fail=made.fail_on_data_loss)
    pending, committed = state.pending, False
    if pending is None:
        pending = tails
        save_checkpoint(home, state._replace(pending=pending))
    elif kind == files.DELTA and files.delta_version(target, state.query) >= state.batch:
        committed = True  # it died between the table's commit and the checkpoint
    else:
        _remove_left(target, files.batch_mark(state.query, state.batch))
    ends = {name: min(end, tails[name]) for name, end in pending.items() if name in tails}
    starts = {name: max(state.done.get(name, 0), firsts[name]) for name in ends}
    moved = [name for name in ends if ends[name] > starts[name]]
    if moved and not committed:
        bounds = {
            "startingOffsets": json.dumps({name: starts[name] for name in moved}),
            "endingOffsets": json.dumps({name: ends[name] for name in moved}),
            "subscribePattern": "|".join(map(re.escape, moved)),
            "subscribe": "",
            # Of all that is chosen, not of what has moved: one type for every run.
            "valueType": "binary" if is_binary(made) else "string",
        }
        rows = spark.read.format("durastream-segments").options(**{**options, **bounds}).load()
        writer = rows.write.format(files.FilesSink.name()).mode("append")
        writer.options(path=target, kind=kind, query=state.query, batch=str(state.batch)).save()
    done = {**state.done, **ends}
    save_checkpoint(home, Checkpoint(state.query, state.batch + 1, done, lives=state.lives))
    total = sum(ends[name] - starts[name] for name in moved)
    return Done(total, int(bool(moved)), len(moved))


def _remove_left(target: str, prefix: str) -> None:
    """Remove what a run that died left of its batch: its layout may not be the next one's."""
    place = files.place_of(target)
    found: Iterable[object] = place.system.get_file_info(  # type: ignore[attr-defined]
        fs.FileSelector(place.path, recursive=True, allow_not_found=True)
    )
    for info in found:
        name: str = info.base_name  # type: ignore[attr-defined]
        if name.lstrip(".").startswith(prefix):
            place.system.delete_file(info.path)  # type: ignore[attr-defined]


COMMAND = Command(
    "export", "streams to Parquet or Delta, going on where it ended", _arguments, _run
)

"""``dspipeline import``: files into streams, every line once, however often it is run.

Each file is a producer of its own, named after the import, its path, size and time; the server
stores what a producer sends once. So a run that died is simply run again: what had arrived is
recognised. A file is one task, and its lines keep their order; files go one after the other, in
the order of their names, unless ``--unordered`` lets them go side by side.
"""

import argparse
import hashlib
import json
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession, functions as F  # noqa: N812

from durastreamd.kit import show
from durastreamd.kit.command import Command, CommandError
from durastreamd.kit.console import Console
from durastreamd.kit.status import NO_INPUT, OK, USAGE
from durastreamd.spark.jobs.job import progress_of, session_of
from durastreamd.spark.jobs.source import add_options
from durastreamd.spark.options import SinkOptions, parse

AT_ONCE = 16  # files under way with --unordered; Spark shares its cores among them

JSON, TEXT, PARQUET = "json", "text", "parquet"

# One partition per file, whatever the number of cores: a file that is read again must come in the
# same pieces. So large that nothing is split, and a cost of opening that nothing is joined.
LAYOUT = {
    "spark.sql.files.maxPartitionBytes": str(2**60),
    "spark.sql.files.openCostInBytes": str(2**60),
    "spark.sql.files.minPartitionNum": "1",
}


class File(NamedTuple):
    """A file to import."""

    path: str
    size: int
    time_ms: int


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", metavar="FILE", nargs="+", help="files, directories or patterns")
    parser.add_argument("--url", metavar="URL", required=True, help="the server")
    parser.add_argument("--bucket", metavar="NAME", default="", help="streams of this bucket")
    parser.add_argument("--stream", metavar="NAME", default="", help="the stream to append to")
    parser.add_argument(
        "--stream-column",
        metavar="NAME",
        default="",
        help="the column (Parquet) or member (JSON) that names the stream of a row",
    )
    parser.add_argument(
        "--format",
        choices=(JSON, TEXT, PARQUET),
        default=JSON,
        help="of the files: JSON lines, lines of text, Parquet",
    )
    parser.add_argument(
        "--id", metavar="NAME", default="", help="another one imports the same files again"
    )
    parser.add_argument("--create", action="store_true", help="create streams that are missing")
    parser.add_argument("--unordered", action="store_true", help="import files side by side")
    add_options(parser)


def sink_options(args: argparse.Namespace) -> dict[str, str]:
    """Return the options of the sink."""
    if bool(args.stream) == bool(args.stream_column):
        reason = "say where rows go: --stream NAME, or --stream-column NAME for a stream per row"
        raise CommandError(USAGE, reason)
    if args.format == TEXT and args.stream_column:
        reason = "a line of text names no stream; use --stream"
        raise CommandError(USAGE, reason)
    found = {"url": args.url, "bucket": args.bucket, "stream": args.stream}
    if args.create:
        found["createStreams"] = "true"
        if args.format == TEXT:
            found["contentType"] = "text/plain"
    found = {name: value for name, value in found.items() if value}
    # A file is one partition, whose lines come in the same order every time.
    found["commitMode"] = "partition"
    found.update(args.option)
    if args.format == TEXT:
        found.setdefault("lineSep", "\n")
    parse(SinkOptions, found)  # wrong ones are told before a JVM is started
    return found


def list_files(spark: SparkSession, paths: list[str]) -> list[File]:
    """Return the files that paths name, in the order of their names."""
    try:
        listed = spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(paths)
        rows = listed.select("path", "length", F.unix_millis("modificationTime").alias("ms"))
        found = [File(row.path, row.length, row.ms) for row in rows.collect()]
    except AnalysisException as exc:
        reason = f"cannot find the files: {exc.getMessage() or exc}"
        raise CommandError(NO_INPUT, reason) from None
    if not found:
        reason = f"there are no files in {', '.join(paths)}"
        raise CommandError(NO_INPUT, reason)
    return sorted(found)


def producer_of(file: File, name: str) -> str:
    """Return the producer of a file: the same file has the same one every time."""
    mark = hashlib.sha256(f"{name}\n{file.path}\n{file.size}\n{file.time_ms}".encode())
    return f"import-{mark.hexdigest()[:24]}"


def rows_of(spark: SparkSession, file: File, kind: str, column: str) -> DataFrame:
    """Return a file's rows: value, and stream where rows say it."""
    if kind == PARQUET:
        rows = spark.read.parquet(file.path)
        if column and column not in rows.columns:
            reason = f"{file.path} has no column {column!r}; it has {', '.join(rows.columns)}"
            raise CommandError(USAGE, reason)
        value = F.to_json(F.struct(*[name for name in rows.columns if name != column]))
        columns = [value.alias("value")]
        if column:
            columns.append(F.col(column).cast("string").alias("stream"))
        return rows.select(*columns)
    rows = spark.read.option("lineSep", "\n").text(file.path)
    if kind == JSON:
        rows = rows.where(F.trim("value") != "")
        if column:
            member = F.get_json_object("value", f"$['{column}']")
            rows = rows.withColumn("stream", member)
    return rows


def _run(args: argparse.Namespace, console: Console) -> int:
    options = sink_options(args)
    spark = session_of(args, LAYOUT)
    for key, value in LAYOUT.items():
        spark.conf.set(key, value)
    begin = time.monotonic()
    files = list_files(spark, args.paths)
    report = Path(tempfile.mkdtemp()) / "report"

    def one(file: File) -> None:
        rows = rows_of(spark, file, args.format, args.stream_column)
        writer = rows.write.format("durastream").mode("append").options(**options)
        writer.options(txnAppId=producer_of(file, args.id), txnVersion="0")
        writer.option("reportFile", str(report)).save()
        console.note(f"{file.path}: done")

    with progress_of(spark, console):
        if args.unordered:
            with ThreadPoolExecutor(AT_ONCE, initializer=_enter, initargs=(spark,)) as pool:
                for _ in pool.map(one, files):
                    pass
        else:
            for file in files:
                one(file)
    seconds = time.monotonic() - begin
    size = sum(file.size for file in files)
    lines = report.read_text().splitlines() if report.exists() else []
    shutil.rmtree(report.parent)
    told = [json.loads(line) for line in lines]
    known = sum(each["recognised"] for each in told)
    rows = sum(each["rows"] for each in told) - known
    text = (
        f"imported {len(files)} files, {show.size(size)} in {seconds:.1f} s: {rows:,} rows written,"
        f" {known:,} were there already; each is there once"
    )
    members: dict[str, object] = {
        "files": len(files),
        "bytes": size,
        "rows": rows,
        "recognised": known,
        "seconds": round(seconds, 3),
    }
    console.summary(text, members)
    return OK


def _enter(spark: SparkSession) -> None:
    """Make the session this thread's: Spark looks formats up in it, and has no call for it."""
    jvm = spark.sparkContext._jvm  # noqa: SLF001
    assert jvm is not None
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)  # noqa: SLF001


COMMAND = Command(
    "import", "files of JSON lines, text or Parquet into streams, once", _arguments, _run
)

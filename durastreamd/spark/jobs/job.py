"""What every job does: get its session, and say now and then how far Spark has come."""

import argparse
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

from durastreamd.kit.console import Console
from durastreamd.spark.session import build_session

PROGRESS_S = 2.0
# What our jobs shuffle is keys and sums, seldom messages; Spark would take 200.
SHUFFLE_PARTITIONS = "16"


def session_of(args: argparse.Namespace, settings: Mapping[str, str] | None = None) -> SparkSession:
    """Return the session of a job, as its command line asks for it."""
    chosen = {"spark.sql.shuffle.partitions": SHUFFLE_PARTITIONS, **(settings or {})}
    return build_session(f"dspipeline {args.command}", args.master, {**chosen, **args.conf})


@contextmanager
def progress_of(spark: SparkSession, console: Console) -> Iterator[None]:
    """Say now and then how many tasks of the running stages are done."""
    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(spark, console, ended), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _watch(spark: SparkSession, console: Console, ended: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    begin = time.monotonic()
    while not ended.wait(PROGRESS_S):
        found = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        stages = [stage for stage in found if stage is not None]
        if stages:
            done = sum(stage.numCompletedTasks for stage in stages)
            total = sum(stage.numTasks for stage in stages)
            console.note(f"{done} of {total} tasks done, {time.monotonic() - begin:.0f} s")

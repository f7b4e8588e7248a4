"""What a job is made of: its arguments, its run, and what it says meanwhile.

Results go to standard output, one summary line last; everything about the work goes to standard
error, so that both can be piped.
"""

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, TextIO

from pyspark.sql import SparkSession

from durastreamd.spark.session import build_session

# Exit statuses, those of dsadmin.
OK = 0
USAGE = 64
CORRUPT = 65
NO_INPUT = 66
UNAVAILABLE = 69
FAILED = 70
IO_ERROR = 74

PROGRESS_S = 2.0
# What our jobs shuffle is keys and sums, seldom messages; Spark would take 200.
SHUFFLE_PARTITIONS = "16"


class JobError(Exception):
    """A job cannot go on; the text says why and what to do, ``status`` how to exit."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass
class Console:
    """The two outputs of a job, and the session it works in."""

    out: TextIO = field(default_factory=lambda: sys.stdout)
    err: TextIO = field(default_factory=lambda: sys.stderr)
    as_json: bool = False
    master: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)

    def line(self, text: str) -> None:
        """Write one line of the result."""
        if not self.as_json:
            self.out.write(text + "\n")

    def summary(self, text: str, members: dict[str, object]) -> None:
        """Write the last line: in words, or as JSON."""
        shown = json.dumps(members, ensure_ascii=False) if self.as_json else text
        self.out.write(shown + "\n")
        self.out.flush()

    def note(self, text: str) -> None:
        """Say something about the work: never part of the result."""
        self.err.write(f"dspipeline: {text}\n")
        self.err.flush()

    def spark(self, name: str, settings: Mapping[str, str] | None = None) -> SparkSession:
        """Return the session of a job."""
        chosen = {"spark.sql.shuffle.partitions": SHUFFLE_PARTITIONS, **(settings or {})}
        return build_session(f"dspipeline {name}", self.master, {**chosen, **self.settings})

    @contextmanager
    def progress(self, spark: SparkSession) -> Iterator[None]:
        """Say now and then how many tasks of the running stages are done."""
        ended = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(spark, ended), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()

    def _watch(self, spark: SparkSession, ended: threading.Event) -> None:
        tracker = spark.sparkContext.statusTracker()
        begin = time.monotonic()
        while not ended.wait(PROGRESS_S):
            found = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            stages = [stage for stage in found if stage is not None]
            if stages:
                done = sum(stage.numCompletedTasks for stage in stages)
                total = sum(stage.numTasks for stage in stages)
                self.note(f"{done} of {total} tasks done, {time.monotonic() - begin:.0f} s")


class Job(NamedTuple):
    """One word after ``dspipeline``."""

    name: str
    summary: str  # the line of ``dspipeline --help``
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, Console], int]


def size_text(size: float) -> str:
    """Return a number of bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"

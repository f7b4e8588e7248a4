"""Checking segments on every core: processes, because hashing small records is work for Python."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Protocol

from durastreamd.offline.verify.segments import SegmentReport, SegmentTask, check_segment
from durastreamd.offline.verify.verification import Runner
from durastreamd.storage import format as fmt
from durastreamd.storage.disk import RealDisk, file_size

_CHUNK_TASKS_MAX = 32


class Meter(Protocol):
    """Where it is shown how far the work has come; the kit's console is one."""

    @property
    def shows_progress(self) -> bool:
        """Tell whether anybody looks."""

    def working(
        self, what: str, bytes_total: int, /
    ) -> AbstractContextManager[Callable[[int], None]]:
        """Lend what is told of each step."""


_disk: RealDisk | None = None


def cores() -> int:
    """Return how many processes may run at once."""
    return len(os.sched_getaffinity(0))


def _begin(root: str) -> None:
    global _disk  # a worker process has one data directory
    _disk = RealDisk(root)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is told, and ends us


def _check(tasks: list[SegmentTask]) -> list[SegmentReport]:
    assert _disk is not None
    return [check_segment(_disk, task) for task in tasks]


def _pool(root: str, jobs: int) -> ProcessPoolExecutor:
    """Return a pool whose processes are there: forked before anything here starts a thread."""
    context = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin, initargs=(root,))
    pool.submit(_check, []).result()
    return pool


@contextmanager
def running(root: str, jobs: int, progress: Meter, what: str) -> Iterator[Runner]:
    """Lend a runner with that many processes, which shows how far it has come."""
    disk = RealDisk(root)
    pool = _pool(root, jobs) if jobs > 1 else None

    def run(tasks: list[SegmentTask]) -> Iterator[tuple[SegmentTask, SegmentReport]]:
        size = max(1, min(_CHUNK_TASKS_MAX, len(tasks) // (jobs * 8)))
        chunks = [tasks[at : at + size] for at in range(0, len(tasks), size)]
        total = sum(_bytes_of(disk, task) for task in tasks) if progress.shows_progress else 0
        with progress.working(what, total) as advance:
            results: Iterator[list[SegmentReport]]
            if pool is None:
                results = ([check_segment(disk, task) for task in chunk] for chunk in chunks)
            else:
                results = pool.map(_check, chunks)
            for chunk, reports in zip(chunks, results, strict=True):
                for task, report in zip(chunk, reports, strict=True):
                    yield task, report
                    advance(report.bytes_read)

    try:
        yield run
    finally:
        if pool is not None:
            pool.shutdown(cancel_futures=True)


def _bytes_of(disk: RealDisk, task: SegmentTask) -> int:
    total = 0
    paths = [fmt.index_path(task.stream, task.base)]
    paths += [fmt.segment_path(task.stream, task.base)] if task.deep else []
    for path in paths:
        with suppress(OSError):
            total += file_size(disk, path)
    return total

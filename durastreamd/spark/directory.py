"""A data directory as a job sees it: opened as a server would open it, and left as it was.

The journal's newer records are in the engine's state and nowhere else, so a plan made from the
files alone would miss what was acknowledged in the last half minute. ``opened`` replays them into
memory, over the real files. It takes no lock, so it works beside a running server, on a backup and
on a read-only mount; a file that goes while we look means: look again.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

from durastreamd.engine import checkpoint as cp
from durastreamd.engine.engine import Engine
from durastreamd.engine.opening import Report, open_engine
from durastreamd.engine.options import EngineOptions
from durastreamd.errors import CorruptDataError, DataDirectoryError, WriteFailedError
from durastreamd.model.stream_state import Stream
from durastreamd.storage import catalog, datadir, log
from durastreamd.storage.disk import RealDisk
from durastreamd.storage.overlay import OverlayDisk

logger = logging.getLogger(__name__)
T = TypeVar("T")

# Beside a busy server a checkpoint may remove files under us; twice in a row is bad luck, five
# times is damage.
_TRIES = 5
_PAUSE_S = 0.1  # longer than the few renames and removals of a checkpoint


class Opened(NamedTuple):
    """A data directory: its files, its state, and how much of the state the files hold."""

    root: str
    disk: RealDisk
    engine: Engine
    placements: dict[int, log.Placement]  # of the last checkpoint, by stream
    journal_first: int
    now_ms: int
    report: Report  # of opening


class Level(NamedTuple):
    """A run of a stream's bytes and whose files they are in: a fork begins in its source's."""

    owner: int
    low: int
    high: int


def disk_at(root: str) -> RealDisk:
    """Return a directory as a disk, or say that it is not there."""
    if not Path(root).is_dir():
        reason = (
            f"{root} is not a directory on this machine; the driver and every executor must see "
            "the data directory (or its backup) under the same path"
        )
        raise DataDirectoryError(reason)
    return RealDisk(root)


def with_directory(root: str, work: Callable[[Opened], T]) -> T:
    """Return what ``work`` makes of the data directory; look again if files went meanwhile."""
    disk = disk_at(root)
    for left in reversed(range(_TRIES)):
        overlay = OverlayDisk(disk)
        try:
            found = _open(root, disk, overlay)
            try:
                return work(found)
            finally:
                found.engine.release()
        except (FileNotFoundError, CorruptDataError, WriteFailedError) as exc:
            # The last of them: the server has begun the very journal file that recovery would.
            if not left:
                raise
            logger.info("%s: looking again: %s", root, exc)
            time.sleep(_PAUSE_S)
        finally:
            overlay.release_base()
    raise AssertionError


def _open(root: str, disk: RealDisk, overlay: OverlayDisk) -> Opened:
    identity = datadir.read_identity(disk)
    # Read before the engine opens: what the files hold now they hold then, too.
    loaded = catalog.load(disk, identity.uuid)
    placements = {
        row[1][0]: log.Placement(*row[2])  # type: ignore[index,misc]  # CBOR is untyped
        for row in cp.keyed(loaded.rows).values()
        if row[0] == cp.STREAM
    }
    now_ms = time.time_ns() // 1_000_000
    engine, report = open_engine(overlay, EngineOptions(), lambda: os.urandom(16), now_ms)
    return Opened(root, disk, engine, placements, loaded.commit.journal_first, now_ms, report)


def streams_of(found: Opened) -> Iterator[Stream]:
    """Yield the streams that are there to be read, in the order of their names."""
    for stream in found.engine.namespace.by_key.values():
        if not stream.gone and not stream.expired(found.now_ms):
            yield stream


def levels_of(engine: Engine, stream: Stream) -> list[Level]:
    """Return whose files hold a stream's bytes, in the order of position."""
    parts = engine.namespace.lineage.parts(stream)
    levels = [Level(holder.id, low, high) for holder, low, high in parts if low < high]
    return levels[::-1]

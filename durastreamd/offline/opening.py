"""Opening a data directory to look at it, beside a running daemon or without one.

Nothing is locked and nothing is written: recovery runs through an ``OverlayDisk``. The journal's
newer records are in the engine's state and nowhere else, so whoever looks at the files alone misses
what was acknowledged since the last checkpoint. Beside a running daemon files come and go between
two looks; whatever does not fit together then is looked at again, and only what stays wrong is
believed.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

from durastreamd.engine.engine import Engine
from durastreamd.engine.opening import Report, open_engine
from durastreamd.engine.options import EngineOptions
from durastreamd.errors import DataDirectoryError, StorageError
from durastreamd.model.namespace import Namespace
from durastreamd.storage import catalog, datadir, format as fmt, log
from durastreamd.storage.disk import Disk, RealDisk
from durastreamd.storage.overlay import OverlayDisk

logger = logging.getLogger(__name__)
T = TypeVar("T")
Note = Callable[[str], None]

# A look takes milliseconds and a checkpoint comes every few seconds, so two looks nearly always do.
LOOKS_MAX = 10
LOOK_AGAIN_S = 0.05


def looks(
    count: int = LOOKS_MAX,
    pause_s: float = LOOK_AGAIN_S,
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[bool]:
    """Yield for each look at files that a daemon may be changing, with a pause between two.

    True for the last one: what it finds is believed.
    """
    for number in range(1, count + 1):
        if number > 1:
            pause(pause_s)
        yield number == count


class Opened(NamedTuple):
    """A data directory as of one moment."""

    disk: RealDisk  # the files as they are
    engine: Engine  # recovered from them, in memory
    report: Report  # what recovery found
    running: bool  # whether a daemon has the directory
    stored: dict[int, log.Placement]  # how much of each stream the last checkpoint covers
    journal_first: int  # the first journal file that it does not cover
    now_ms: int

    @property
    def namespace(self) -> Namespace:
        """Every stream and bucket."""
        return self.engine.namespace

    def release(self) -> None:
        """Give every file back."""
        self.engine.release()
        if isinstance(self.engine.disk, OverlayDisk):
            self.engine.disk.release_base()


class _Notes(logging.Handler):
    """Keeps what recovery logs, so that only the look that counts is told of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextmanager
def _listening() -> Iterator[_Notes]:
    logger = logging.getLogger("durastreamd")
    notes, propagate = _Notes(), logger.propagate
    logger.addHandler(notes)
    logger.propagate = False
    try:
        yield notes
    finally:
        logger.removeHandler(notes)
        logger.propagate = propagate


def now_ms() -> int:
    """Return the time of day."""
    return time.time_ns() // 1_000_000


@contextmanager
def opened(disk: RealDisk, options: EngineOptions, note: Note) -> Iterator[Opened]:
    """Lend a data directory, recovered in memory and left as it is."""
    found = look(disk, options, note)
    try:
        yield found
    finally:
        found.release()


@contextmanager
def recovered(disk: Disk, options: EngineOptions) -> Iterator[Engine]:
    """Lend the engine of a directory that nobody else has: a copy, a backup. One look is enough."""
    overlay = OverlayDisk(disk)
    try:
        engine, _ = open_engine(overlay, options, lambda: b"", now_ms())
        try:
            yield engine
        finally:
            engine.release()
    finally:
        overlay.release_base()


def with_directory(root: str, work: Callable[[Opened], T]) -> T:
    """Return what ``work`` makes of a data directory; look again if files went meanwhile.

    Also where no daemon is to be seen: one on another machine has its lock there.
    """
    disk = disk_at(root)
    for last in looks():
        try:
            with opened(disk, EngineOptions(), logger.warning) as found:
                return work(found)
        except (FileNotFoundError, StorageError) as exc:
            if last or isinstance(exc, DataDirectoryError):
                raise
            logger.info("%s: looking again: %s", root, exc)
    raise AssertionError  # the last look returns or raises


def disk_at(root: str) -> RealDisk:
    """Return a directory as a disk, or say that it is not there."""
    if not Path(root).is_dir():
        reason = (
            f"{root} is not a directory on this machine; the driver and every executor must see "
            "the data directory (or its backup) under the same path"
        )
        raise DataDirectoryError(reason)
    return RealDisk(root)


def look(disk: RealDisk, options: EngineOptions, note: Note) -> Opened:
    """Open a directory in memory, as often as it takes beside a running daemon."""
    for last in looks():
        running = in_use(disk)
        believed = last or not running
        with _listening() as notes:
            try:
                found = _look(disk, options, running=running)
            except (OSError, StorageError):
                if believed:
                    raise
                continue
        if believed or not found.report.damaged or not notes.lines:
            if not running:  # beside a daemon a torn end is a batch on its way
                for line in notes.lines:
                    note(line)
            return found
        # A stream whose files went while we looked is taken for damaged, too.
        found.release()
    raise AssertionError  # the last look returns or raises


def _look(disk: RealDisk, options: EngineOptions, *, running: bool) -> Opened:
    moment = now_ms()
    # Read before the engine opens: what the files hold now they hold then, too.
    loaded = catalog.load(disk, datadir.read_identity(disk).uuid)
    stored = {row.subject: row.placement for row in loaded.streams()}
    overlay = OverlayDisk(disk)
    try:
        engine, report = open_engine(overlay, options, lambda: b"", moment)
    except BaseException:
        overlay.release_base()
        raise
    first = loaded.commit.journal_first
    return Opened(disk, engine, report, running, stored, first, moment)


def in_use(disk: RealDisk) -> bool:
    """Tell whether a daemon, or a command that writes, has the directory."""
    return disk.exists(fmt.IDENTITY_FILE) and disk.locked(fmt.IDENTITY_FILE)

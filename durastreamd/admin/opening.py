"""Opening a data directory to look at it, and finding in it what a user named.

Nothing is locked and nothing is written: recovery runs through an ``OverlayDisk``. Beside a running
daemon files come and go between two looks; whatever does not fit together then is looked at again,
and only what stays wrong is believed.
"""

import argparse
import difflib
import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

from durastreamd.admin.place import disk_of, options_of
from durastreamd.engine import checkpoint as cp
from durastreamd.engine.engine import Engine
from durastreamd.engine.opening import Report, open_engine
from durastreamd.errors import StorageError
from durastreamd.kit.command import CommandError
from durastreamd.kit.console import Console
from durastreamd.kit.status import NO_INPUT
from durastreamd.model.namespace import Namespace
from durastreamd.model.stream_state import Stream
from durastreamd.protocol.names import place_of
from durastreamd.protocol.requests import ProblemError
from durastreamd.storage import catalog, datadir, format as fmt, log
from durastreamd.storage.disk import RealDisk
from durastreamd.storage.overlay import OverlayDisk

# A look takes milliseconds and a checkpoint comes every few seconds, so two looks nearly always do.
LOOKS_MAX = 10
LOOK_AGAIN_S = 0.05

_ID_DIGITS = 16


class Opened(NamedTuple):
    """A data directory as of one moment."""

    disk: RealDisk  # the files as they are
    engine: Engine  # recovered from them, in memory
    report: Report  # what recovery found
    running: bool  # whether a daemon has the directory
    stored: dict[int, log.Placement]  # how much of each stream the last checkpoint covers
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
def opened(args: argparse.Namespace, console: Console) -> Iterator[Opened]:
    """Lend the data directory that the arguments name, recovered in memory and left as it is."""
    disk = disk_of(args)
    found = look(disk, args, console)
    if found.running:
        console.note("a daemon is running here; this is the data as of this moment")
    try:
        yield found
    finally:
        found.release()


def look(disk: RealDisk, args: argparse.Namespace, console: Console) -> Opened:
    """Open a directory in memory, as often as it takes beside a running daemon."""
    looks = 0
    while True:
        looks += 1
        running = in_use(disk)
        last = looks == LOOKS_MAX or not running
        with _listening() as notes:
            try:
                found = _look(disk, args, running=running)
            except (OSError, StorageError):
                if last:
                    raise
                time.sleep(LOOK_AGAIN_S)
                continue
        if last or not found.report.damaged or not notes.lines:
            break
        # A stream whose files went while we looked is taken for damaged, too.
        found.release()
        time.sleep(LOOK_AGAIN_S)
    if not running:  # beside a daemon a torn end is a batch on its way
        for line in notes.lines:
            console.note(line)
    return found


def _look(disk: RealDisk, args: argparse.Namespace, *, running: bool) -> Opened:
    moment = now_ms()
    rows = catalog.load(disk, datadir.read_identity(disk).uuid).rows
    stored = {row[1][0]: log.Placement(*row[2]) for row in rows if row[0] == cp.STREAM}  # type: ignore[index,misc]
    overlay = OverlayDisk(disk)
    try:
        engine, report = open_engine(overlay, options_of(args), lambda: b"", moment)
    except BaseException:
        overlay.release_base()
        raise
    return Opened(disk, engine, report, running, stored, moment)


def in_use(disk: RealDisk) -> bool:
    """Tell whether a daemon, or a command that writes, has the directory."""
    return disk.exists(fmt.IDENTITY_FILE) and disk.locked(fmt.IDENTITY_FILE)


# --- names ---


def find_stream(namespace: Namespace, name: str) -> Stream:
    """Return the stream a user means; the error names the nearest one there is.

    A name is, in this order: a key as ``ls`` shows it (``/path`` or ``bucket/stream``), a path
    without its slash, a URL or its path, an id as the directories under streams/ have it.
    """
    for key in keys_of(name):
        stream = namespace.by_key.get(key)
        if stream is not None:
            return stream  # type: ignore[no-any-return]  # sortedcontainers is untyped
    if len(name) == _ID_DIGITS and set(name) <= set("0123456789abcdef"):
        by_id = namespace.by_id.get(int(name, 16))
        if by_id is not None:
            return by_id
    raise CommandError(NO_INPUT, f"there is no stream {name}{nearest(namespace.by_key, name)}")


def keys_of(name: str) -> Iterator[str]:
    """Yield the keys a name may stand for, the likeliest first."""
    yield name
    yield f"/{name}"
    path = urlsplit(name).path if name.startswith(("http://", "https://")) else name
    if path.startswith("/"):
        try:
            yield place_of(path).key
        except ProblemError:
            return


def nearest(keys: Iterable[str], name: str) -> str:
    """Return the end of a sentence about a name that is unknown: which one may be meant."""
    bare = {key.lstrip("/"): key for key in keys}
    if not bare:
        return "; the data directory holds no streams"
    near = difflib.get_close_matches(name.lstrip("/"), bare, 1)
    return f"; did you mean {bare[near[0]]}?" if near else "; `dsadmin ls` lists those there are"

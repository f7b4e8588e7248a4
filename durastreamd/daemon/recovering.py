"""Opening the data directory, with somebody watching: the log, the service manager."""

import logging
import os
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import trio

from durastreamd.config import Config
from durastreamd.engine.engine import Engine
from durastreamd.engine.opening import open_engine
from durastreamd.errors import DataDirectoryError
from durastreamd.notify import Notifier
from durastreamd.service.operating.metrics import Recovery
from durastreamd.service.operating.space import Room
from durastreamd.storage.disk import DIRECTORY_MODE, Disk, RealDisk
from durastreamd.storage.overlay import OverlayDisk

logger = logging.getLogger(__name__)

LOOK_S = 0.5  # how often the service manager hears of progress
LOG_S = 5.0  # how often the log does
EXTEND_S = 60  # what each piece of progress is worth; without any the manager's patience ends


class OpenedData(NamedTuple):
    """A data directory in use."""

    engine: Engine
    relief: Callable[[], bool]  # gives descriptors back that are kept for later
    room: Callable[[], Room]
    recovery: Recovery


class Progress:
    """What recovery last said; written by its thread, read by the event loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._said = ""
        self._count = 0

    def __call__(self, what: str, done: int, total: int) -> None:
        """Take note; see ``engine.opening``."""
        with self._lock:
            self._said = f"recovering: {what}, {done} of {total}"
            self._count += 1

    def latest(self) -> tuple[str, int]:
        """Return what was said last, and how many times anything was."""
        with self._lock:
            return self._said, self._count

    async def report(self, notifier: Notifier) -> None:
        """Pass it on until cancelled, as long as there is news."""
        told, logged_at = 0, trio.current_time()
        while True:
            await trio.sleep(LOOK_S)
            said, count = self.latest()
            if count == told:
                continue
            told = count
            notifier.extend(EXTEND_S, said)
            if trio.current_time() - logged_at >= LOG_S:
                logged_at = trio.current_time()
                logger.info("%s", said)


def open_data(config: Config, now_ms: int, progress: Progress, *, init: bool) -> OpenedData:
    """Open the data directory, making one that is not there; blocks.

    An empty one that is there is made only when asked: it may be a volume that is not mounted.
    """
    root = Path(config.server.data_dir)
    read_only = config.server.read_only
    create = not read_only and (init or not root.exists())
    if read_only and not root.is_dir():
        message = f"{root} is not a directory; there is nothing to serve read-only"
        raise DataDirectoryError(message)
    if not read_only:
        _make_root(root, create=create)
    wanted = os.R_OK | os.X_OK | (0 if read_only else os.W_OK)
    if not os.access(root, wanted):
        hint = "" if read_only else "; --read-only serves a directory that cannot be written to"
        message = f"no permission to use the data directory {root}{hint}"
        raise PermissionError(message)
    begun = time.monotonic()
    real = RealDisk(str(root))
    overlay = OverlayDisk(real) if read_only else None
    disk: Disk = overlay or real
    try:
        engine, report = open_engine(
            disk,
            config.engine,
            lambda: uuid.uuid4().bytes,
            now_ms,
            create=create,
            progress=progress,
        )
    except DataDirectoryError as exc:
        message = f"{root}: {exc}"
        raise type(exc)(message) from exc
    # In read-only mode the engine's files are names in the overlay, which keeps the descriptors.
    real.relief = (overlay or engine.handles).give_back
    logger.info(
        "opened %s%s: %d streams, %d records replayed",
        root,
        " read-only" if read_only else "",
        len(engine.namespace.by_id),
        report.replayed,
        extra={
            "fields": {
                "replayed_bytes": report.replayed_bytes,
                "torn_bytes": report.torn_bytes,
                "damaged": len(report.damaged),
            }
        },
    )
    took = Recovery(
        time.monotonic() - begun, report.replayed, report.replayed_bytes, report.torn_bytes
    )
    return OpenedData(engine, real.relief, lambda: Room(*real.room(), real.reclaimed_bytes), took)


def _make_root(root: Path, *, create: bool) -> None:
    try:
        root.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        if create and not any(root.iterdir()):
            root.chmod(DIRECTORY_MODE)
    except PermissionError as exc:
        message = f"no permission to make the data directory {root}"
        raise PermissionError(message) from exc
    except OSError as exc:
        message = f"cannot use the data directory {root}: {exc.strerror}"
        raise DataDirectoryError(message) from exc

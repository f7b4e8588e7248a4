"""How much room the disk has, and who is refused when there is little.

Looked at every now and then, away from requests. Below the threshold everything that adds data is
refused with 507 while reads, closures and deletions go on, so that an operator, or the expiry of
streams, can make room; above a second, higher one appends are taken again without a restart.
A disk that fills faster than it is looked at is met by the write that fails, which is cut back.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import trio

from durastreamd.service.limits import DiskOptions

logger = logging.getLogger(__name__)
MIB = 1024 * 1024


class Room(NamedTuple):
    """What a file system says of itself, and how much this process has given back to it."""

    total_bytes: int
    free_bytes: int
    reclaimed_bytes: int


class Space:
    """The room on the disk, as of the last look."""

    def __init__(self, measure: Callable[[], Room], options: DiskOptions | None = None) -> None:
        self._measure = measure
        self.options = options or DiskOptions()
        self.low = False
        self.refused_total = 0
        self.total_bytes = 0
        self.free_bytes = 0
        self.reclaimed_bytes = 0  # of streams that expired, were deleted or fell behind a snapshot

    def look(self) -> None:
        """Measure now; touches the disk."""
        self.take(self._measure())

    def take(self, room: Room) -> None:
        """Judge a measurement."""
        self.total_bytes, self.free_bytes, self.reclaimed_bytes = room
        options = self.options
        if not self.low and self.free_bytes < options.free_bytes_min:
            self.low = True
            logger.error(
                "%d bytes free on the disk, less than disk.free_bytes_min: appends are refused",
                self.free_bytes,
            )
        elif self.low and self.free_bytes >= options.free_bytes_resume:
            self.low = False
            logger.warning("%d bytes free on the disk: appends are taken again", self.free_bytes)

    async def watch(self, off_loop: Callable[[Callable[[], Room]], Awaitable[Room]]) -> None:
        """Look again and again until cancelled; ``off_loop`` runs what may block elsewhere."""
        while True:
            await trio.sleep(self.options.check_s)
            try:
                self.take(await off_loop(self._measure))
            except OSError as exc:
                logger.warning("cannot tell how much room the disk has: %s", exc)

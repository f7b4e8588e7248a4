"""A body put together piece by piece, without one long copy at the end; and the pace of it.

Joining 64 MiB holds the interpreter for tens of milliseconds, and with it every other exchange. So
a body that has become large is copied, as it arrives, into memory of its own. That comes from the
kernel page by page as it is written to, grows without a copy (mremap), whatever length was
declared, and goes back to the kernel the moment it is let go: a heap would keep the holes.
"""

import mmap
from typing import Final

from durastreamd.http.limits import HttpLimits

LARGE_BYTES: Final = 1024 * 1024  # below it a join takes well under a millisecond
_GROWTH: Final = 2


class Gathering:
    """Pieces on their way to a whole."""

    __slots__ = ("_memory", "_pieces", "size")

    def __init__(self) -> None:
        self.size = 0
        self._pieces: list[bytes] = []
        self._memory: mmap.mmap | None = None

    def add(self, piece: bytes) -> None:
        """Take the next piece."""
        begin, self.size = self.size, self.size + len(piece)
        if self._memory is not None:
            if self.size > len(self._memory):
                self._memory.resize(_GROWTH * self.size)
            self._memory[begin : self.size] = piece
            return
        self._pieces.append(piece)
        if self.size > LARGE_BYTES:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            self._memory = mmap.mmap(-1, _GROWTH * self.size, flags=flags)
            at = 0
            for early in self._pieces:
                self._memory[at : at + len(early)] = early
                at += len(early)
            self._pieces.clear()

    def whole(self) -> bytes | memoryview:
        """Return everything that was taken."""
        if self._memory is not None:
            return memoryview(self._memory)[: self.size].toreadonly()
        return b"".join(self._pieces)


class Pace:
    """How long the next piece of a body may take.

    Every byte earns time at ``body_rate_min``; nobody saves up more than ``body_idle_s_max`` of it,
    or a body that came fast could be held back for hours in the end.
    """

    __slots__ = ("_idle_s_max", "_rate_min", "due")

    def __init__(self, limits: HttpLimits, now: float) -> None:
        self._rate_min = limits.body_rate_min
        self._idle_s_max = limits.body_idle_s_max
        self.due = now + limits.body_grace_s

    def earn(self, size: int, now: float, rested_s: float = 0.0) -> None:
        """Note a piece; time that we kept the client waiting does not count against it."""
        due = self.due + rested_s + size / self._rate_min
        self.due = min(due, now + self._idle_s_max)

"""A body put together piece by piece, without one long copy at the end.

Joining 64 MiB holds the interpreter for tens of milliseconds, and with it every other exchange. So
a large body whose length is known is copied, as it arrives, into memory of its own; that comes
from the kernel page by page, not zeroed in one go.
"""

import mmap

# Below it a join takes well under a millisecond.
LARGE_BYTES = 1024 * 1024


class Gathering:
    """Pieces on their way to a whole."""

    __slots__ = ("_memory", "_pieces", "size")

    def __init__(self, length: int | None) -> None:
        self.size = 0
        self._pieces: list[bytes] = []
        self._memory: mmap.mmap | None = None
        if length is not None and length > LARGE_BYTES:
            self._memory = mmap.mmap(-1, length)

    def add(self, piece: bytes) -> None:
        """Take the next piece."""
        if self._memory is not None:
            self._memory[self.size : self.size + len(piece)] = piece
        else:
            self._pieces.append(piece)
        self.size += len(piece)

    def whole(self) -> bytes | memoryview:
        """Return everything that was taken."""
        if self._memory is not None:
            return memoryview(self._memory).toreadonly()
        return b"".join(self._pieces)

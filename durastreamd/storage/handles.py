"""A bounded set of open files for reading, shared by the event loop and its threads.

A handle in use is pinned and never given back under its user; the least recently used unpinned
one goes when the set is full. Streams at rest therefore hold no descriptor. When the process is
out of descriptors, whoever needs one has all unpinned ones given back first.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from durastreamd.storage.disk import Disk


class _Open:
    __slots__ = ("handle", "pins", "retired")

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.pins = 0
        self.retired = False


class HandleTable:
    """Open files by path."""

    def __init__(self, disk: Disk, limit: int) -> None:
        self._disk = disk
        self._limit = limit
        self._lock = threading.RLock()  # an open that finds no descriptor asks for those kept here
        self._files: OrderedDict[str, _Open] = OrderedDict()

    def __len__(self) -> int:
        return len(self._files)

    @contextmanager
    def pinned(self, path: str) -> Iterator[int]:
        """Lend the handle of a file for the length of a with block."""
        with self._lock:
            found = self._files.get(path)
            if found is None:
                found = _Open(self._disk.open(path))
                self._files[path] = found
                self._shrink()
            self._files.move_to_end(path)
            found.pins += 1
        try:
            yield found.handle
        finally:
            with self._lock:
                found.pins -= 1
                if found.retired and not found.pins:
                    self._let_go(found)

    def _shrink(self) -> None:
        """Give back unpinned files beyond the limit, the longest unused first."""
        excess = len(self._files) - self._limit
        if excess <= 0:
            return
        for path in [path for path, file in self._files.items() if not file.pins][:excess]:
            self._retire(path)

    def _retire(self, path: str) -> None:
        file = self._files.pop(path, None)
        if file is None:
            return
        file.retired = True
        if not file.pins:
            self._let_go(file)

    def _let_go(self, file: _Open) -> None:
        with suppress(OSError):  # nothing was written through it
            self._disk.release(file.handle)

    def give_back(self) -> bool:
        """Let go of every file that is not in use; tell whether that was any."""
        with self._lock:
            unused = [path for path, file in self._files.items() if not file.pins]
            for path in unused:
                self._retire(path)
        return bool(unused)

    def forget(self, prefix: str) -> None:
        """Let go of every file below ``prefix``: they are about to be removed or replaced."""
        with self._lock:
            for path in [path for path in self._files if path.startswith(prefix)]:
                self._retire(path)

    def release(self) -> None:
        """Let go of every file."""
        self.forget("")

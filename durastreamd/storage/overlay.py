"""A disk that may be written without being changed: writes stay in memory, above a real one.

Opening a data directory recovers it, which writes. Through an overlay the same code opens a backup,
a read-only mount or the directory of a running server, and leaves no trace: no lock, no new file.
What it costs is memory for what recovery writes, which the journal's size bounds.

Beside a running server a file may go between two looks at the directory. That raises a
FileNotFoundError or CorruptDataError here; the answer to both is to open again, with a new overlay.
"""

import errno
import itertools

from durastreamd.storage.disk import Disk
from durastreamd.storage.handles import HandleTable

HANDLES_MAX = 256


class _OverlayFile:
    """One file: what the base has of it, up to a length, under what was written since."""

    def __init__(self, base: Disk, handles: HandleTable, path: str | None) -> None:
        self._base = base
        self._handles = handles
        self._path = path
        self._kept = 0
        if path is not None:
            with handles.pinned(path) as handle:
                self._kept = base.size(handle)
        self._patches: list[tuple[int, bytearray]] = []
        self.size = self._kept

    def write(self, data: bytes | memoryview, position: int) -> None:
        start, last = self._patches[-1] if self._patches else (0, None)
        if last is not None and start + len(last) == position:
            last += data
        else:
            self._patches.append((position, bytearray(data)))
        self.size = max(self.size, position + len(data))

    def truncate(self, size: int) -> None:
        self._kept = min(self._kept, size)
        self._patches = [
            (start, patch[: size - start]) for start, patch in self._patches if start < size
        ]
        self.size = size

    def read(self, size: int, position: int, *, wait: bool) -> bytes:
        end = min(position + size, self.size)
        if position >= end:
            return b""
        below = b""
        if self._path is not None and position < self._kept:
            wanted = min(end, self._kept) - position
            with self._handles.pinned(self._path) as handle:
                below = self._base.pread(handle, wanted, position, wait=wait)
        over = [(s, p) for s, p in self._patches if s < end and s + len(p) > position]
        if not over and len(below) == end - position:
            return below
        found = bytearray(below.ljust(end - position, b"\0"))
        for start, patch in over:
            first, last = max(start, position), min(start + len(patch), end)
            found[first - position : last - position] = patch[first - start : last - start]
        return bytes(found)


class OverlayDisk:
    """A Disk over another one, which it only reads."""

    def __init__(self, base: Disk) -> None:
        self._base = base
        # Recovery changes as many files as the journal names; no more than these are open at once.
        self._handles = HandleTable(base, HANDLES_MAX)
        self._changed: dict[str, _OverlayFile | None] = {}  # by path; None: the name is gone
        self._directories: set[str] = set()
        self._touched: dict[str, set[str]] = {}  # by folder: the names the two above speak of
        self._open: dict[int, _OverlayFile] = {}
        self._numbers = itertools.count(1)

    def _change(self, path: str, file: _OverlayFile | None) -> None:
        """Have a name stand for a file of ours from now on, or for none."""
        self._changed[path] = file
        folder, _, name = path.rpartition("/")
        self._touched.setdefault(folder, set()).add(name)

    def open(self, path: str, *, create: bool = False, write: bool = False) -> int:
        """See Disk."""
        there = self.exists(path)
        if create and there:
            raise FileExistsError(errno.EEXIST, "exists", path)
        if not there and not (create and self.exists(path.rpartition("/")[0])):
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        file = self._changed.get(path)
        if file is None:
            file = _OverlayFile(self._base, self._handles, None if create else path)
            if create or write:
                self._change(path, file)
        number = next(self._numbers)
        self._open[number] = file
        return number

    def release(self, handle: int) -> None:
        """See Disk."""
        del self._open[handle]

    def pwrite(self, handle: int, data: bytes | memoryview, position: int) -> int:
        """See Disk."""
        self._open[handle].write(data, position)
        return len(data)

    def pread(self, handle: int, size: int, position: int, *, wait: bool = True) -> bytes:
        """See Disk."""
        return self._open[handle].read(size, position, wait=wait)

    def pread_into(
        self, handle: int, buffer: memoryview, position: int, *, wait: bool = True
    ) -> int:
        """See Disk."""
        data = self.pread(handle, len(buffer), position, wait=wait)
        buffer[: len(data)] = data
        return len(data)

    def pread_once(self, handle: int, buffer: memoryview, position: int) -> int:
        """See Disk."""
        return self.pread_into(handle, buffer, position)

    def size(self, handle: int) -> int:
        """See Disk."""
        return self._open[handle].size

    def truncate(self, handle: int, size: int) -> None:
        """See Disk."""
        self._open[handle].truncate(size)

    def sync(self, handle: int) -> None:
        """Nothing here outlives the process."""

    def sync_directory(self, path: str) -> None:
        """Nothing here outlives the process."""

    def sync_everything(self) -> None:
        """Nothing here outlives the process."""

    def rename(self, source: str, target: str) -> None:
        """See Disk."""
        found = self._changed.get(source)
        self._change(target, found or _OverlayFile(self._base, self._handles, source))
        self._change(source, None)

    def unlink(self, path: str) -> None:
        """See Disk."""
        if not self.exists(path):
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        self._change(path, None)

    def make_directory(self, path: str) -> None:
        """See Disk."""
        self._change(path, None)
        del self._changed[path]
        self._directories.add(path)

    def remove_directory(self, path: str) -> None:
        """See Disk."""
        if self.names(path):
            raise OSError(errno.ENOTEMPTY, "not empty", path)
        self._directories.discard(path)
        self._change(path, None)

    def names(self, path: str) -> list[str]:
        """See Disk."""
        found = set(self._base.names(path))
        for name in self._touched.get(path, ()):
            whole = f"{path}/{name}" if path else name
            there = self._changed[whole] is not None if whole in self._changed else True
            (found.add if there else found.discard)(name)
        return sorted(found)

    def exists(self, path: str) -> bool:
        """See Disk."""
        if path in self._changed:
            return self._changed[path] is not None
        return not path or path in self._directories or self._base.exists(path)

    def lock(self, path: str) -> int:
        """Return a handle without locking: nobody is disturbed by a reader."""
        return self.open(path)

    def give_back(self) -> bool:
        """See HandleTable."""
        return self._handles.give_back()

    def lock_directory(self) -> int:
        """See ``lock``."""
        number = next(self._numbers)
        self._open[number] = _OverlayFile(self._base, self._handles, None)
        return number

    def release_base(self) -> None:
        """Give back the files below that are kept open; what is read again is opened again."""
        self._handles.release()

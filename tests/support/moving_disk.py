"""A simulated disk whose files can be moved between directories, and whose locks follow files.

A move is one step, as with every file system that has a journal; it is seen at once, and a power
cut is not modelled for it.
"""

from durastreamd.errors import DirectoryLockedError
from tests.support.sim_disk import Directory, Inode, SimDisk


class MovingDisk(SimDisk):
    """A SimDisk for what dsadmin does."""

    def __init__(self, root: Directory | None = None) -> None:
        super().__init__(root)
        self._locks: dict[int, Inode] = {}

    def rename(self, source: str, target: str) -> None:
        old, old_name = self._parent(source)
        new, new_name = self._parent(target)
        node = old.live[old_name]
        new.set(new_name, node)
        old.set(old_name, None)
        self._done("rename", target)

    def lock(self, path: str) -> int:
        handle = self.open(path)
        node = self._handles[handle]
        if any(held is node for held in self._locks.values()):
            self.release(handle)
            raise DirectoryLockedError(path)
        self._locks[handle] = node
        return handle

    def release(self, handle: int) -> None:
        self._locks.pop(handle, None)
        super().release(handle)

    def survivor(self) -> "MovingDisk":
        return MovingDisk(super().survivor().root)


def moving(disk: SimDisk) -> MovingDisk:
    """Return a disk of the same content, as after kill -9."""
    return MovingDisk(disk.survivor().root)

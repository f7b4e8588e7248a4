"""A simulated disk whose files can be moved between directories, and whose locks follow files.

A move is one step, as with every file system that has a journal. ``CutDisk`` may lose power.
"""

import random
from collections.abc import Iterator

from durastreamd.errors import DirectoryLockedError
from tests.support.sim_disk import Directory, Inode, SimDisk, file_images


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


class CutDisk(MovingDisk):
    """A MovingDisk whose power may fail: names change in order, as on a journalling file system.

    A move is one step. After a cut the first so many changes of names are there, at least all of
    those in directories that were synced; files hold what ``sim_disk`` leaves of them.
    """

    def __init__(self, root: Directory | None = None) -> None:
        super().__init__(root)
        self.sync_everything()
        self._begun = {id(d): dict(d.live) for d in _directories(self.root)}
        self._changes: list[list[tuple[Directory, str, Inode | Directory | None]]] = []
        self._surely = 0

    def _changed(self, *paths: str) -> None:
        step = [(*self._parent(path), None) for path in paths]
        self._changes.append([(d, name, d.live.get(name)) for d, name, _ in step])

    def open(self, path: str, *, create: bool = False, write: bool = False) -> int:
        hook, self.hook = self.hook, None
        try:
            handle = super().open(path, create=create, write=write)
        finally:
            self.hook = hook
        if create:
            self._changed(path)
            if hook is not None:
                hook("create", path)
        return handle

    def _done(self, operation: str, path: str) -> None:
        if operation in ("unlink", "make_directory", "remove_directory"):
            self._changed(path)
        elif operation == "sync_directory":
            directory = self._directory(path)
            touched = [n for n, c in enumerate(self._changes) if any(d is directory for d, *_ in c)]
            self._surely = max(self._surely, touched[-1] + 1 if touched else 0)
        super()._done(operation, path)

    def rename(self, source: str, target: str) -> None:
        hook, self.hook = self.hook, None
        super().rename(source, target)
        self.hook = hook
        self._changed(source, target)
        if hook is not None:
            hook("rename", target)

    def cuts(self, rng: random.Random) -> Iterator[MovingDisk]:
        """Yield disks that a power cut may leave now: few changes, all of them, some."""
        all_of_them = len(self._changes)
        for kept in {self._surely, all_of_them, rng.randint(self._surely, all_of_them)}:
            names = {number: dict(live) for number, live in self._begun.items()}
            for step in self._changes[:kept]:
                for directory, name, node in step:
                    here = names.setdefault(id(directory), {})
                    if node is None:
                        here.pop(name, None)
                    else:
                        here[name] = node
            yield MovingDisk(self._image(self.root, names, rng))

    def _image(
        self,
        directory: Directory,
        names: dict[int, dict[str, Inode | Directory]],
        rng: random.Random,
    ) -> Directory:
        image = Directory()
        for name, node in names.get(id(directory), {}).items():
            if isinstance(node, Directory):
                image.live[name] = self._image(node, names, rng)
            else:
                image.live[name] = Inode(rng.choice(file_images(node, rng, 1)))
        image.durable = dict(image.live)
        return image


def _directories(directory: Directory) -> Iterator[Directory]:
    yield directory
    for node in directory.live.values():
        if isinstance(node, Directory):
            yield from _directories(node)

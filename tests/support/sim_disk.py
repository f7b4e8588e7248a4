"""A disk in memory that can lose power.

Reads see every write at once, as with a page cache. ``sync`` makes one file's bytes durable,
``sync_directory`` one directory's names, ``sync_everything`` all. ``crash_images`` yields disks as
they may be found after the power failed: unsynced writes lost, torn at and inside sectors,
reordered, present by length only (zeros), or garbage; unsynced names lost. A kill -9 is
``survivor``: the same disk with everything written still there and still unsynced.

A sync that failed leaves of a file's unsynced writes what the power cut would have (``fail_sync``),
and the kernel takes the rest for written: it is seen until memory is short (``forgetful``), and a
later sync that succeeds says nothing about it. Names are not lost so: a file system that cannot
write its own journal takes nothing more.

``hook`` is called after every operation that changes something: each is a crash point.
"""

import errno
import itertools
import random
from collections.abc import Callable, Iterator

from durastreamd.errors import DirectoryLockedError

SECTOR = 512
PAGE = 64  # what the kernel writes at least; as small as the files here are, beside real ones

Write = tuple[int, bytes]  # position and data; a position of -1-n cuts the file to n


class Inode:
    """A file: what is surely on disk, what is seen, and what lies between.

    ``lossy`` tells that a sync has failed: more is seen than what is on disk or will be.
    """

    __slots__ = ("durable", "live", "lossy", "pending")

    def __init__(self, data: bytes = b"") -> None:
        self.durable = data
        self.live = bytearray(data)
        self.pending: list[Write] = []
        self.lossy = False

    def copy(self) -> "Inode":
        twin = Inode()
        twin.durable, twin.live, twin.pending = self.durable, bytearray(self.live), self.pending[:]
        twin.lossy = self.lossy
        return twin

    def settle(self) -> None:
        """Make what is still to be written durable: all of it, or the pages it touches."""
        if not self.lossy:
            self.durable = bytes(self.live)
        elif self.pending:
            image = bytearray(self.durable)
            for position, data in self.pending:
                if position < 0:
                    size = -1 - position
                    del image[size:]
                    image.extend(bytes(size - len(image)))
                    continue
                begin = position // PAGE * PAGE
                end = -(-(position + len(data)) // PAGE) * PAGE
                image.extend(bytes(max(0, begin - len(image))))
                image[begin:end] = self.live[begin:end]
            self.durable = bytes(image)
        self.pending = []

    def fail(self, rng: random.Random) -> None:
        """Lose of what is still to be written what a power cut may lose, and have it forgotten."""
        if self.pending:
            self.durable = rng.choice(file_images(self, rng, 2))
            self.pending = []
            self.lossy = True


class Directory:
    """Names: surely on disk, seen, and the changes between, in order (None removes)."""

    __slots__ = ("durable", "live", "pending")

    def __init__(self) -> None:
        self.durable: dict[str, Inode | Directory] = {}
        self.live: dict[str, Inode | Directory] = {}
        self.pending: list[tuple[str, Inode | Directory | None]] = []

    def set(self, name: str, node: "Inode | Directory | None") -> None:
        if node is None:
            del self.live[name]
        else:
            self.live[name] = node
        self.pending.append((name, node))


class SimDisk:
    """Implements ``Disk``."""

    def __init__(self, root: Directory | None = None) -> None:
        self.root = root or Directory()
        self.hook: Callable[[str, str], None] | None = None
        self.operations = 0
        self.syncs = 0
        self._handles: dict[int, Inode] = {}
        self._paths: dict[int, str] = {}
        self._next = 3
        self.locked: set[str] = set()

    # --- finding ---

    def _directory(self, path: str) -> Directory:
        node: Inode | Directory = self.root
        for part in path.split("/") if path else []:
            if not isinstance(node, Directory) or part not in node.live:
                raise FileNotFoundError(errno.ENOENT, "no such directory", path)
            node = node.live[part]
        if not isinstance(node, Directory):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
        return node

    def _parent(self, path: str) -> tuple[Directory, str]:
        parent, _, name = path.rpartition("/")
        return self._directory(parent), name

    def _done(self, operation: str, path: str) -> None:
        self.operations += 1
        if self.hook is not None:
            self.hook(operation, path)

    # --- Disk ---

    def open(self, path: str, *, create: bool = False, write: bool = False) -> int:
        del write
        parent, name = self._parent(path)
        node = parent.live.get(name)
        if create:
            if node is not None:
                raise FileExistsError(errno.EEXIST, "exists", path)
            node = Inode()
            parent.set(name, node)
            self._done("create", path)
        if not isinstance(node, Inode):
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        handle = self._next
        self._next += 1
        self._handles[handle] = node
        self._paths[handle] = path
        return handle

    def release(self, handle: int) -> None:
        del self._handles[handle]
        path = self._paths.pop(handle)
        self.locked.discard(path)

    def pwrite(self, handle: int, data: bytes | memoryview, position: int) -> int:
        node = self._handles[handle]
        if position > len(node.live):
            node.live.extend(bytes(position - len(node.live)))
        node.live[position : position + len(data)] = data
        node.pending.append((position, bytes(data)))
        self._done("pwrite", self._paths[handle])
        return len(data)

    def pread(self, handle: int, size: int, position: int, *, wait: bool = True) -> bytes:
        del wait
        return bytes(self._handles[handle].live[position : position + size])

    def pread_into(
        self, handle: int, buffer: memoryview, position: int, *, wait: bool = True
    ) -> int:
        data = self.pread(handle, len(buffer), position, wait=wait)
        buffer[: len(data)] = data
        return len(data)

    def pread_once(self, handle: int, buffer: memoryview, position: int) -> int:
        return self.pread_into(handle, buffer, position)

    def size(self, handle: int) -> int:
        return len(self._handles[handle].live)

    def truncate(self, handle: int, size: int) -> None:
        node = self._handles[handle]
        if size < len(node.live):
            del node.live[size:]
        else:
            node.live.extend(bytes(size - len(node.live)))
        node.pending.append((-1 - size, b""))
        self._done("truncate", self._paths[handle])

    def sync(self, handle: int) -> None:
        self._handles[handle].settle()
        self.syncs += 1
        self._done("sync", self._paths[handle])

    def sync_directory(self, path: str) -> None:
        directory = self._directory(path)
        directory.durable = dict(directory.live)
        directory.pending = []
        self.syncs += 1
        self._done("sync_directory", path)

    def sync_everything(self) -> None:
        def settle(directory: Directory) -> None:
            directory.durable = dict(directory.live)
            directory.pending = []
            for node in directory.live.values():
                if isinstance(node, Directory):
                    settle(node)
                else:
                    node.settle()

        settle(self.root)
        self.syncs += 1
        self._done("sync_everything", "")

    def rename(self, source: str, target: str) -> None:
        old, old_name = self._parent(source)
        new, new_name = self._parent(target)
        node = old.live[old_name]
        assert old is new, "a rename across directories is not modelled"
        new.set(new_name, node)
        old.set(old_name, None)
        self._move_locks(source, target)
        self._done("rename", target)

    def _move_locks(self, source: str, target: str) -> None:
        """A lock is a file's, and goes where its name goes."""
        self.locked.discard(target)
        for handle, path in self._paths.items():
            if path == target:
                self._paths[handle] = f"{target} (replaced)"
            elif path == source:
                self._paths[handle] = target
        if source in self.locked:
            self.locked.remove(source)
            self.locked.add(target)

    def unlink(self, path: str) -> None:
        parent, name = self._parent(path)
        if name not in parent.live:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        parent.set(name, None)
        self._done("unlink", path)

    def make_directory(self, path: str) -> None:
        parent, name = self._parent(path)
        if name not in parent.live:
            parent.set(name, Directory())
            self._done("make_directory", path)

    def remove_directory(self, path: str) -> None:
        parent, name = self._parent(path)
        node = parent.live[name]
        assert isinstance(node, Directory)
        if node.live:
            raise OSError(errno.ENOTEMPTY, "directory not empty", path)
        parent.set(name, None)
        self._done("remove_directory", path)

    def names(self, path: str) -> list[str]:
        try:
            return sorted(self._directory(path).live)
        except FileNotFoundError:
            return []

    def exists(self, path: str) -> bool:
        try:
            parent, name = self._parent(path)
        except FileNotFoundError:
            return False
        return name in parent.live

    def lock(self, path: str) -> int:
        if path in self.locked:
            raise DirectoryLockedError(path)
        handle = self.open(path)
        self.locked.add(path)
        return handle

    def lock_directory(self) -> int:
        if "" in self.locked:
            raise DirectoryLockedError(str(self.locked))
        handle = self._next
        self._next += 1
        self._handles[handle], self._paths[handle] = Inode(), ""
        self.locked.add("")
        return handle

    # --- for tests ---

    @property
    def open_handles(self) -> int:
        return len(self._handles)

    def read(self, path: str) -> bytes:
        parent, name = self._parent(path)
        node = parent.live[name]
        assert isinstance(node, Inode)
        return bytes(node.live)

    def damage(self, path: str, change: Callable[[bytearray], None]) -> None:
        """Change a file behind everyone's back, durably."""
        parent, name = self._parent(path)
        node = parent.live[name]
        assert isinstance(node, Inode)
        change(node.live)
        node.durable = bytes(node.live)
        node.pending = []

    def fail_sync(self, handle: int | None, rng: random.Random) -> None:
        """Have the sync of a file fail, or of all of them."""
        nodes = self._all_nodes(self.root) if handle is None else iter([self._handles[handle]])
        for node in nodes:
            node.fail(rng)

    def forgetful(self) -> "SimDisk":
        """Return the disk as after a kill, with what the kernel took for written out of memory."""
        found = self.survivor()
        for node in self._all_nodes(found.root):
            if node.lossy:
                settled = node.copy()
                settled.settle()
                node.live = bytearray(settled.durable)
        return found

    def _all_nodes(self, directory: Directory) -> Iterator[Inode]:
        for node in directory.live.values():
            if isinstance(node, Directory):
                yield from self._all_nodes(node)
            else:
                yield node

    def files(self) -> dict[str, bytes]:
        """Return every file by path, as seen."""
        found: dict[str, bytes] = {}

        def walk(directory: Directory, prefix: str) -> None:
            for name, node in directory.live.items():
                if isinstance(node, Directory):
                    walk(node, f"{prefix}{name}/")
                else:
                    found[prefix + name] = bytes(node.live)

        walk(self.root, "")
        return found

    def survivor(self) -> "SimDisk":
        """Return the disk as a process finds it after kill -9: all written, nothing synced anew."""
        twins: dict[int, Inode | Directory] = {}

        def twin(node: Inode | Directory) -> Inode | Directory:
            if id(node) not in twins:
                if isinstance(node, Inode):
                    twins[id(node)] = node.copy()
                else:
                    copy = Directory()
                    twins[id(node)] = copy
                    copy.live = {name: twin(child) for name, child in node.live.items()}
                    copy.durable = {name: twin(child) for name, child in node.durable.items()}
                    copy.pending = [
                        (name, None if child is None else twin(child))
                        for name, child in node.pending
                    ]
            return twins[id(node)]

        root = twin(self.root)
        assert isinstance(root, Directory)
        return SimDisk(root)


def file_images(node: Inode, rng: random.Random, extra: int) -> list[bytes]:
    """Return what a file may hold after a power cut."""
    if not node.pending:
        return [node.durable]
    units: list[Write] = []
    for position, data in node.pending:
        if position < 0:
            units.append((position, data))
            continue
        at = 0
        while at < len(data):
            end = min(len(data), at + SECTOR - (position + at) % SECTOR)
            units.append((position + at, data[at:end]))
            at = end
    count = len(units)
    everything = frozenset(range(count))
    chosen: list[
        tuple[frozenset[int], int, bool]
    ] = []  # which landed, torn length of the next, zeros
    marks = set(range(count + 1)) if count <= 6 else {0, 1, count - 1, count, rng.randrange(count)}
    for done in sorted(marks):
        prefix = frozenset(range(done))
        chosen += [(prefix, 0, False), (prefix, 0, True)]
        if done < count and len(units[done][1]) > 1:
            size = len(units[done][1])
            chosen += [(prefix, 1, True), (prefix, size // 2, False), (prefix, size - 1, True)]
    for lost in sorted(marks - {count}):
        chosen += [(everything - {lost}, 0, True), (frozenset({lost}), 0, True)]
    for _ in range(extra):
        chosen.append((frozenset(n for n in range(count) if rng.random() < 0.5), 0, True))
    images = dict.fromkeys(
        _build(node, units, landed, torn, zeros=zeros) for landed, torn, zeros in chosen
    )
    if len(node.live) > len(node.durable):
        grown = len(node.live) - len(node.durable)
        images[node.durable + rng.randbytes(grown)] = None
    return list(images)


def _build(
    node: Inode, units: list[Write], landed: frozenset[int], torn: int, *, zeros: bool
) -> bytes:
    image = bytearray(node.durable)
    following = len(landed)
    for number, (position, data) in enumerate(units):
        if position < 0:
            if number in landed:
                size = -1 - position
                del image[size:]
                image.extend(bytes(size - len(image)))
            continue
        if number in landed:
            part = data
        elif number == following and torn:
            part = data[:torn]
        else:
            continue
        image.extend(bytes(max(0, position - len(image))))
        image[position : position + len(part)] = part
    if zeros:
        image.extend(bytes(max(0, len(node.live) - len(image))))
    return bytes(image)


def _name_choices(
    directory: Directory, rng: random.Random, *, weak: bool
) -> list[dict[str, Inode | Directory]]:
    """Return the names a directory may have after a power cut: prefixes, or any subset."""
    pending = directory.pending
    choices: list[list[tuple[str, Inode | Directory | None]]]
    if weak and len(pending) <= 3:
        masks = itertools.product((False, True), repeat=len(pending))
        choices = [[op for op, keep in zip(pending, mask, strict=True) if keep] for mask in masks]
    elif len(pending) <= 4:
        choices = [pending[:count] for count in range(len(pending) + 1)]
    else:
        choices = [pending[:count] for count in {0, len(pending), rng.randrange(len(pending))}]
    found = []
    for choice in choices:
        names = dict(directory.durable)
        for name, node in choice:
            if node is None:
                names.pop(name, None)
            else:
                names[name] = node
        found.append(names)
    return found


def crash_images(
    disk: SimDisk, rng: random.Random, *, cap: int, weak: bool = False, extra: int = 2
) -> Iterator[SimDisk]:
    """Yield up to ``cap`` different disks that a power cut at this moment may leave."""
    seen: set[int] = set()
    file_choices: dict[int, list[bytes]] = {}

    def build(directory: Directory, pick: Callable[[int], int]) -> Directory:
        names = _name_choices(directory, rng, weak=weak)
        image = Directory()
        for name, node in names[pick(len(names))].items():
            if isinstance(node, Directory):
                image.live[name] = build(node, pick)
            else:
                choices = file_choices.get(id(node))
                if choices is None:
                    choices = file_choices[id(node)] = file_images(node, rng, extra)
                image.live[name] = Inode(choices[pick(len(choices))])
        image.durable = dict(image.live)
        return image

    picks: list[Callable[[int], int]] = [lambda _: 0, lambda count: count - 1]
    picks += [rng.randrange] * (cap * 2)
    for pick in picks:
        image = SimDisk(build(disk.root, pick))
        mark = hash(tuple(sorted(image.files().items())))
        if mark not in seen:
            seen.add(mark)
            yield image
        if len(seen) >= cap:
            return

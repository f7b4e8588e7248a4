"""The one door to the file system: a small protocol, and the real disk behind it.

Everything durable goes through here, so a simulated disk can stand in and a crash can be put
between any two operations. Paths are relative to the data directory. Short writes are reported,
not hidden; ``write_all`` is what callers want. ``sync`` never fails quietly and is never retried.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from typing import Protocol

from durastreamd.errors import (
    ColdReadError,
    CorruptDataError,
    DataDirectoryError,
    DirectoryLockedError,
    ReadFailedError,
    SyncFailedError,
    WriteFailedError,
)

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
# The process or the machine is out of something; it will pass.
EXHAUSTED = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))
# A lock is asked for so often, others' turns between: enough for somebody who only looks at it.
LOCK_TRIES = 1000
# Errors that speak of this process, the machine or the file system, and of no file.
NO_FAULTS = EXHAUSTED | {errno.EROFS, errno.ENOSPC, errno.EDQUOT}
# Errors that say that something else has the name of a file: a directory, a link, a pipe, a socket.
NO_FILE = frozenset((errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ESPIPE, errno.ENXIO))


class Disk(Protocol):
    """What the engine asks of a file system. Handles are small integers."""

    def open(self, path: str, *, create: bool = False, write: bool = False) -> int:
        """Open a file; ``create`` makes a new one and refuses an existing one."""

    def release(self, handle: int) -> None:
        """Give a handle back."""

    def pwrite(self, handle: int, data: bytes | memoryview, position: int) -> int:
        """Write at a position and return how many bytes were taken, which may be fewer."""

    def pread(self, handle: int, size: int, position: int, *, wait: bool = True) -> bytes:
        """Read at a position, less only at the end.

        ``wait=False``, which is for one thread alone, may raise ColdReadError.
        """

    def pread_into(
        self, handle: int, buffer: memoryview, position: int, *, wait: bool = True
    ) -> int:
        """Read as ``pread`` does into a buffer of the caller's; return how much there was."""

    def pread_once(self, handle: int, buffer: memoryview, position: int) -> int:
        """Read as ``pread_into`` does what nobody needs again: memory keeps what it had of it."""

    def size(self, handle: int) -> int:
        """Return a file's length."""

    def truncate(self, handle: int, size: int) -> None:
        """Cut a file to a length."""

    def sync(self, handle: int) -> None:
        """Make a file's bytes and length durable, or raise SyncFailedError."""

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable, or raise SyncFailedError.

        WriteFailedError where it was not even tried, for want of a descriptor: ask again later.
        """

    def sync_everything(self) -> None:
        """Make every file and name of the file system durable; raises as ``sync_directory``."""

    def rename(self, source: str, target: str) -> None:
        """Give a file another name, replacing what has it."""

    def unlink(self, path: str) -> None:
        """Remove a file's name."""

    def make_directory(self, path: str) -> None:
        """Make a directory; one that is there is fine."""

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, none if it is missing."""

    def exists(self, path: str) -> bool:
        """Tell whether a name is there."""

    def lock(self, path: str) -> int:
        """Lock a file for this process and return its handle, or raise DirectoryLockedError."""

    def lock_directory(self) -> int:
        """Lock the data directory itself: as ``lock``, before there is any file in it."""


@contextlib.contextmanager
def faults_of(path: str) -> Iterator[None]:
    """Tell apart what a file that is not handed out may mean.

    One that is missing or is no file is damage. Where the disk fails the bytes may be whole, and
    that is another error; running out of descriptors or room is raised as it is.
    """
    try:
        yield
    except FileNotFoundError as exc:
        raise CorruptDataError(path, 0, "the file is missing") from exc
    except OSError as exc:
        if exc.errno in NO_FAULTS:
            raise
        reason = exc.strerror or str(exc)
        if exc.errno in NO_FILE:
            raise CorruptDataError(path, 0, f"the file cannot be used: {reason}") from exc
        raise ReadFailedError(path, reason) from exc


def write_all(disk: Disk, handle: int, data: bytes | memoryview, position: int) -> None:
    """Write all of ``data`` or raise WriteFailedError; the file may then hold a part of it."""
    try:
        taken = disk.pwrite(handle, data, position)
        while taken < len(data):
            rest = data[taken:]
            taken += disk.pwrite(handle, rest, position + taken)
    except OSError as exc:
        reason = f"write failed: {exc.strerror or exc}"
        raise WriteFailedError(reason) from exc


# Copied in well under a millisecond. A larger piece is written from where it is: no thread is to
# hold the interpreter for the length of a long copy.
_COPY_BYTES_MAX = 256 * 1024


def coalesce(parts: list[bytes | memoryview]) -> list[bytes | memoryview]:
    """Join small pieces to be written one after the other; large ones stay as they are."""
    joined, small, size = parts[:0], parts[:0], 0
    if parts and sum(map(len, parts)) <= _COPY_BYTES_MAX:
        return [b"".join(parts)]
    for part in parts:
        if size + len(part) > _COPY_BYTES_MAX and small:
            joined.append(b"".join(small))
            small, size = [], 0
        if len(part) > _COPY_BYTES_MAX:
            joined.append(part)
        else:
            small.append(part)
            size += len(part)
    if small:
        joined.append(b"".join(small))
    return joined


def write_parts(disk: Disk, handle: int, parts: list[bytes | memoryview], position: int) -> None:
    """Write pieces one after the other, as ``write_all`` does."""
    for part in parts:
        write_all(disk, handle, part, position)
        position += len(part)


def write_at(disk: Disk, path: str, parts: list[bytes | memoryview], position: int) -> None:
    """Write pieces into a file, made if need be, that ends with them afterwards."""
    try:  # what begins at 0 is nearly always new, and what goes on is there
        handle = disk.open(path, write=True, create=not position)
    except (FileNotFoundError, FileExistsError):
        handle = disk.open(path, write=True, create=bool(position))
    try:
        write_parts(disk, handle, parts, position)
        end = position + sum(map(len, parts))
        if disk.size(handle) > end:
            disk.truncate(handle, end)  # an attempt that failed had more to write
    finally:
        disk.release(handle)


def cut_file(disk: Disk, path: str, length: int) -> None:
    """Bring a file back to a length; raise CorruptDataError where it is shorter."""
    with faults_of(path):
        handle = disk.open(path, write=True)
    try:
        found = disk.size(handle)
        if found < length:
            raise CorruptDataError(path, found, f"the file ends here, {length} bytes were durable")
        if found > length:
            disk.truncate(handle, length)
    finally:
        disk.release(handle)


def file_size(disk: Disk, path: str, missing: int = 0) -> int:
    """Return the length of a file, ``missing`` where there is none."""
    try:
        handle = disk.open(path)
    except FileNotFoundError:
        return missing
    try:
        return disk.size(handle)
    finally:
        disk.release(handle)


def read_file(disk: Disk, path: str) -> bytes:
    """Return a whole file."""
    handle = disk.open(path)
    try:
        return disk.pread(handle, disk.size(handle), 0)
    except OSError as exc:
        exc.filename = exc.filename or path  # a descriptor has no name
        raise
    finally:
        disk.release(handle)


def sync_file(disk: Disk, path: str) -> None:
    """Make a file durable that somebody has written; whoever may read it may do so."""
    handle = disk.open(path)
    try:
        disk.sync(handle)
    finally:
        disk.release(handle)


def write_new_file(disk: Disk, path: str, data: bytes) -> None:
    """Create a file with this content, durable but for its name; nothing is left on failure."""
    try:
        handle = disk.open(path, create=True, write=True)
    except OSError as exc:
        reason = f"cannot create {path}: {exc.strerror or exc}"
        raise WriteFailedError(reason) from exc
    try:
        write_all(disk, handle, data, 0)
        disk.sync(handle)
    except WriteFailedError:
        with contextlib.suppress(OSError):  # it says nothing that is whole
            disk.unlink(path)
        raise
    finally:
        disk.release(handle)


class RealDisk:
    """A directory of the host. The only user of ``os`` on files."""

    def __init__(self, root: str) -> None:
        self._root = root
        # Of streams' files that were removed, over the life of this object.
        self.reclaimed_bytes = 0
        self.owner: tuple[int, int] | None = None  # who gets what is made, if not its maker
        # Called when there is no descriptor to be had; tells whether one more try is worth it.
        self.relief: Callable[[], bool] = lambda: False
        self._libc = ctypes.CDLL(None, use_errno=True)
        # What may not wait reads to here first: new memory for every read costs half its time.
        self._scratch = memoryview(bytearray(256 * 1024))

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def open(self, path: str, *, create: bool = False, write: bool = False) -> int:
        """See Disk."""
        # Files do not know O_NONBLOCK; a pipe in the place of one must not hold its opener.
        flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        flags |= os.O_RDWR if write else os.O_RDONLY
        if create:
            flags |= os.O_CREAT | os.O_EXCL
        handle = self._open(path, flags)
        found = os.fstat(handle).st_mode
        if not stat.S_ISREG(found):
            os.close(handle)
            number = errno.EISDIR if stat.S_ISDIR(found) else errno.ENXIO
            raise OSError(number, os.strerror(number), self._path(path))
        if create and self.owner is not None:
            os.fchown(handle, *self.owner)
        return handle

    def _open(self, path: str, flags: int) -> int:
        try:
            return os.open(self._path(path), flags, FILE_MODE)
        except OSError as exc:
            if exc.errno not in EXHAUSTED or not self.relief():
                raise
        return os.open(self._path(path), flags, FILE_MODE)

    def release(self, handle: int) -> None:
        """See Disk."""
        os.close(handle)

    def pwrite(self, handle: int, data: bytes | memoryview, position: int) -> int:
        """See Disk."""
        return os.pwrite(handle, data, position)

    def pread(self, handle: int, size: int, position: int, *, wait: bool = True) -> bytes:
        """See Disk."""
        if wait:
            data = more = os.pread(handle, size, position)
            while more and len(data) < size:  # a bad sector ends a read, and fails the next
                more = os.pread(handle, size - len(data), position + len(data))
                data += more
            return data
        buffer = self._scratch[:size] if size <= len(self._scratch) else memoryview(bytearray(size))
        return bytes(buffer[: self.pread_into(handle, buffer, position, wait=False)])

    def pread_into(
        self, handle: int, buffer: memoryview, position: int, *, wait: bool = True
    ) -> int:
        """See Disk."""
        if wait:
            return self._fill(handle, buffer, position)
        try:
            taken = os.preadv(handle, [buffer], position, os.RWF_NOWAIT)
        except BlockingIOError as exc:
            raise ColdReadError from exc
        except OSError as exc:
            if exc.errno != errno.EOPNOTSUPP:
                raise
            return self._fill(handle, buffer, position)
        if taken < len(buffer) and position + taken < os.fstat(handle).st_size:
            raise ColdReadError
        return taken

    def _fill(self, handle: int, buffer: memoryview, position: int) -> int:
        taken = more = os.preadv(handle, [buffer], position)
        while more and taken < len(buffer):
            more = os.preadv(handle, [buffer[taken:]], position + taken)
            taken += more
        return taken

    def pread_once(self, handle: int, buffer: memoryview, position: int) -> int:
        """See Disk. What was cached stays so; what was not is read without more, and dropped."""
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)  # else the kernel reads ahead
        try:
            taken = os.preadv(handle, [buffer], position, os.RWF_NOWAIT)
        except OSError as exc:
            if exc.errno not in (errno.EAGAIN, errno.EOPNOTSUPP):
                raise
            taken = 0
        if taken < len(buffer):
            rest = os.preadv(handle, [buffer[taken:]], position + taken)
            os.posix_fadvise(handle, position + taken, rest, os.POSIX_FADV_DONTNEED)
            taken += rest
        return taken

    def size(self, handle: int) -> int:
        """See Disk."""
        return os.fstat(handle).st_size

    def truncate(self, handle: int, size: int) -> None:
        """See Disk."""
        os.ftruncate(handle, size)

    def sync(self, handle: int) -> None:
        """See Disk."""
        try:
            os.fdatasync(handle)
        except OSError as exc:
            reason = f"fdatasync failed: {exc.strerror}"
            raise SyncFailedError(reason) from exc

    def sync_directory(self, path: str) -> None:
        """See Disk."""
        handle = self._open_to_sync(path)
        try:
            os.fsync(handle)
        except OSError as exc:
            reason = f"fsync of directory {path!r} failed: {exc.strerror}"
            raise SyncFailedError(reason) from exc
        finally:
            os.close(handle)

    def _open_to_sync(self, path: str) -> int:
        """Open a directory whose names are to be durable. What is in the way decides what follows.

        Nothing is lost where there was no descriptor: the kernel still has the names to write. A
        directory that cannot be opened for another reason cannot be made durable, either.
        """
        try:
            return self._open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise
        except OSError as exc:
            reason = f"cannot open directory {path!r} to sync it: {exc.strerror}"
            if exc.errno in EXHAUSTED:
                raise WriteFailedError(reason) from exc
            raise SyncFailedError(reason) from exc

    def sync_everything(self) -> None:
        """See Disk. One call however many files are dirty; the standard library lacks it."""
        handle = self._open_to_sync("")
        try:
            if self._libc.syncfs(handle) != 0:
                reason = f"syncfs failed: {os.strerror(ctypes.get_errno())}"
                raise SyncFailedError(reason)
        finally:
            os.close(handle)

    def rename(self, source: str, target: str) -> None:
        """See Disk."""
        os.rename(self._path(source), self._path(target))

    def unlink(self, path: str) -> None:
        """See Disk."""
        name = self._path(path)
        size = os.lstat(name).st_size
        os.unlink(name)
        if path.startswith("streams/"):
            self.reclaimed_bytes += size

    def room(self) -> tuple[int, int]:
        """Return how large the file system is, and how much of it is free for this process."""
        found = os.statvfs(self._root)
        return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize

    def make_directory(self, path: str) -> None:
        """See Disk."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._path(path), DIRECTORY_MODE)
            if self.owner is not None:
                os.chown(self._path(path), *self.owner)

    def remove_directory(self, path: str) -> None:
        """See Disk."""
        os.rmdir(self._path(path))

    def names(self, path: str) -> list[str]:
        """See Disk."""
        try:
            return sorted(os.listdir(self._path(path)))
        except FileNotFoundError:
            return []

    def exists(self, path: str) -> bool:
        """See Disk."""
        return os.path.lexists(self._path(path))

    def lock(self, path: str) -> int:
        """See Disk."""
        handle = os.open(self._path(path), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        self._take(handle)
        there = os.stat(self._path(path), follow_symlinks=False)
        if not os.path.samestat(os.fstat(handle), there):
            os.close(handle)  # another file got the name meanwhile: somebody is at work
            raise self._in_use()
        return handle

    def lock_directory(self) -> int:
        """See Disk. Some network file systems lock no directories; a file's lock must do there."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        try:
            handle = os.open(self._root, flags)
        except (FileNotFoundError, NotADirectoryError) as exc:
            reason = f"{self._root} is not a directory (is the volume mounted?)"
            raise DataDirectoryError(reason) from exc
        self._take(handle, unsupported=(errno.EBADF, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOLCK))
        return handle

    def _take(self, handle: int, unsupported: tuple[int, ...] = ()) -> None:
        """Lock an open file; ``locked`` holds a lock for an instant, so ask more than once."""
        for _ in range(LOCK_TRIES):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.sched_yield()
            except OSError as exc:
                if exc.errno in unsupported:
                    return
                os.close(handle)
                if exc.errno == errno.EIO:
                    raise  # of the disk; it says nothing about the directory
                reason = f"{self._root} cannot be locked: {exc.strerror}"
                raise DataDirectoryError(reason) from exc
            else:
                return
        os.close(handle)
        raise self._in_use()

    def _in_use(self) -> DirectoryLockedError:
        return DirectoryLockedError(f"{self._root} is in use by another durastreamd or dsadmin")

    def locked(self, path: str) -> bool:
        """Tell whether another process has a file locked.

        Asked by taking a shared lock for an instant: the only way that sees other containers.
        """
        handle = os.open(self._path(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False

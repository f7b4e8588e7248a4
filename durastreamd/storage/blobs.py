"""Snapshot blobs: files written piece by piece, durable before anything refers to them.

A blob has one checksum over all of it, so nothing of it is known to be good before its last byte.
``read_blob`` reads one from its file; who reads in another way (through the handles that readers
share, or past the page cache) has its pieces judged by ``BlobCheck``.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import xxhash

from durastreamd.errors import CorruptDataError, WriteFailedError
from durastreamd.storage import format as fmt
from durastreamd.storage.checksum import payload_seed
from durastreamd.storage.disk import Disk, write_all


class BlobFile(NamedTuple):
    """A snapshot's file: whose, where, how long, and the checksum of all of it."""

    stream: int
    position: int
    serial: int
    size: int
    sum: int

    @property
    def path(self) -> str:
        """Return the path of the file."""
        return fmt.snapshot_path(self.stream, self.position, self.serial)


class BlobWriter:
    """Writes one blob. Every method may block."""

    def __init__(self, disk: Disk, stream: int, position: int, serial: int) -> None:
        self._disk = disk
        self._stream = stream
        self.path = fmt.snapshot_path(stream, position, serial)
        self.size = 0
        self._hash = xxhash.xxh3_64(seed=payload_seed(stream, position))
        self._handle = -1

    @property
    def sum(self) -> int:
        """Return the checksum of what was written."""
        return self._hash.intdigest()

    def write(self, data: bytes) -> None:
        """Add a piece; the first one makes the file, and the stream's directory if need be."""
        try:
            if self._handle < 0:
                self._handle = self._open()
            write_all(self._disk, self._handle, data, self.size)
        except OSError as exc:
            reason = f"cannot write {self.path}: {exc.strerror or exc}"
            raise WriteFailedError(reason) from exc
        self._hash.update(data)
        self.size += len(data)

    def _open(self) -> int:
        directory = fmt.stream_dir(self._stream)
        self._disk.make_directory(directory.rpartition("/")[0])
        self._disk.make_directory(directory)
        return self._disk.open(self.path, create=True, write=True)

    def finish(self) -> None:
        """Make the blob durable, name and all; raise WriteFailedError if its stream is gone."""
        self._disk.sync(self._handle)
        handle, self._handle = self._handle, -1
        try:
            self._disk.release(handle)
            if not self._disk.exists(self.path):
                reason = f"{self.path} was removed with its stream"
                raise WriteFailedError(reason)
            # The directory may have been made by a flush that no checkpoint has synced yet.
            directory = fmt.stream_dir(self._stream)
            for path in (directory, directory.rpartition("/")[0], fmt.STREAMS_DIR):
                self._disk.sync_directory(path)
        except OSError as exc:
            reason = f"cannot write {self.path}: {exc.strerror or exc}"
            raise WriteFailedError(reason) from exc

    def discard(self) -> None:
        """Take the blob back; nobody has been told of it. What will not go now goes later."""
        handle, self._handle = self._handle, -1
        with suppress(OSError):
            if handle >= 0:
                self._disk.release(handle)
        with suppress(OSError):
            if self._disk.exists(self.path):
                self._disk.unlink(self.path)


class BlobCheck:
    """Judges a blob as its bytes go by, however they are read: the length first, the sum last."""

    def __init__(self, blob: BlobFile, found: int) -> None:
        """Begin with the length of the file that was found."""
        if found != blob.size:
            reason = f"the snapshot has {found} bytes, not {blob.size}"
            raise CorruptDataError(blob.path, min(found, blob.size), reason)
        self._blob = blob
        self._hash = xxhash.xxh3_64(seed=payload_seed(blob.stream, blob.position))

    def add(self, data: bytes | memoryview) -> None:
        """Take the next piece."""
        self._hash.update(data)

    def finish(self) -> None:
        """Raise CorruptDataError unless the whole is what was published."""
        if self._hash.intdigest() != self._blob.sum:
            raise CorruptDataError(self._blob.path, 0, "the snapshot does not verify")


def read_blob(disk: Disk, blob: BlobFile, piece_bytes: int) -> Iterator[bytes]:
    """Yield a blob piece by piece; the last one only once the whole has verified."""
    handle = disk.open(blob.path)
    try:
        check = BlobCheck(blob, disk.size(handle))
        at, last = 0, b""
        while at < blob.size:
            if last:
                yield last
            last = disk.pread(handle, min(piece_bytes, blob.size - at), at)
            if not last:
                raise CorruptDataError(blob.path, at, "the file ends here")
            check.add(last)
            at += len(last)
        check.finish()
        if last:
            yield last
    finally:
        disk.release(handle)

"""Snapshot blobs: files written piece by piece, durable before anything refers to them."""

from contextlib import suppress

import xxhash

from durastreamd.errors import CorruptDataError, WriteFailedError
from durastreamd.storage import format as fmt
from durastreamd.storage.checksum import payload_seed
from durastreamd.storage.disk import Disk, write_all


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
    """Verifies a blob while it is read: the last piece is good only if the whole was."""

    def __init__(self, stream: int, position: int, path: str, expected: int) -> None:
        self._hash = xxhash.xxh3_64(seed=payload_seed(stream, position))
        self._path = path
        self._expected = expected

    def add(self, data: bytes, *, last: bool) -> bytes:
        """Take a piece and give it back; raise CorruptDataError if the whole does not verify."""
        self._hash.update(data)
        if last and self._hash.intdigest() != self._expected:
            raise CorruptDataError(self._path, 0, "the snapshot does not verify")
        return data

"""The new backup in the making: a tree of files beside the old one, which stays whole until then.

A file that the old backup has already, with the same bytes, is linked, not copied. The links are
between two backups of which one is about to go: a backup never shares a file with the directory it
is of, because that one's files grow and are cut.
"""

import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import msgspec

from durastreamd.admin.carry.manifest import (
    FORMAT,
    OWN_FILES,
    About,
    BackupManifest,
    Kept,
    digest_of,
    encode_sums,
)
from durastreamd.admin.carry.moment import Moment, Wanted
from durastreamd.storage import format as fmt
from durastreamd.storage.disk import DIRECTORY_MODE, FILE_MODE, RealDisk

FOLDERS = (fmt.JOURNAL_DIR, fmt.CATALOG_DIR, fmt.STREAMS_DIR, fmt.QUARANTINE_DIR)


def create_file(path: Path) -> BinaryIO:
    """Open a new file that nobody but its owner may read."""

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_EXCL, FILE_MODE)

    return open(path, "wb", opener=opener)


def open_file(path: Path) -> BinaryIO:
    """Open a file to copy it; what is none, a pipe for example, is refused and not waited for."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    handle = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.ENXIO, os.strerror(errno.ENXIO), str(path))
    return open(handle, "rb")


def make_parents(root: Path, path: str) -> None:
    """Make the directories above a file, each for its owner alone, not only the last."""
    for parent in reversed(Path(path).parents[:-1]):
        (root / parent).mkdir(DIRECTORY_MODE, exist_ok=True)


class _Limited:
    """The first so many bytes of a file."""

    def __init__(self, source: BinaryIO, size: int) -> None:
        self._source = source
        self._left = size

    def read(self, size: int) -> bytes:
        data = self._source.read(min(size, self._left))
        self._left -= len(data)
        return data


class Tree:
    """A backup being written. ``files`` is what it holds so far."""

    def __init__(
        self, root: Path, source: Path, old_root: Path, old: BackupManifest | None
    ) -> None:
        self._root = root
        self._source = source
        self._old_root = old_root
        self._old = old.files if old is not None else {}
        self.files: dict[str, Kept] = {}
        self.copied_bytes = 0
        root.mkdir(mode=DIRECTORY_MODE)
        for folder in FOLDERS:
            (root / folder).mkdir(mode=DIRECTORY_MODE)

    def take(self, moment: Moment, advance: Callable[[int], None]) -> None:
        """Bring the tree to a moment; a file that has gone, or is none, or cannot be read, is left
        out: whoever opens the tree then says what it lacks.
        """
        wanted = {one.path for one in moment.wanted} | moment.contents.keys()
        for path in self.files.keys() - wanted:
            self._drop(path)
        for one in moment.wanted:
            try:
                self._take(one, advance)
            except OSError as exc:
                if exc.filename != str(self._source / one.path) and exc.errno != errno.EIO:
                    raise  # of where the copy is to be
                self._drop(one.path)
        for path, data in moment.contents.items():
            kept = Kept(len(data), hashlib.sha256(data).hexdigest())
            if self.files.get(path) == kept:
                continue
            self._drop(path)
            with create_file(self._root / path) as out:
                out.write(data)
            self.files[path] = kept
            self.copied_bytes += len(data)

    def _take(self, one: Wanted, advance: Callable[[int], None]) -> None:
        with open_file(self._source / one.path) as source:
            size = os.fstat(source.fileno()).st_size if one.size < 0 else one.size
            have = self.files.get(one.path)
            if have is not None and have.size == size:
                return
            self._drop(one.path)
            if self._same(one, size):
                self._link(one.path)
                advance(size)
                return
            make_parents(self._root, one.path)
            with create_file(self._root / one.path) as out:
                limited = _Limited(source, size)
                kept = digest_of(limited, advance, out)
        self.files[one.path] = kept
        self.copied_bytes += kept.size

    def _same(self, one: Wanted, size: int) -> bool:
        """Tell whether the old backup has these very bytes.

        A snapshot's name is its identity. An index is compared; and it holds the sums of the bytes
        of its segment, so where the old index was the same, so is the old segment.
        """
        old = self._old.get(one.path)
        if old is None or old.size != size:
            return False
        if one.proof == one.path:
            with open_file(self._source / one.path) as source:
                limited = _Limited(source, size)
                return digest_of(limited, lambda _: None) == old
        return not one.proof or self.files.get(one.proof) == self._old.get(one.proof)

    def _link(self, path: str) -> None:
        make_parents(self._root, path)
        os.link(self._old_root / path, self._root / path)
        self.files[path] = self._old[path]

    def _drop(self, path: str) -> None:
        if self.files.pop(path, None) is not None or (self._root / path).exists():
            (self._root / path).unlink()

    def look_again(self, changed: set[str]) -> None:
        """Take stock of the tree after somebody else has moved files in it, and written some."""
        there = [place for place in self._root.rglob("*") if place.is_file()]
        paths = {str(place.relative_to(self._root)) for place in there}
        known = {path: self.files[path] for path in paths & self.files.keys() - changed}
        for path in paths - known.keys():
            with open_file(self._root / path) as source:
                known[path] = digest_of(source, lambda _: None)
        self.files = known

    def finish(self, moment: Moment, began_ms: int, ended_ms: int, unverified: int = 0) -> About:
        """Write the manifest and make everything durable."""
        for directory in sorted((self._root / fmt.STREAMS_DIR).glob("*/*"), reverse=True):
            if not any(directory.iterdir()):
                directory.rmdir()
        sums = encode_sums(self.files)
        total = sum(kept.size for kept in self.files.values())
        about = About(
            FORMAT,
            moment.uuid.hex(),
            began_ms,
            ended_ms,
            moment.lsn,
            moment.streams,
            len(self.files),
            total,
            hashlib.sha256(sums).hexdigest(),
            unverified,
        )
        (self._root / fmt.SUMS_FILE).write_bytes(sums)
        (self._root / fmt.BACKUP_FILE).write_bytes(_pretty(about))
        for name in OWN_FILES:
            (self._root / name).chmod(FILE_MODE)
        RealDisk(str(self._root)).sync_everything()
        return about

    def remove(self) -> None:
        """Take the unfinished tree away."""
        shutil.rmtree(self._root, ignore_errors=True)


def _pretty(about: About) -> bytes:
    return msgspec.json.format(msgspec.json.encode(about), indent=2) + b"\n"

"""The place of a reader, in a file: written after each message that went out.

One small write in place, so that it costs a message next to nothing. A kill between a message and
its place repeats that message; what the file says was always written out. It names the stream and
its incarnation, has a sum, and is locked while a reader uses it.
"""

import fcntl
import hashlib
import json
import os
from pathlib import Path

from durastreamd.client import Bookmark, StateError, StateLockedError

RECORD_BYTES = 4096  # a page: written in one piece


class CursorFile:
    """Where a reader is."""

    def __init__(self, path: str, url: str) -> None:
        self.path = Path(path)
        self._url = url
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            message = f"{self.path}: {exc.strerror}; the place cannot be kept there"
            raise StateError(message) from exc
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            os.close(self._file)
            message = f"{self.path} is in use by another ds tail; two readers need two files"
            raise StateLockedError(message) from exc

    def load(self) -> tuple[Bookmark, str] | None:
        """Return the place and the stream's incarnation; None for a new file."""
        data = os.pread(self._file, RECORD_BYTES, 0)
        if not data:
            return None
        try:
            told, _, text = data.rstrip(b" \n").partition(b" ")
            if told.decode() != hashlib.sha256(text).hexdigest():
                message = "its sum does not hold"
                raise ValueError(message)
            kept = json.loads(text)
            url, place = kept["url"], Bookmark.of(kept["after"])
            incarnation = str(kept["incarnation"])
        except (ValueError, KeyError, TypeError) as exc:
            message = (
                f"{self.path} is damaged, or no place of a reader: {exc}; remove it and begin "
                "where you know, with --from"
            )
            raise StateError(message) from exc
        if url != self._url:
            message = f"{self.path} is a place in {url}; each stream needs its own file"
            raise StateError(message)
        return place, incarnation

    def save(self, place: Bookmark, incarnation: str) -> None:
        """Write the place down."""
        kept = {"url": self._url, "after": str(place), "incarnation": incarnation}
        text = json.dumps(kept).encode()
        record = b"%s %s" % (hashlib.sha256(text).hexdigest().encode(), text)
        record = record.ljust(RECORD_BYTES - 1) + b"\n"
        try:
            if os.pwrite(self._file, record, 0) != len(record):
                message = f"{self.path}: no room; the place cannot be kept there"
                raise StateError(message)
        except OSError as exc:
            message = f"{self.path}: {exc.strerror}; the place cannot be kept there"
            raise StateError(message) from exc

    def release(self) -> None:
        """Let another reader have it."""
        os.close(self._file)

"""What a producer has to remember over its own death, in one file.

A batch is written here, and synced, before it is sent for the first time. Whoever starts again
with the file sends what it holds again, under the same numbers, and the server knows it by them.
The file is replaced as a whole, so it is the old one or the new one; its sum tells if somebody
else cut or changed it. Beside it stands a lock: two producers with one state would take each
other's numbers.
"""

import errno
import fcntl
import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from durastreamd.client.errors import StateError, StateLockedError

MAGIC = b"durastream producer 1"


@dataclass(slots=True)
class Outgoing:
    """A batch with a number: on its way, or to be sent again."""

    seq: int
    body: bytes
    count: int  # messages
    mark: str = ""  # the caller's: how far its input is, with this batch
    closes: bool = False
    unsure: bool = False  # it was sent, and nobody said whether it arrived


@dataclass
class ProducerState:
    """Who the producer is, where it stands, what is on its way."""

    url: str
    producer: str
    epoch: int
    next_seq: int = 0
    incarnation: str = ""
    mark: str = ""
    pending: list[Outgoing] = field(default_factory=list)


class StateFile:
    """The file, held by this process until it is released."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._lock = self._locked()

    def _locked(self) -> int:
        beside = self.path.with_name(self.path.name + ".lock")
        try:
            lock = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise _failed(beside, exc) from exc
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            os.close(lock)
            if exc.errno in (errno.EWOULDBLOCK, errno.EACCES):
                message = (
                    f"{self.path} is in use by another process; two producers need two state files"
                )
                raise StateLockedError(message) from exc
            raise _failed(beside, exc) from exc
        return lock

    def load(self) -> ProducerState | None:
        """Return what the file says, None if it is not there; raise if it is damaged."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise _failed(self.path, exc) from exc
        try:
            return _decode(data)
        except (ValueError, KeyError, TypeError, RecursionError) as exc:
            message = (
                f"{self.path} is damaged, or no state of a producer: {exc}; what was on its way is "
                "not known any more. Look at the end of the stream, then remove the file"
            )
            raise StateError(message) from exc

    def save(self, state: ProducerState) -> None:
        """Replace the file, durably."""
        made = self.path.with_name(self.path.name + ".new")
        try:
            file = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                left = memoryview(_encode(state))
                while left:
                    left = left[os.write(file, left) :]
                os.fsync(file)
            finally:
                os.close(file)
            made.replace(self.path)
            _sync_directory(self.path.parent)
        except OSError as exc:
            made.unlink(missing_ok=True)
            raise _failed(self.path, exc) from exc

    def release(self) -> None:
        """Let another process have it."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _failed(path: Path, exc: OSError) -> StateError:
    return StateError(f"{path}: {exc.strerror}; the state of the producer cannot be kept there")


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _encode(state: ProducerState) -> bytes:
    head = {
        "url": state.url,
        "producer": state.producer,
        "epoch": state.epoch,
        "next_seq": state.next_seq,
        "incarnation": state.incarnation,
        "mark": state.mark,
        "pending": [
            [each.seq, len(each.body), each.count, each.mark, each.closes] for each in state.pending
        ],
    }
    bodies = b"".join(each.body for each in state.pending)
    rest = json.dumps(head).encode() + b"\n" + bodies
    return b"%s %s\n%s" % (MAGIC, hashlib.sha256(rest).hexdigest().encode(), rest)


def _decode(data: bytes) -> ProducerState:
    first, _, rest = data.partition(b"\n")
    magic, _, told = first.rpartition(b" ")
    if magic != MAGIC or told != hashlib.sha256(rest).hexdigest().encode():
        message = "its sum does not hold"
        raise ValueError(message)
    text, _, bodies = rest.partition(b"\n")
    head = json.loads(text)
    pending, at = [], 0
    for seq, length, count, mark, closes in head.pop("pending"):
        body = bodies[at : at + length]
        pending.append(Outgoing(seq, body, count, mark, closes, unsure=True))
        at += length
    return ProducerState(**head, pending=pending)

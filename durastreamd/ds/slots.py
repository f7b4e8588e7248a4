"""The state of appends, kept where a user's programs keep such things.

An append that was interrupted leaves its state in a slot, under a key that says which append it
was: the same command, given again, finds it and goes on. A slot whose append is finished is free,
and the next append to that stream uses its producer: a stream knows few producers, however often
it is written to. Appends at the same time have slots of their own.

A mark is the key, how many messages are taken, and a sum over them, so that other input is not
mistaken for the rest of this one.
"""

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

from durastreamd.client import StateError, StateLockedError
from durastreamd.client.producer_state import StateFile

SLOTS_MAX = 64  # appends to one stream at the same time, or interrupted and not taken up again
STATE_VARIABLE = "XDG_STATE_HOME"


class RunMark(NamedTuple):
    """How far the input of an append is."""

    key: str
    taken: int
    digest: str

    def __str__(self) -> str:
        return f"{self.key} {self.taken} {self.digest}"

    @classmethod
    def of(cls, text: str) -> "RunMark | None":
        """Return the mark that a text stands for; None for no mark of ours."""
        match text.split(" "):
            case [key, count, digest] if count.isdigit():
                return cls(key, int(count), digest)
            case _:
                return None


def key_of(*parts: str) -> str:
    """Return a short name for an append: where its messages come from, and how they are taken."""
    return hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()[:16]


def directory(url: str) -> Path:
    """Return the directory of a stream's slots; it is made if it is not there."""
    home = os.environ.get(STATE_VARIABLE) or Path.home() / ".local" / "state"
    path = Path(home) / "durastream" / "append" / key_of(url)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as exc:
        message = (
            f"{path}: {exc.strerror}; what an interrupted append needs cannot be kept there. "
            "Give --state FILE, or --no-state to do without"
        )
        raise StateError(message) from exc
    return path


def choose(place: Path, key: str) -> Path:
    """Return the slot of an interrupted append of this key, or else a free one."""
    free: Path | None = None
    for number in range(SLOTS_MAX):
        path = place / f"{number}.state"
        kept = _look(path)
        if kept is None:
            continue
        if kept and kept.key == key:
            return path
        free = free or (None if kept else path)
    if free is None:
        message = (
            f"{SLOTS_MAX} appends to this stream are under way or were interrupted; repeat those, "
            f"or remove what is in {place}"
        )
        raise StateError(message)
    return free


def _look(path: Path) -> "RunMark | tuple[()] | None":
    """Return whose slot it is: a mark, nobody's, or None for one that is in use."""
    if not path.exists():
        made = path.with_name(path.name + ".lock")
        if not made.exists():
            return ()
    try:
        file = StateFile(path)
    except StateLockedError:
        return None
    try:
        found = file.load()
        mark = RunMark.of(found.mark) if found else None
        return mark or (() if found is None or not found.pending else None)
    except StateError:
        return None  # damaged: whoever has it repeats with --state, and is told
    finally:
        file.release()

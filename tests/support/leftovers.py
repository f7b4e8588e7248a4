"""What a test leaves behind in its own process: descriptors, threads, child processes.

``Held.now`` is a picture of all three; the fixtures in ``tests/conftest.py`` take one before a test
and look afterwards for what is new. What a fixture of a wider scope holds was there before the test
and is in the picture; it is looked at when that scope ends. Some ends take a moment (a thread on
its last lines, a process that was told to go), so they are waited for.
"""

import gc
import os
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Self

from trio._core._thread_cache import THREAD_CACHE

from tests.support.patience import LOOK_S

GONE_S_MAX = 30.0  # only a test that leaves something behind waits so long


@dataclass(frozen=True)
class Held:
    """What this process holds at a moment."""

    descriptors: frozenset[tuple[int, str]]
    threads: frozenset[threading.Thread]
    children: frozenset[int]

    @classmethod
    def now(cls) -> Self:
        """Look; a few system calls for each descriptor and thread, so it may be done often."""
        return cls(
            frozenset(_descriptors()), frozenset(_threads()), frozenset(_children()) - _tracker()
        )

    def without(self, kinds: Iterable[str]) -> Self:
        """Return all of it but some kinds: ``sockets`` or ``threads``."""
        chosen = self
        if "sockets" in kinds:
            rest = frozenset(each for each in self.descriptors if "socket:" not in each[1])
            chosen = replace(chosen, descriptors=rest)
        if "threads" in kinds:
            chosen = replace(chosen, threads=frozenset())
        return chosen

    def news_since(self, before: Self) -> list[str]:
        """Return what is held now and was not then, in words."""
        fresh = sorted(self.descriptors - before.descriptors)
        found = [f"descriptor {number}: {target}" for number, target in fresh]
        found += [f"thread {each.name!r}" for each in self.threads - before.threads]
        return found + [
            f"process {pid}: {_command(pid)}" for pid in self.children - before.children
        ]


# What fixtures of a wider scope make while tests run, and keep to their own end: a session of Spark
# opens connections to its Java machine as they are needed, and serves its calls in threads.
MADE_BY: dict[str, tuple[str, ...]] = {"spark": ("sockets", "threads")}


def left_since(before: Held, fixtures: Iterable[str]) -> list[str]:
    """Return what is still there after a while that was not before, in words."""
    until = time.monotonic() + GONE_S_MAX
    shared = {kind for name in fixtures for kind in MADE_BY.get(name, ())}
    while left := Held.now().without(shared).news_since(before):
        # A socket of an object in a cycle goes with the collector (and is told by a warning).
        gc.collect()
        if time.monotonic() > until:
            return left
        time.sleep(LOOK_S)
    return []


def _descriptors() -> Iterator[tuple[int, str]]:
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # that of the listing itself, or released meanwhile
        if int(name) != _tracker_descriptor():
            yield int(name), target


def _threads() -> Iterable[threading.Thread]:
    """Return threads that do something: trio keeps some that wait for work for a few seconds."""
    waiting = {worker._thread for worker in list(THREAD_CACHE._idle_workers)}
    return [each for each in threading.enumerate() if each not in waiting]


def _children() -> Iterator[int]:
    for task in os.listdir("/proc/self/task"):
        try:
            text = Path(f"/proc/self/task/{task}/children").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        yield from map(int, text.split())


def _command(pid: int) -> str:
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except (FileNotFoundError, ProcessLookupError):
        return "ended"
    return line or "ended, and nobody asked how"


# The standard library starts one process of its own for all pools, and it stays to the end.


def _tracker() -> frozenset[int]:
    pid = getattr(resource_tracker._resource_tracker, "_pid", None)
    return frozenset() if pid is None else frozenset((pid,))


def _tracker_descriptor() -> int | None:
    number: int | None = getattr(resource_tracker._resource_tracker, "_fd", None)
    return number

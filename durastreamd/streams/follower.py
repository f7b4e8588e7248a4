"""Followers: readers that wait at the tail.

A follower has a channel of capacity one that carries no data, only "something changed"; a full
channel means that a wake-up is waiting already. So a slow reader costs one slot, and the bytes
always come from the log. What is made from a range of bytes for one follower (an SSE event, say)
is kept for the others: each batch is encoded once, however many follow.
"""

from collections.abc import Callable, Hashable
from typing import NamedTuple

import trio

# Followers are at the tail or a batch behind; whoever is further behind reads by itself.
_SHARED_MAX = 4


class ReaderFacts(NamedTuple):
    """Who follows, for whoever looks."""

    since_ms: int
    mode: str
    peer: str


class Following:
    """The followers of one stream, and what they share."""

    def __init__(self) -> None:
        self.followers: set[Follower] = set()
        self._shared: dict[Hashable, bytes] = {}

    def wake(self) -> None:
        """Tell every follower that something changed."""
        for follower in list(self.followers):
            follower.wake()

    def shared(self, key: Hashable, make: Callable[[], bytes]) -> bytes:
        """Return what ``make`` gives, made once for all followers that ask for ``key``."""
        found = self._shared.get(key)
        if found is None:
            found = make()
            if len(self._shared) >= _SHARED_MAX:
                del self._shared[next(iter(self._shared))]
            self._shared[key] = found
        return found


class Follower:
    """One reader's place at the tail.

    Its task waits in ``changed``, and may leave a function there that serves the reader on the spot
    while it waits; ``rouse`` wakes the task whatever that function could do.
    """

    __slots__ = ("_deliver", "_receive", "_send", "following", "reader")

    def __init__(self, following: Following, reader: ReaderFacts | None = None) -> None:
        self.following = following
        self.reader = reader
        self._deliver: Callable[[], bool] | None = None
        self._send, self._receive = trio.open_memory_channel[None](1)
        following.followers.add(self)

    def wake(self) -> None:
        """Note that something changed; never waits."""
        if self._deliver is not None and self._deliver():
            return
        try:
            self._send.send_nowait(None)
        except trio.WouldBlock:
            pass  # a wake-up is waiting already

    def rouse(self) -> None:
        """Wake the reader's own task, also where it could be served without it."""
        self._deliver = None
        self.wake()

    async def changed(self, deliver: Callable[[], bool] | None = None) -> None:
        """Wait until something changed since the last call that ``deliver`` did not see to.

        It is called in the turn of whoever made the change, as long as this waits, and returns
        False where the reader's own task is needed.
        """
        self._deliver = deliver
        try:
            await self._receive.receive()
        finally:
            self._deliver = None

    def release(self) -> None:
        """Stop following."""
        self.following.followers.discard(self)

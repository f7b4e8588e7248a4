"""Followers: readers that wait at the tail.

A follower has a channel of capacity one that carries no data, only "something changed"; a full
channel means that a wake-up is waiting already. So a slow reader costs one slot, and the bytes
always come from the log. What is made from a range of bytes for one follower (an SSE event, say)
is kept for the others: each batch is encoded once, however many follow.
"""

from collections.abc import Callable, Hashable

import trio

# Followers are at the tail or a batch behind; whoever is further behind reads by itself.
_SHARED_MAX = 4


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

    ``deliver`` may be set to a function that serves the reader on the spot; it returns False where
    the reader's own task has to be woken for it.
    """

    __slots__ = ("_receive", "_send", "deliver", "following")

    def __init__(self, following: Following) -> None:
        self.following = following
        self.deliver: Callable[[], bool] | None = None
        self._send, self._receive = trio.open_memory_channel[None](1)
        following.followers.add(self)

    def wake(self) -> None:
        """Note that something changed; never waits."""
        if self.deliver is not None and self.deliver():
            return
        try:
            self._send.send_nowait(None)
        except trio.WouldBlock:
            pass  # a wake-up is waiting already

    def rouse(self) -> None:
        """Wake the reader's own task, whatever ``deliver`` could do."""
        self.deliver = None
        self.wake()

    async def changed(self) -> None:
        """Wait until something changed since the last call."""
        await self._receive.receive()

    def release(self) -> None:
        """Stop following."""
        self.following.followers.discard(self)

"""Notices clients that go away while their exchange waits, without a task for each of them.

A long-poll or SSE exchange waits for data to come, so nothing reads its socket and nothing would
notice that the client is gone. One epoll set holds the sockets of all such exchanges and asks only
for "the peer shut down its sending side"; the set itself is readable when one of them fires, so one
trio task serves thousands. Bytes of pipelined requests stay in the kernel, bounded by it.
"""

import select
from typing import Final

import trio
from trio.lowlevel import notify_closing, wait_readable

# HUP and ERR are always reported; they need not be asked for.
_GONE: Final = select.EPOLLRDHUP


class HangUpWatch:
    """The sockets whose hang-up somebody waits for, and the scopes it cancels."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._scopes: dict[int, trio.CancelScope] = {}

    def add(self, fileno: int, scope: trio.CancelScope) -> None:
        """Cancel ``scope`` when the client behind ``fileno`` goes away."""
        self._epoll.register(fileno, _GONE)
        self._scopes[fileno] = scope

    def discard(self, fileno: int, scope: trio.CancelScope) -> None:
        """Stop watching for ``scope``; harmless after it has fired.

        The number alone would not do: once a socket is released, the next one may have it.
        """
        if self._scopes.get(fileno) is scope:
            del self._scopes[fileno]
            self._unregister(fileno)

    def fire(self, fileno: int) -> None:
        """Cancel whoever waits on ``fileno``, as if its client had gone.

        For our own hang-ups: a released socket leaves the set without a sound.
        """
        scope = self._scopes.pop(fileno, None)
        if scope is not None:
            self._unregister(fileno)
            scope.cancel()

    async def run(self) -> None:
        """Watch until cancelled."""
        try:
            while True:
                await wait_readable(self._epoll.fileno())
                # Level-triggered: what stayed registered would fire for ever.
                for fileno, _ in self._epoll.poll(0):
                    self.fire(fileno)
        finally:
            notify_closing(self._epoll.fileno())
            self._epoll.close()

    def _unregister(self, fileno: int) -> None:
        try:
            self._epoll.unregister(fileno)
        except (OSError, ValueError):
            pass  # Released meanwhile, which takes a socket out of the set too; or we are over.

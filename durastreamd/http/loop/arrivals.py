"""Tells connections that bytes have come, many in one go and without a task switch for each.

Waiting by trio costs a connection a registration and two task switches per request. Here a socket
is registered once for its life, edge-triggered, and one task hears of all of them; a connection
then decides in its own code whether its task must wake (see ``h1``). What was not read makes no
second event, so a connection that is not ready for an event has to remember that there was one.
"""

import select
from typing import Final, Protocol

from trio.lowlevel import notify_closing, wait_readable

_EVENTS: Final = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET
_AT_ONCE_MAX: Final = 128  # Some 3 ms of work; then everybody else has a turn.


class Hearer(Protocol):
    """A connection that wants to know."""

    def arrived(self) -> None:
        """Something happened to the socket; raises nothing."""


class Arrivals:
    """Sockets, and whom to tell when something happens to one."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._hearers: dict[int, Hearer] = {}

    def add(self, fileno: int, hearer: Hearer) -> None:
        """Tell ``hearer`` of every event of a socket from now on; what came before is one."""
        self._hearers[fileno] = hearer
        self._epoll.register(fileno, _EVENTS)

    def discard(self, fileno: int, hearer: Hearer) -> None:
        """Tell no more; the socket may be released already, and its number another's."""
        if self._hearers.get(fileno) is hearer:
            del self._hearers[fileno]
            try:
                self._epoll.unregister(fileno)
            except (OSError, ValueError):
                pass  # Released, which took it out of the set; or we are over.

    async def run(self) -> None:
        """Watch until cancelled."""
        try:
            while True:
                await wait_readable(self._epoll.fileno())
                for fileno, events in self._epoll.poll(0, _AT_ONCE_MAX):
                    hearer = self._hearers.get(fileno)
                    if hearer is None:
                        continue
                    hearer.arrived()
                    if events & select.EPOLLRDHUP and self._hearers.get(fileno) is hearer:
                        hearer.arrived()  # The client's end came along: an event of its own.
        finally:
            notify_closing(self._epoll.fileno())
            self._epoll.close()

"""What a service manager is told, and what it hands over; nothing happens where there is none.

The protocols of sd_notify(3) and sd_listen_fds(3), which are a datagram and three variables.
"""

import logging
import os
import socket
import time
from collections.abc import Mapping
from typing import Final, NamedTuple

logger = logging.getLogger(__name__)

FIRST_DESCRIPTOR: Final = 3  # sd_listen_fds(3): SD_LISTEN_FDS_START
SEND_S_MAX: Final = 1.0  # the event loop waits so long at most for a manager that does not read


class Notifier:
    """The line to the service manager."""

    def __init__(self, address: str = "") -> None:
        self._sock: socket.socket | None = None
        self._status = ""
        if not address:
            return
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        # As sd_notify(3) itself: a full queue is waited for, or READY=1 might be lost.
        self._sock.settimeout(SEND_S_MAX)
        # "@" stands for the byte that marks an abstract address.
        self._address = "\0" + address[1:] if address.startswith("@") else address

    def send(self, *assignments: str) -> None:
        """Say something; a manager that does not listen is not worth failing for."""
        if self._sock is None:
            return
        try:
            self._sock.sendto("\n".join(assignments).encode(), self._address)
        except OSError as exc:
            logger.warning("the service manager was not told %s: %s", assignments[0], exc)

    def ready(self, status: str) -> None:
        """Say that clients are served."""
        self._status = status
        self.send("READY=1", f"STATUS={status}")

    def status(self, status: str) -> None:
        """Say how it goes, if that is news."""
        if status != self._status:
            self._status = status
            self.send(f"STATUS={status}")

    def extend(self, seconds: int, status: str) -> None:
        """Ask for more time to start, saying what for."""
        self._status = status
        self.send(f"EXTEND_TIMEOUT_USEC={seconds * 1_000_000}", f"STATUS={status}")

    def reloading(self) -> None:
        """Say that a reload has begun; ``ready`` ends it."""
        moment = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self.send("RELOADING=1", f"MONOTONIC_USEC={moment}", "STATUS=reloading")

    def stopping(self, status: str) -> None:
        """Say that the end has begun."""
        self._status = status
        self.send("STOPPING=1", f"STATUS={status}")

    def alive(self) -> None:
        """Feed the watchdog."""
        self.send("WATCHDOG=1")

    def release(self) -> None:
        """Say no more."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None


class PassedSocket(NamedTuple):
    """A listening socket that the service manager opened."""

    descriptor: int
    name: str


class Manager(NamedTuple):
    """All that a service manager gave this process."""

    notifier: Notifier
    sockets: tuple[PassedSocket, ...] = ()
    watchdog_s: float | None = None


def manager_of(environment: Mapping[str, str], pid: int | None = None) -> Manager:
    """Return what the environment says of a service manager; what is for another process is not."""
    pid = os.getpid() if pid is None else pid
    notifier = Notifier(environment.get("NOTIFY_SOCKET", ""))
    return Manager(notifier, _sockets(environment, pid), _watchdog_s(environment, pid))


def _sockets(environment: Mapping[str, str], pid: int) -> tuple[PassedSocket, ...]:
    if environment.get("LISTEN_PID") != str(pid):
        return ()
    count = _number(environment.get("LISTEN_FDS"))
    names = environment.get("LISTEN_FDNAMES", "").split(":")
    names += [""] * count
    found = tuple(PassedSocket(FIRST_DESCRIPTOR + at, names[at]) for at in range(count))
    for passed in found:
        os.set_inheritable(passed.descriptor, False)  # noqa: FBT003
    return found


def _watchdog_s(environment: Mapping[str, str], pid: int) -> float | None:
    if environment.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None
    microseconds = _number(environment.get("WATCHDOG_USEC"))
    return microseconds / 1_000_000 if microseconds else None


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() else 0

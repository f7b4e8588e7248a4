"""A service manager's end of the notify socket, for real."""

import select
import socket
import time
from pathlib import Path
from typing import Self

from tests.support.patience import PATIENCE_S


class NotifySocket:
    """Receives what a daemon says by sd_notify."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.bind("\0" + address[1:] if address.startswith("@") else address)
        self.said: list[dict[str, str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()
        if not self.address.startswith("@"):
            Path(self.address).unlink()

    def receive(self) -> dict[str, str]:
        """Return the next datagram, taken apart."""
        ready, _, _ = select.select([self._sock], [], [], PATIENCE_S)
        assert ready, f"nothing was said; before: {self.said}"
        text = self._sock.recv(65536).decode()
        found = dict(line.split("=", 1) for line in text.splitlines())
        self.said.append(found)
        return found

    def until(self, name: str) -> dict[str, str]:
        """Return the next datagram that says ``name``."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            found = self.receive()
            if name in found:
                return found
        message = f"{name} was not said; {self.said}"
        raise AssertionError(message)

"""Connections to servers, kept from one request to the next."""

import http.client
import socket
import ssl
from collections.abc import Mapping

from durastreamd.client.address import Origin, split
from durastreamd.client.settings import ClientSettings

# What a connection that breaks raises, whatever layer notices it.
BROKEN = (OSError, http.client.HTTPException)


class _UnixConnection(http.client.HTTPConnection):
    """HTTP on a unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Open the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Connections:
    """One connection for each origin. Not for use by two threads at once."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._kept: dict[Origin, http.client.HTTPConnection] = {}
        self._tls: ssl.SSLContext | None = None

    def connect(self, origin: Origin) -> http.client.HTTPConnection:
        """Return a connection of its own, which is opened by its first request."""
        timeout_s = self._settings.timeout_s
        if origin.scheme == "http+unix":
            return _UnixConnection(origin.host, timeout_s)
        if origin.scheme == "http":
            return http.client.HTTPConnection(origin.host, origin.port, timeout=timeout_s)
        if self._tls is None:
            self._tls = self._settings.tls()
        return http.client.HTTPSConnection(
            origin.host, origin.port, timeout=timeout_s, context=self._tls
        )

    def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None
    ) -> http.client.HTTPResponse:
        """Send a request and return the head of its answer; a broken connection raises BROKEN."""
        origin, target = split(url)
        kept = self._kept.get(origin)
        if kept is not None:
            try:
                kept.request(method, target, body, headers)
                return kept.getresponse()
            except (ConnectionError, http.client.BadStatusLine, http.client.CannotSendRequest):
                # The server ended a connection that lay idle: not a failure, and costs no wait.
                self.drop(url)
        connection = self._kept[origin] = self.connect(origin)
        try:
            connection.request(method, target, body, headers)
        except (BrokenPipeError, ConnectionResetError) as exc:
            # Refused before all of it was sent, a body that is too large for one: the answer may
            # have come all the same.
            try:
                return connection.getresponse()
            except BROKEN:
                raise exc from None
        return connection.getresponse()

    def drop(self, url: str) -> None:
        """Hang up on the origin of a URL; the next request makes a new connection."""
        kept = self._kept.pop(split(url)[0], None)
        if kept is not None:
            kept.close()

    def hang_up(self) -> None:
        """Drop every connection."""
        for connection in self._kept.values():
            connection.close()
        self._kept.clear()

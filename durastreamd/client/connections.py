"""Connections to servers, kept from one request to the next."""

import http.client
import socket
import ssl
from collections.abc import Mapping

from durastreamd.client.address import Origin, split
from durastreamd.client.errors import AnswerError, SettingsError, UrlError
from durastreamd.client.settings import ClientSettings

# What a connection that breaks raises, whatever layer notices it.
BROKEN = (OSError, http.client.HTTPException)


def _told(url: str, exc: Exception) -> Exception:
    """Return what is to be raised: what another try does not mend is no broken connection."""
    if isinstance(exc, OSError | http.client.IncompleteRead | http.client.ImproperConnectionState):
        return exc
    if isinstance(exc, http.client.InvalidURL):
        return UrlError(f"{url!r} cannot be asked for: {exc}")
    if isinstance(exc, ValueError):
        return SettingsError(f"a header of this request cannot be sent: {exc}")
    reason = str(exc)[:200] or type(exc).__name__
    return AnswerError(f"{split(url)[0]} does not answer as an HTTP server does: {reason}")


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
        self.sent_twice = False  # by the last ``send``: nobody knows if the first one arrived

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
        self.sent_twice = False
        kept = self._kept.get(origin)
        if kept is not None:
            try:
                kept.request(method, target, body, headers)
                return kept.getresponse()
            except (ConnectionError, http.client.BadStatusLine, http.client.CannotSendRequest):
                # The server ended a connection that lay idle: not a failure, and costs no wait.
                self.drop(url)
                self.sent_twice = True
        connection = self._kept[origin] = self.connect(origin)
        try:
            try:
                connection.request(method, target, body, headers)
            except (BrokenPipeError, ConnectionResetError):
                # Refused before all of it was sent, a body that is too large for one: the answer
                # may have come all the same.
                if connection.sock is None:
                    raise
            return connection.getresponse()
        except (*BROKEN, ValueError) as exc:
            raise _told(url, exc) from exc

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

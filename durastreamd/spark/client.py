"""The HTTP client of drivers and executors: blocking, kept alive, patient, standard library alone.

Executors may get this package as a zip without the server's dependencies, so nothing is imported
here that Python does not bring. A request is repeated after 429, 503, a gateway's 502 and 504, and
broken connections, as long as ``retry_s`` allows: all of ours are idempotent (reads, creates,
appends that carry producer headers); one that is not says so.
"""

import atexit
import http.client
import json
import os
import random
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from durastreamd.errors import DurastreamError

PIECE_BYTES = 1024 * 1024
WAIT_S_MAX = 10.0  # between two tries; a server that asks for more gets it, up to the next bound
RETRY_AFTER_S_MAX = 60.0
_RETRIED = (429, 502, 503, 504)  # 502 and 504 come from what stands between
_HINTS = {
    401: "the server wants a token; set option authToken or authTokenFile",
    403: "the token does not allow this",
    404: "there is nothing of this name",
}
_EXPLAINED_BYTES_MAX = 64 * 1024


class ServerUnreachableError(DurastreamError):
    """No server answered, for as long as it was worth trying."""


class ServerRefusedError(DurastreamError):
    """The server answered with an error; its own words are in the text."""

    def __init__(self, method: str, url: str, reply: "Reply") -> None:
        self.status = reply.status
        self.headers = reply.headers
        self.code, detail = _problem_of(reply)
        super().__init__(f"{method} {url}: {reply.status} {self.code}: {detail}")


class Reply(NamedTuple):
    """A whole answer; names of headers are lower-case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def _problem_of(reply: Reply) -> tuple[str, str]:
    """Return code and detail of a problem body, or what comes nearest to them."""
    try:
        found = json.loads(reply.body[:_EXPLAINED_BYTES_MAX])
        return str(found["code"]), str(found["detail"])
    except (ValueError, KeyError, TypeError):
        text = reply.body[:200].decode(errors="replace").strip()
        hint = _HINTS.get(reply.status, "no explanation")  # an answer to HEAD has no body
        return http.client.responses.get(reply.status, "Unknown"), text or hint


@dataclass(frozen=True)
class ClientSettings:
    """How to talk to servers; equal settings share connections."""

    token: str = field(default="", repr=False)  # sent as a bearer token
    token_file: str = ""  # read for every request, so that it can be renewed while a query runs
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    verify: bool = True
    timeout_s: float = 30.0  # without a byte
    retry_s: float = 60.0  # for one request, over all its tries
    retry_interval_s: float = 0.2  # before the second try; doubles from there


class Body:
    """An answer whose body is read piece by piece."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = _lower(response)
        self._response = response

    def pieces(self, size: int = PIECE_BYTES) -> Iterator[bytes]:
        """Yield the body; a connection that breaks raises ``OSError`` or ``HTTPException``."""
        while piece := self._response.read(size):
            yield piece
        # http.client takes a body that ends too soon for a whole one where it is read by pieces.
        if self._response.length:
            nothing = b""
            raise http.client.IncompleteRead(nothing, self._response.length)


def _lower(response: http.client.HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.getheaders()}


class Client:
    """Connections to servers, one per origin. Not for use by two threads at once."""

    def __init__(self, settings: ClientSettings | None = None) -> None:
        self.settings = settings or ClientSettings()
        self._connections: dict[tuple[str, str], http.client.HTTPConnection] = {}

    # --- requests ---

    def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        *,
        accept: tuple[int, ...] = (),
        repeatable: bool = True,
    ) -> Reply:
        """Return the answer; raise unless it is a success or one of ``accept``."""
        patience = Patience(self.settings, repeatable=repeatable)
        while True:
            try:
                if not repeatable:
                    self._drop(url)  # on one that lay idle nobody knows whether it arrived
                response = self._send(method, url, headers, body)
                reply = Reply(response.status, _lower(response), response.read())
            except (OSError, http.client.HTTPException) as exc:
                self._drop(url)
                patience.after_failure(method, url, exc)
                continue
            if reply.status in _RETRIED and patience.after_refusal(reply.headers):
                continue
            if 200 <= reply.status < 300 or reply.status in accept:
                return reply
            raise ServerRefusedError(method, url, reply)

    @contextmanager
    def reading(self, url: str, headers: Mapping[str, str] | None = None) -> Iterator[Body]:
        """GET with the body left to read; one that is left unread costs its connection."""
        patience = Patience(self.settings)
        while True:
            try:
                response = self._send("GET", url, headers, None)
            except (OSError, http.client.HTTPException) as exc:
                self._drop(url)
                patience.after_failure("GET", url, exc)
                continue
            if response.status in _RETRIED:
                response.read()
                if patience.after_refusal(_lower(response)):
                    continue
            break
        if response.status != 200:
            reply = Reply(response.status, _lower(response), response.read(_EXPLAINED_BYTES_MAX))
            self._drop(url)
            method = "GET"
            raise ServerRefusedError(method, url, reply)
        try:
            yield Body(response)
        finally:
            if not response.isclosed():
                self._drop(url)

    def head(self, url: str, *, accept: tuple[int, ...] = ()) -> Reply:
        """Return status and headers of a resource."""
        return self.request("HEAD", url, accept=accept)

    def get(self, url: str, headers: Mapping[str, str] | None = None) -> Reply:
        """Return a resource, whole."""
        return self.request("GET", url, headers)

    def get_json(self, url: str) -> dict[str, object]:
        """Return a resource that is a JSON object."""
        reply = self.get(url)
        try:
            found = json.loads(reply.body)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            message = f"GET {url}: the answer is not a JSON object; is this a durastreamd?"
            raise ServerUnreachableError(message)
        return found

    def hang_up(self) -> None:
        """Drop every connection; the next request makes a new one."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # --- connections ---

    def _send(
        self, method: str, url: str, headers: Mapping[str, str] | None, body: bytes | None
    ) -> http.client.HTTPResponse:
        parts = urlsplit(url)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        sent = self.headers_for(headers)
        key = (parts.scheme, parts.netloc)
        kept = self._connections.get(key)
        if kept is not None:
            try:
                kept.request(method, target, body, sent)
                return kept.getresponse()
            except (ConnectionError, http.client.BadStatusLine, http.client.CannotSendRequest):
                # The server ended a connection that lay idle: not a failure, and costs no wait.
                self._drop(url)
        connection = connect(parts, self.settings)
        self._connections[key] = connection
        try:
            connection.request(method, target, body, sent)
        except (BrokenPipeError, ConnectionResetError) as exc:
            # Refused before all of it was sent, a body that is too large for one: the answer may
            # have come all the same.
            try:
                return connection.getresponse()
            except (OSError, http.client.HTTPException):
                raise exc from None
        return connection.getresponse()

    def headers_for(self, headers: Mapping[str, str] | None) -> dict[str, str]:
        """Return the headers of a request with those that every request has."""
        settings = self.settings
        token = settings.token
        if settings.token_file:
            with open(settings.token_file, encoding="utf-8") as file:
                token = file.read().strip()
        sent = dict(settings.headers)
        if token:
            sent["Authorization"] = f"Bearer {token}"
        sent.update(headers or {})
        return sent

    def _drop(self, url: str) -> None:
        parts = urlsplit(url)
        kept = self._connections.pop((parts.scheme, parts.netloc), None)
        if kept is not None:
            kept.close()


def connect(parts: SplitResult, settings: ClientSettings) -> http.client.HTTPConnection:
    """Return a connection to the origin of a URL, which is opened by its first request."""
    host = parts.hostname
    if parts.scheme not in ("http", "https") or not host:
        message = f"{parts.geturl()!r} is not the URL of a server; write http://host:port or https."
        raise ServerUnreachableError(message)
    if parts.scheme == "http":
        connection = http.client.HTTPConnection(host, parts.port, timeout=settings.timeout_s)
    else:
        connection = http.client.HTTPSConnection(
            host, parts.port, timeout=settings.timeout_s, context=_tls(settings)
        )
    return connection


def _tls(settings: ClientSettings) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=settings.ca_file or None)
    if not settings.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if settings.certificate_file:
        context.load_cert_chain(settings.certificate_file, settings.key_file or None)
    return context


class Patience:
    """How long one request is tried."""

    def __init__(self, settings: ClientSettings, *, repeatable: bool = True) -> None:
        self._until = time.monotonic() + settings.retry_s
        self._wait_s = settings.retry_interval_s
        self._repeatable = repeatable
        self._tries = 0

    def after_failure(self, method: str, url: str, exc: Exception) -> None:
        """Wait after a broken connection, or raise what the user is told."""
        final = isinstance(exc, ssl.SSLCertVerificationError | socket.gaierror)
        if final or not self._repeatable or not self._wait(None):
            origin = "{0.scheme}://{0.netloc}".format(urlsplit(url))
            reason = str(exc) or type(exc).__name__
            tried = "once" if self._tries < 2 else f"{self._tries} times"
            message = f"{method} {url}: no answer from {origin} (tried {tried}): {reason}"
            raise ServerUnreachableError(message) from exc

    def after_refusal(self, headers: Mapping[str, str]) -> bool:
        """Wait as the server asks; False where that would take too long."""
        text = headers.get("retry-after", "")
        asked = min(float(text), RETRY_AFTER_S_MAX) if text.isascii() and text.isdigit() else None
        return self._wait(asked)

    def _wait(self, asked_s: float | None) -> bool:
        self._tries += 1
        # Half of it is random: executors that failed together do not come back together.
        wait_s = max(asked_s or 0.0, self._wait_s * random.uniform(0.5, 1.0))
        self._wait_s = min(self._wait_s * 2, WAIT_S_MAX)
        if time.monotonic() + wait_s > self._until:
            return False
        time.sleep(wait_s)
        return True


@atexit.register
def _hang_up_all() -> None:
    for client in _SHARED.values():
        client.hang_up()


_SHARED: dict[tuple[int, int, ClientSettings], Client] = {}


def shared_client(settings: ClientSettings) -> Client:
    """Return this thread's client for these settings; Spark re-uses worker processes."""
    key = (os.getpid(), threading.get_ident(), settings)
    if key not in _SHARED:
        if len(_SHARED) > 64:
            _hang_up_all()
            _SHARED.clear()
        _SHARED[key] = Client(settings)
    return _SHARED[key]

"""A small HTTP client for the commands that talk to a running server."""

import argparse
import http.client
import os
import ssl
from typing import NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from durastreamd.kit.command import CommandError
from durastreamd.kit.status import NO_INPUT, NO_PERMISSION, UNAVAILABLE, USAGE

DEFAULT_URL = "http://127.0.0.1:4437"
# Longer than any long-poll and than the heartbeat of events: silence beyond it is a lost peer.
SILENCE_S_MAX = 90.0

_BODY_SHOWN_MAX = 300


class Target(NamedTuple):
    """A server and a path on it."""

    tls: bool
    host: str
    port: int
    path: str

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.tls else ''}://{host}:{self.port}{self.path}"


class TryAgainError(Exception):
    """The server was not there, went away or is busy: the same request may do better later."""


def add_arguments(parser: argparse.ArgumentParser, what: str) -> None:
    """Add what every command that talks to a server takes."""
    parser.add_argument("url", nargs="?", metavar="URL", help=f"{what} ($STREAM_URL)")
    parser.add_argument("--cacert", metavar="FILE", help="authority of the server's certificate")


def target_of(given: str | None) -> Target:
    """Return what a URL, a path or a name stands for, beside $STREAM_URL."""
    base = os.environ.get("STREAM_URL") or DEFAULT_URL
    if given is None:
        return _split(base)
    if "://" in given:
        return _split(given)
    origin = _split(base)
    path = given if given.startswith("/") else "/v1/stream/" + quote(given)
    return origin._replace(path=path)


def _split(url: str) -> Target:
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
        raise CommandError(USAGE, f"{url} is not a URL of a server: http://host:port/path")
    tls = parts.scheme == "https"
    return Target(tls, parts.hostname, port or (443 if tls else 80), parts.path.rstrip("/"))


class Answer(NamedTuple):
    """A response whose head is there; its connection is to be hung up by who asked."""

    response: http.client.HTTPResponse
    connection: http.client.HTTPConnection

    def header(self, name: str) -> str:
        """Return a header's value, "" without one."""
        return self.response.getheader(name) or ""

    def hang_up(self) -> None:
        """Give the connection back."""
        self.response.close()
        self.connection.close()


class Client:
    """Asks one server; each question has a connection of its own."""

    def __init__(self, target: Target, cacert: str | None) -> None:
        self.target = target
        self._tls = None
        if target.tls:
            try:
                self._tls = ssl.create_default_context(cafile=cacert)
            except OSError as exc:
                raise CommandError(NO_INPUT, f"cannot read {cacert}: {exc.strerror}") from exc

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self.target.host, self.target.port
        if self._tls is not None:
            return http.client.HTTPSConnection(host, port, timeout=SILENCE_S_MAX, context=self._tls)
        return http.client.HTTPConnection(host, port, timeout=SILENCE_S_MAX)

    def ask(self, method: str, path: str, query: dict[str, str] | None = None) -> Answer:
        """Send a request and return the answer's head; raise TryAgainError where none came."""
        headers = {"User-Agent": "dsadmin", "Accept-Encoding": "identity"}
        token = os.environ.get("STREAM_AUTH")
        if token:
            headers["Authorization"] = token if " " in token else f"Bearer {token}"
        connection = self._connect()
        address = f"{path}?{urlencode(query)}" if query else path or "/"
        try:
            connection.request(method, address, headers=headers)
            answer = Answer(connection.getresponse(), connection)
        except ssl.SSLCertVerificationError as exc:
            connection.close()
            text = f"{self.target} has a certificate that is not trusted: {exc.verify_message}"
            raise CommandError(UNAVAILABLE, text) from exc
        except (OSError, http.client.HTTPException) as exc:
            connection.close()
            reason = getattr(exc, "strerror", None) or str(exc) or type(exc).__name__
            text = f"no answer from {self.target}: {reason}"
            raise TryAgainError(text) from exc
        if answer.response.status >= 400:
            self._refused(answer)
        return answer

    def _refused(self, answer: Answer) -> None:
        """Raise what an answer that is none amounts to."""
        status, reason = answer.response.status, answer.response.reason
        body = answer.response.read(_BODY_SHOWN_MAX).decode("utf-8", "replace")
        told = answer.header("Stream-Next-Offset")
        answer.hang_up()
        text = f"{self.target} answered {status} {reason}"
        if status in (401, 403):
            said = "was not accepted" if os.environ.get("STREAM_AUTH") else "is not set"
            raise CommandError(NO_PERMISSION, f"{text}; the token in STREAM_AUTH {said}")
        if status == 429 or status >= 500:
            raise TryAgainError(text)
        if status == 410 and told:
            text = f"what lies before {told} is folded into a snapshot; --from {told} reads on"
        elif status in (404, 410):
            text = f"{text}: nothing to read is there"
        else:
            text = f"{text}: {body}"
        raise CommandError(NO_INPUT, text)

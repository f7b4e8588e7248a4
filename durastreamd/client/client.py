"""Requests and their answers: blocking, kept alive, patient.

A request is repeated where the server says that it will do better later and after broken
connections, as long as ``retry_s`` allows: all of ours are idempotent (reads, creates, appends
that carry producer headers); one that is not says so.
"""

import atexit
import http.client
import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import NamedTuple

from durastreamd.client.connections import BROKEN, Connections
from durastreamd.client.errors import AnswerError, ClientError, CutShortError, ServerRefusedError
from durastreamd.client.retry import Patience, is_unsure
from durastreamd.client.settings import ClientSettings

PIECE_BYTES = 1024 * 1024
EXPLAINED_BYTES_MAX = 64 * 1024  # of an error's body
_SHARED_MAX = 64


class Reply(NamedTuple):
    """A whole answer; names of headers are lower-case."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    again: bool = False  # it was sent more than once: the first one may have been carried out


class Ask(NamedTuple):
    """A request, to be sent by whoever has a connection."""

    method: str
    url: str
    headers: Mapping[str, str] = MappingProxyType({})
    body: bytes | None = None
    accept: tuple[int, ...] = ()  # statuses that are answers, besides successes
    repeatable: bool = True


class Body:
    """An answer whose body is read piece by piece; names of headers are lower-case."""

    def __init__(self, response: http.client.HTTPResponse, bytes_max: int) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self._response = response
        self.bytes_max = bytes_max

    def pieces(self, size: int = PIECE_BYTES) -> Iterator[bytes]:
        """Yield the body; raise CutShortError if it ends before its end."""
        while piece := self._read(size):
            yield piece

    def whole(self) -> bytes:
        """Return the body, unless it is larger than the settings allow."""
        found, size = [], 0
        for piece in self.pieces():
            size += len(piece)
            found.append(piece)
            self._check(size)
        return b"".join(found)

    def lines(self) -> Iterator[bytes]:
        """Yield the body line by line, as it comes."""
        while True:
            try:
                line = self._response.readline(self.bytes_max + 1)
            except BROKEN as exc:
                raise _cut_short(exc) from exc
            if not line:
                return
            self._check(len(line))
            yield line

    def begins(self, size: int) -> bytes:
        """Return no more than so many bytes of the body, or as many as came."""
        try:
            return self._response.read(size)
        except BROKEN:
            return b""

    @property
    def ended(self) -> bool:
        """Tell whether all of it was read."""
        return self._response.isclosed()

    def _read(self, size: int) -> bytes:
        try:
            piece = self._response.read(size)
        except BROKEN as exc:
            raise _cut_short(exc) from exc
        # http.client takes a body that ends too soon for a whole one where it is read by pieces.
        if not piece and self._response.length:
            message = f"an answer ended {self._response.length} bytes before its end"
            raise CutShortError(message)
        return piece

    def _check(self, size: int) -> None:
        if size > self.bytes_max:
            message = f"an answer is larger than the {self.bytes_max} bytes that may be held"
            raise AnswerError(message)


def _cut_short(exc: Exception) -> CutShortError:
    return CutShortError(f"an answer was cut short: {str(exc) or type(exc).__name__}")


class Client:
    """Talks to servers, over one connection each. Not for use by two threads at once."""

    def __init__(self, settings: ClientSettings | None = None) -> None:
        self.settings = settings or ClientSettings()
        self.connections = Connections(self.settings)

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
        return self.ask(Ask(method, url, headers or {}, body, accept, repeatable))

    def ask(self, ask: Ask) -> Reply:
        """Return the answer; raise unless it is a success or one of those that are accepted."""
        url, again = ask.url, False
        patience = Patience(self.settings, repeatable=ask.repeatable)
        while True:
            try:
                if not ask.repeatable:
                    self.connections.drop(url)  # on one that lay idle nobody knows if it arrived
                answer = self._send(ask.method, url, ask.headers, ask.body)
                again = again or self.connections.sent_twice
                reply = Reply(answer.status, answer.headers, answer.whole(), again)
            except (*BROKEN, CutShortError) as exc:
                self.connections.drop(url)
                patience.after_failure(ask.method, url, exc)
                again = True
                continue
            except ClientError:
                self.connections.drop(url)  # the rest of it is still on its way
                raise
            if 200 <= reply.status < 300 or reply.status in ask.accept:
                return reply
            explained = reply.body[:EXPLAINED_BYTES_MAX]
            refused = ServerRefusedError.of(ask.method, url, reply.status, reply.headers, explained)
            again = again or is_unsure(refused)
            patience.after_refusal(refused)

    @contextmanager
    def reading(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        *,
        accept: tuple[int, ...] = (200,),
    ) -> Iterator[Body]:
        """GET with the body left to read; one that is left unread costs its connection."""
        patience = Patience(self.settings)
        while True:
            try:
                answer = self._send("GET", url, headers, None)
            except BROKEN as exc:
                self.connections.drop(url)
                patience.after_failure("GET", url, exc)
                continue
            except ClientError:
                self.connections.drop(url)
                raise
            if answer.status in accept:
                break
            explained = answer.begins(EXPLAINED_BYTES_MAX)
            self.connections.drop(url)
            patience.after_refusal(
                ServerRefusedError.of("GET", url, answer.status, answer.headers, explained)
            )
        try:
            yield answer
        finally:
            if not answer.ended:
                self.connections.drop(url)

    def _send(
        self, method: str, url: str, headers: Mapping[str, str] | None, body: bytes | None
    ) -> Body:
        sent = {**self.settings.request_headers(), **(headers or {})}
        response = self.connections.send(method, url, sent, body)
        return Body(response, self.settings.answer_bytes_max)

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
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            message = f"GET {url}: the answer is not a JSON object; is this a durastreamd?"
            raise AnswerError(message)
        return found

    def hang_up(self) -> None:
        """Drop every connection; the next request makes a new one."""
        self.connections.hang_up()


# --- shared ---


_SHARED: dict[tuple[int, int, ClientSettings], Client] = {}


@atexit.register
def _hang_up_all() -> None:
    for client in _SHARED.values():
        client.hang_up()


def shared_client(settings: ClientSettings) -> Client:
    """Return this thread's client for these settings; Spark re-uses worker processes."""
    key = (os.getpid(), threading.get_ident(), settings)
    if key not in _SHARED:
        if len(_SHARED) > _SHARED_MAX:
            _hang_up_all()
            _SHARED.clear()
        _SHARED[key] = Client(settings)
    return _SHARED[key]

"""URLs of servers and streams, and what the environment says about them.

A server on a unix socket is ``unix:/run/ds.sock``, a path on it ``unix:/run/ds.sock:/v1/stream/a``.
Inside it is written ``http+unix://%2Frun%2Fds.sock/v1/stream/a``, a URL like any other, to which
names can be joined.
"""

import os
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

from durastreamd.client.errors import UrlError

DEFAULT_URL = "http://127.0.0.1:4437"
URL_VARIABLE = "STREAM_URL"
TOKEN_VARIABLE = "STREAM_AUTH"
PATH_SURFACE = "/v1/stream"

_PORTS = {"http": 80, "https": 443, "http+unix": 0}


class Origin(NamedTuple):
    """Where a connection leads."""

    scheme: str  # http, https, http+unix
    host: str  # or the path of the socket
    port: int

    def __str__(self) -> str:
        if self.scheme == "http+unix":
            return f"unix:{self.host}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def split(url: str) -> tuple[Origin, str]:
    """Return where a URL leads and what is asked for there; raise UrlError if it is none."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    host = unquote(parts.netloc) if parts.scheme == "http+unix" else parts.hostname
    if parts.scheme not in _PORTS or not host:
        message = f"{url!r} is not a URL of a server; write http://host:port, https or unix:/path"
        raise UrlError(message)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Origin(parts.scheme, host, port or _PORTS[parts.scheme]), target


def checked(url: str) -> str:
    """Return the URL of a server or a stream as it is written inside, or raise UrlError."""
    if url.startswith("unix:"):
        path, _, rest = url.removeprefix("unix:").partition(":")
        path = f"/{path.lstrip('/')}" if path.startswith("//") else path
        url = f"http+unix://{quote(path, safe='')}{rest}"
    split(url)
    return url


def resolve(given: str | None, server: str | None = None) -> str:
    """Return the URL that a URL, a path or a stream's name stands for, beside $STREAM_URL."""
    base = checked(server or os.environ.get(URL_VARIABLE) or DEFAULT_URL)
    if given is None:
        return base.rstrip("/")
    if "://" in given or given.startswith("unix:"):
        return checked(given).rstrip("/")
    path = given if given.startswith("/") else f"{PATH_SURFACE}/{quote(given)}"
    return f"{server_of(base)}{path.rstrip('/')}"


def server_of(url: str) -> str:
    """Return the URL of the server that a URL leads to."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def environment_token() -> str:
    """Return the token of the environment."""
    return os.environ.get(TOKEN_VARIABLE, "")

"""Which web pages may use the server, and by which names the server may be called.

A server on loopback that asks for no token trusts whoever can reach it, and a browser reaches it on
behalf of any page its user looks at. A page has three ways in, and each is told by a field that a
page cannot forge:

* ``fetch``, and every form or upload: these carry ``Origin``. From a page that is not allowed
  nothing is served, read or write; that a browser would hide the answer is not relied on.
* ``<img>``, ``<script>``, frames: these carry no ``Origin``, but ``Sec-Fetch-Site`` says that
  another site asks. They are refused unless somebody follows a link. Browsers too old to say it
  keep the answer from the page by ``Cross-Origin-Resource-Policy`` and ``nosniff``.
* a name of the page's own that leads to this host (DNS rebinding): the browser then takes the
  server for the page's, and only ``Host`` shows whom it meant to ask.

Where a token is needed nothing of this is: a page that has none gets no further than anybody else.
"""

import ipaddress
from functools import lru_cache
from typing import NamedTuple

from durastreamd.http.exchange import CommonHeaders, Request
from durastreamd.protocol import problems
from durastreamd.protocol.requests import ProblemError
from durastreamd.service.answers import Fields
from durastreamd.service.limits import ANY, AUTO, LOOPBACK, CorsOptions

UNIX = "unix"  # the peer of a connection over a unix socket
LOOPBACK_NAME = "localhost"
_NAMES_TOLD_MAX = 4  # to somebody who used another
_REMEMBERED_MAX = 256  # names and origins that were accepted; clients choose among few
_HTTP = ("http", "https")
_ALLOWED = (
    b"Authorization, Content-Type, If-None-Match, Last-Event-ID, Stream-Seq, Stream-TTL, "
    b"Stream-Expires-At, Stream-Closed, Stream-Forked-From, Stream-Fork-Offset, "
    b"Stream-Fork-Sub-Offset, Stream-Expected-Offset, Stream-Incarnation, Producer-Id, "
    b"Stream-Retain-From, Stream-Retention-Age, Stream-Retention-Bytes, Stream-Retention-Messages, "
    b"Producer-Epoch, Producer-Seq, Producer-Strict"
)
_EXPOSED = (
    b"Stream-Next-Offset, Stream-Cursor, Stream-Up-To-Date, Stream-Closed, Stream-TTL, "
    b"Stream-Expires-At, Stream-SSE-Data-Encoding, Stream-Snapshot-Offset, Producer-Epoch, "
    b"Producer-Seq, Producer-Strict, Producer-Expected-Seq, Producer-Received-Seq, ETag, "
    b"Location, Retry-After, WWW-Authenticate, Content-Encoding, Vary, Cache-Control, "
    b"Stream-Message-Count, Stream-Byte-Count, Stream-Incarnation, Stream-At-Offset, "
    b"Stream-At-Message, Stream-At-Byte, Stream-First-Offset, Stream-Retention-Age, "
    b"Stream-Retention-Bytes, Stream-Retention-Messages"
)
_NOSNIFF = (b"X-Content-Type-Options", b"nosniff")
_EXPOSE = (b"Access-Control-Expose-Headers", _EXPOSED)


def name_of(authority: str) -> str:
    """Return the host of a Host field or an origin: in lower case, without port and last dot."""
    host, colon, port = authority.rpartition(":")
    if not colon or not port.isdigit() or host.endswith(":"):
        host = authority
    return host.strip("[]").rstrip(".").lower()


@lru_cache(maxsize=_REMEMBERED_MAX)
def is_loopback(name: str) -> bool:
    """Tell whether a name always means the host of whoever uses it (RFC 6761, RFC 8252)."""
    if name == LOOPBACK_NAME or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class Visitor(NamedTuple):
    """A page that may use the server: what its answers have beside the common headers."""

    fields: Fields
    common: CommonHeaders  # these and the common ones


class Visitors:
    """Judges pages and names by one state of the configuration.

    ``tokens``: nothing is served without one. ``local``: only this host can connect. ``names``:
    those that were listened on by name. Without any argument everybody is welcome.
    """

    def __init__(
        self,
        cors: CorsOptions | None = None,
        hosts: tuple[str, ...] = (ANY,),
        *,
        tokens: bool = False,
        local: bool = False,
        names: tuple[str, ...] = (),
    ) -> None:
        cors = cors or CorsOptions(origins=(ANY,))
        origins = set(cors.origins)
        if AUTO in origins:
            origins.add(ANY if tokens else LOOPBACK)
        self._any_page = ANY in origins
        self._local_pages = LOOPBACK in origins
        self._origins = origins - {ANY, AUTO, LOOPBACK}
        judged = AUTO not in hosts or (local and not tokens)
        self._any_host = ANY in hosts or not judged
        self._unix_judged = AUTO not in hosts
        self._names = frozenset(name_of(name) for name in (*hosts, *names))
        self._max_age = b"%d" % cors.max_age_s
        self._known: set[str] = set()
        self._by_origin: dict[bytes, Visitor] = {}
        # Of an answer to whoever is no page: without what only a page has to be told.
        self.common: Fields = [_NOSNIFF, (b"Vary", b"Origin")]
        if self._any_page:
            self.common += [
                (b"Cross-Origin-Resource-Policy", b"cross-origin"),
                (b"Access-Control-Allow-Origin", b"*"),
            ]
        else:
            self.common.append((b"Cross-Origin-Resource-Policy", b"same-site"))
        self._any_visitor = self._visitor([_EXPOSE])

    def admit(self, request: Request) -> Visitor | None:
        """Return the page that asks, None where the common headers are all that is needed.

        Raises the problem of a request that is not to be served. A preflight is answered whoever
        asks: what a page may do is said by the headers alone.
        """
        if not (self._any_host or request.authority in self._known or self._is_called(request)):
            name = problems.quoted(request.authority)
            known = ", ".join([*sorted(self._names - {AUTO})[:_NAMES_TOLD_MAX], LOOPBACK_NAME])
            detail = (
                f"Host {name} is no name of this server, which goes by {known}; if a proxy in "
                "front of it passes that name on, add it to server.hosts."
            )
            raise ProblemError(problems.MISDIRECTED, detail)
        headers = request.headers
        if self._any_page:
            return self._any_visitor if b"origin" in headers else None
        if b"origin" not in headers:
            if b"sec-fetch-site" in headers and headers[b"sec-fetch-site"] == b"cross-site":
                _refuse_embedding(request)
            return None
        origin = headers[b"origin"]
        found = self._by_origin.get(origin)
        if found is None and self._allows(origin):
            found = self._visitor([(b"Access-Control-Allow-Origin", origin), _EXPOSE])
            if len(self._by_origin) >= _REMEMBERED_MAX:
                del self._by_origin[next(iter(self._by_origin))]
            self._by_origin[origin] = found
        if found is None and request.method != "OPTIONS" and not _same_origin(request, origin):
            page = problems.quoted(origin.decode("latin-1"))
            detail = f"Pages of {page} may not use this server; cors.origins names those that may."
            raise ProblemError(problems.FOREIGN_PAGE, detail)
        return found

    def preflight(self, methods: str) -> Fields:
        """Return what a page is told before it asks."""
        return [
            (b"Access-Control-Allow-Methods", methods.encode()),
            (b"Access-Control-Allow-Headers", _ALLOWED),
            (b"Access-Control-Max-Age", self._max_age),
            (b"Allow", methods.encode()),
        ]

    def _visitor(self, fields: Fields) -> Visitor:
        return Visitor(fields, CommonHeaders([*self.common, *fields]))

    def _is_called(self, request: Request) -> bool:
        """Tell whether the server goes by the name a request was sent to, and remember it."""
        if (request.via or request.peer) == UNIX and not self._unix_judged:
            return True  # no page can name a socket; who connects is a proxy with names of its own
        name = name_of(request.authority)
        if name and not is_loopback(name) and name not in self._names:
            return False  # without a name it was no browser
        if len(self._known) >= _REMEMBERED_MAX:
            self._known.clear()
        self._known.add(request.authority)
        return True

    def _allows(self, origin: bytes) -> bool:
        text = origin.decode("latin-1")
        if text in self._origins:
            return True
        scheme, _, authority = text.partition("://")
        return self._local_pages and scheme in _HTTP and is_loopback(name_of(authority))


def _refuse_embedding(request: Request) -> None:
    """Refuse what another site has a browser fetch, unless somebody follows a link."""
    visit = request.headers.get(b"sec-fetch-dest") == b"document"
    if not (visit and request.method in ("GET", "HEAD")):
        detail = "Pages of other sites may not use this server; cors.origins names those that may."
        raise ProblemError(problems.FOREIGN_PAGE, detail)


def _same_origin(request: Request, origin: bytes) -> bool:
    """Tell whether a page and the server are one site to the browser: a proxy serves both."""
    if request.headers.get(b"sec-fetch-site") == b"same-origin":
        return True
    scheme, _, authority = origin.decode("latin-1").partition("://")
    return scheme in _HTTP and bool(authority) and authority == request.authority.lower()

"""Whom a proxy speaks for, where the operator trusts it to say so.

A connection from a trusted proxy is not its client's, and its fields tell more: who asked
(``Request.peer`` from then on, for logs and rate limits), by which scheme and by which name (for
Location). Anybody can send such fields, so they are heeded only on connections from the addresses
that ``server.trusted_proxies`` names, and only those of the one family that these proxies write:
a proxy that adds ``X-Forwarded-For`` passes on a ``Forwarded`` that its client made up.

Each proxy adds the address it was called from at the end, so a list is read from its end as long
as the addresses there are trusted, too: the first that is not is the client, whatever stands
before it. Which names the server may be called by is judged by ``Host`` alone (``visitors``): that
one a page of another site cannot choose, and a field that a proxy may pass on it could.
"""

import ipaddress
import re
from functools import lru_cache
from typing import NamedTuple

from durastreamd.http.exchange import Request
from durastreamd.service.access.visitors import UNIX

FORWARDED = "forwarded"
X_FORWARDED = "x-forwarded"
HOPS_MAX = 16  # proxies in a row that are looked at; what lies further away is not believed

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_HOST = re.compile(rb"[A-Za-z0-9.\-_:\[\]]{1,255}")
_PORT = re.compile(r"(?P<host>\[[^\]]*\]|[^:]*)(?::\d{1,5})?")
_ELEMENT = re.compile(rb'(?:[^,"]|"(?:[^"\\]|\\.)*")+')
_PAIR = re.compile(rb'[ \t]*([A-Za-z]+)=("(?:[^"\\]|\\.)*"|[^";, \t]*)[ \t]*(?:;|$)')
_SCHEMES = (b"http", b"https")


class _Hop(NamedTuple):
    """What one proxy says of whoever called it."""

    client: bytes = b""
    scheme: bytes = b""
    host: bytes = b""


class Proxies:
    """The proxies that are believed: ``trusted`` has addresses, networks and the word unix."""

    def __init__(self, trusted: tuple[str, ...], family: str = X_FORWARDED) -> None:
        self._unix = UNIX in trusted
        self._networks = [ipaddress.ip_network(each) for each in trusted if each != UNIX]
        self._hops = _forwarded if family == FORWARDED else _x_forwarded

    def adopt(self, request: Request) -> None:
        """Have a request come from whom a trusted proxy names, the way the proxy was asked."""
        peer = request.peer
        if not (self._unix if peer == UNIX else self._trusts(_address(peer))):
            return
        hops = self._hops(request.headers)
        if not hops:
            return
        request.via = peer
        chosen = hops[-1]
        for hop in reversed(hops):
            address = _address(hop.client.decode("latin-1"))
            if address is None:
                break
            chosen = hop
            host = f"[{address}]" if address.version == 6 else str(address)
            # With the connection's own port, so that two clients behind one address stay two.
            request.peer = f"{host}:{peer.rpartition(':')[2] if peer != UNIX else 0}"
            if not self._trusts(address):
                break
        if chosen.scheme.lower() in _SCHEMES:
            request.scheme = chosen.scheme.lower().decode("ascii")
        if _HOST.fullmatch(chosen.host):
            request.public = chosen.host.decode("ascii")

    def _trusts(self, address: Address | None) -> bool:
        return address is not None and any(address in network for network in self._networks)


@lru_cache(maxsize=4096)
def _address(text: str) -> Address | None:
    """Read an address, perhaps with a port; None where it is none."""
    found = _PORT.fullmatch(text)
    host = found["host"] if found is not None else text  # an IPv6 address without brackets
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _x_forwarded(headers: dict[bytes, bytes]) -> list[_Hop]:
    clients = _listed(headers.get(b"x-forwarded-for", b""))
    scheme = _listed(headers.get(b"x-forwarded-proto", b""))[-1:]
    host = _listed(headers.get(b"x-forwarded-host", b""))[-1:]
    if not (clients or scheme or host):
        return []
    # These two are of the nearest proxy: lists of them are not kept in step with the addresses.
    told = (b"".join(scheme), b"".join(host))
    return [_Hop(client, *told) for client in clients[-HOPS_MAX:]] or [_Hop(b"", *told)]


def _listed(value: bytes) -> list[bytes]:
    return [each.strip() for each in value.split(b",") if each.strip()]


def _forwarded(headers: dict[bytes, bytes]) -> list[_Hop]:
    """Read the field of RFC 7239; none of it counts if any of it is malformed."""
    value = headers.get(b"forwarded", b"")
    elements = _ELEMENT.findall(value)
    if b",".join(elements) != value:
        return []
    hops = []
    for element in elements[-HOPS_MAX:]:
        said = {}
        at = 0
        while at < len(element):
            pair = _PAIR.match(element, at)
            if pair is None:
                return []
            said[pair[1].lower()] = pair[2].strip(b'"')
            at = pair.end()
        hops.append(_Hop(said.get(b"for", b""), said.get(b"proto", b""), said.get(b"host", b"")))
    return hops

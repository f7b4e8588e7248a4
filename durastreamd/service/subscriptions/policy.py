"""Where a webhook may go: judged on the URL, and on every address of its host, at every attempt.

A webhook makes the server ask somebody else's URL from where the server stands: inside a network,
beside a metadata service. So names count for nothing. All addresses of a name must be public ones,
and the connection goes to an address that was judged, so a name that is answered otherwise a moment
later helps nobody. Embedded IPv4 addresses (mapped, 6to4, NAT64, Teredo) are refused as a whole.
"""

import re
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import NamedTuple, NoReturn
from urllib.parse import urlsplit

from durastreamd.streams.limits import SubscriptionLimits

URL_BYTES_MAX = 2048
# What ``is_global`` of some Python, be it the oldest that is served by, takes for public: IPv6 that
# carries an IPv4 address, and ranges that its tables learned of later (RFC 6890, RFC 9637).
_NOT_PUBLIC = tuple(
    ip_network(text)
    for text in (
        *("::/96", "::ffff:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/23"),
        *("3fff::/20", "5f00::/16", "192.0.0.0/24", "192.88.99.0/24"),
    )
)
_VISIBLE = re.compile(r"[!-~]+")
_NUMERIC = re.compile(r"(0[xX][0-9a-fA-F]*|[0-9]+)(\.(0[xX][0-9a-fA-F]*|[0-9]+))*\.?")
_LOCAL_NAMES = ("localhost",)

Address = IPv4Address | IPv6Address


class Hook(NamedTuple):
    """A webhook's URL, taken apart."""

    secure: bool
    host: str
    port: int
    target: str


class HookRefusedError(Exception):
    """A webhook may not go there; the message says why."""


def _refuse(why: str) -> NoReturn:
    raise HookRefusedError(why)


class Policy:
    """Where webhooks may go on this server."""

    def __init__(self, limits: SubscriptionLimits, *, local: bool) -> None:
        """``local`` tells whether the server itself is reached from its own host alone."""
        self._local = limits.allow_local == "yes" or (limits.allow_local == "auto" and local)
        self._hosts = {host.lower() for host in limits.allow_hosts}
        self._networks = [ip_network(network) for network in limits.allow_networks]

    def hook(self, url: str) -> Hook:
        """Take a URL apart; raises HookRefusedError where it can lead nowhere good."""
        if len(url.encode()) > URL_BYTES_MAX or not _VISIBLE.fullmatch(url):
            _refuse(f"a URL has at most {URL_BYTES_MAX} visible characters")
        try:
            parts = urlsplit(url)
            host, port = (parts.hostname or "").removesuffix("."), parts.port
        except ValueError as exc:
            _refuse(f"the URL cannot be read: {exc}")
        if parts.scheme not in ("https", "http"):
            _refuse("a webhook's URL begins with https://")
        if not host or "@" in parts.netloc or "#" in url or port == 0 or "%" in host:
            _refuse("the URL has no host, a user, a fragment or the port 0")
        literal = _address(host)
        if literal is None and _NUMERIC.fullmatch(host):
            _refuse("the host is a number that is no dotted quad")
        secure = parts.scheme == "https"
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        found = Hook(secure, host, port or (443 if secure else 80), target)
        if literal is not None:
            self.judge(found, [literal])
        elif not secure and not self._plain_allowed(host):
            _refuse("only https is allowed there")
        return found

    def _plain_allowed(self, host: str) -> bool:
        """Tell whether a name may be called without TLS, as far as the name says."""
        local = self._local and host in _LOCAL_NAMES
        return local or host in self._hosts or bool(self._networks)

    def judge(self, hook: Hook, addresses: list[Address]) -> Address:
        """Return the address to connect to; raises unless every one is allowed."""
        if not addresses:
            _refuse(f"{hook.host} has no address")
        if hook.host in self._hosts:
            return addresses[0]
        for address in addresses:
            inside = any(
                address.version == network.version and address in network
                for network in self._networks
            )
            if inside or (self._local and self._loopback(hook, address)):
                continue
            if not is_public(address):
                _refuse(f"{hook.host} leads to {address}, which is not public")
            if not hook.secure:
                _refuse("only https is allowed there")
        return addresses[0]

    def _loopback(self, hook: Hook, address: Address) -> bool:
        named = hook.host in _LOCAL_NAMES or _address(hook.host) == address
        return named and address.is_loopback


def is_public(address: Address) -> bool:
    """Tell whether an address is one that anybody on the internet could be asked at."""
    if any(address.version == each.version and address in each for each in _NOT_PUBLIC):
        return False
    return address.is_global and not address.is_multicast


def _address(host: str) -> Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def addresses_of(found: list[str]) -> list[Address]:
    """Return the addresses that a name was resolved to, each once; a scope does not count."""
    return [ip_address(text) for text in dict.fromkeys(text.partition("%")[0] for text in found)]

"""Which sockets the server listens on: those it is handed, else those it is told to open.

In two steps. ``take`` says what is wrong with the settings and binds TCP ports, before the data
directory is made or recovered, so that nobody waits for that to hear of a port in use. ``listen``
comes when there is somebody to answer; until then a client is refused, as before the start.
"""

import ssl
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from durastreamd.config import Config, ConfigError, TlsOptions
from durastreamd.errors import ListenError
from durastreamd.http.listener import Listener, adopt, bind_tcp, open_unix, tls_context
from durastreamd.notify import PassedSocket
from durastreamd.service.access.options import check_exposure, is_local, read_jwt, read_tokens
from durastreamd.service.access.proxies import Proxies
from durastreamd.service.access.visitors import Visitors

PORT_MAX = 65_535


class Address(NamedTuple):
    """One value of server.listen, understood."""

    kind: Literal["tcp", "unix", "fd"]
    place: str  # host or path
    number: int  # port or descriptor


def parse(text: str) -> Address:
    """Understand an address or say what one looks like."""
    if text.startswith("unix:") and len(text) > len("unix:"):
        return Address("unix", text.removeprefix("unix:"), 0)
    host, _, number = text.rpartition(":")
    if number.isascii() and number.isdigit():
        if host != "fd" and int(number) > PORT_MAX:
            message = f"server.listen {text!r}: a port is at most {PORT_MAX}, not {number}"
            raise ConfigError(message)
        if host == "fd":
            return Address("fd", "", int(number))
        if ":" not in host or (host.startswith("[") and host.endswith("]")):
            return Address("tcp", host.strip("[]") or "127.0.0.1", int(number))
    message = f"server.listen {text!r} is none of host:port, [host]:port, unix:/path, fd:number"
    raise ConfigError(message)


def tls_of(options: TlsOptions) -> ssl.SSLContext | None:
    """Read the keys; None if connections are to be plain."""
    if not options.certificate and not options.key:
        if options.client_ca:
            message = "tls.client_ca needs tls.certificate and tls.key"
            raise ConfigError(message)
        return None
    if not (options.certificate and options.key):
        message = "tls.certificate and tls.key go together"
        raise ConfigError(message)
    for path in (options.certificate, options.key, options.client_ca):
        if path and not Path(path).is_file():
            message = f"tls: there is no file {path}"
            raise ConfigError(message)
    client_ca = Path(options.client_ca) if options.client_ca else None
    try:
        return tls_context(Path(options.certificate), Path(options.key), client_ca)
    except ssl.SSLError as exc:
        files = ", ".join(each for each in (options.certificate, options.key) if each)
        message = f"tls: {files} cannot be used: {exc.reason or exc}"
        raise ConfigError(message) from exc


def check_config(config: Config) -> None:
    """Check what can be checked without listening; raises ``ConfigError`` or ``OSError``.

    All that is wrong is said at once.
    """
    checks: list[Callable[[], object]] = [
        *(partial(parse, address) for address in config.server.listen),
        partial(tls_of, config.tls),
        partial(read_tokens, config.access),
        partial(read_jwt, config.access),
    ]
    wrong = []
    for check in checks:
        try:
            check()
        except ConfigError as exc:
            wrong.append(str(exc))
    if not config.server.listen:
        wrong.append("server.listen is empty; name an address at least")
    if wrong:
        raise ConfigError("\n".join(wrong))


class Taken(NamedTuple):
    """Sockets of this process, and addresses to open once there is somebody to answer."""

    listeners: list[Listener]  # passed by the service manager, or bound
    waiting: list[str]  # unix sockets: a file that nobody listens on looks like a stale one
    backlog_count: int
    tls: ssl.SSLContext | None

    def listen(self) -> list[Listener]:
        """Listen on all of them; raises ``ListenError``, and has released all then."""
        try:
            for listener in self.listeners:
                _listen(listener, self.backlog_count)
            for address in self.waiting:
                self.listeners.extend(_open(address, self.backlog_count, self.tls))
        except (OSError, ListenError):
            self.release()
            raise
        return self.listeners

    def release(self) -> None:
        """Give every address back."""
        for listener in self.listeners:
            listener.release()


def take(config: Config, passed: Sequence[PassedSocket] = ()) -> Taken:
    """Take the sockets the service manager passed, or the addresses the configuration names."""
    check_config(config)
    tls = tls_of(config.tls)
    taken = Taken([], [], config.http.backlog_count, tls)
    try:
        for sock in passed:
            if sock.name == "https" and tls is None:
                message = "the socket named https needs tls.certificate and tls.key"
                raise ConfigError(message)
            taken.listeners.extend(_adopted(sock.descriptor, None if sock.name == "http" else tls))
        for address in config.server.listen if not passed else ():
            kind, place, _ = parse(address)
            if kind != "unix":
                taken.listeners.extend(_open(address, config.http.backlog_count, tls))
            elif Path(place).parent.is_dir():
                taken.waiting.append(address)
            else:
                message = f"cannot listen on {address}: there is no directory {Path(place).parent}"
                raise ListenError(message)
        mutual_tls = bool(config.tls.client_ca)
        check_exposure(hosts_of(taken.listeners), config.access, mutual_tls=mutual_tls)
    except (OSError, ListenError, ConfigError):
        taken.release()
        raise
    return taken


def _listen(listener: Listener, backlog_count: int) -> None:
    """Listen on a port that is bound: another process may have been quicker."""
    try:
        listener.sock.listen(backlog_count)
    except OSError as exc:
        message = f"cannot listen on {listener.name}: {exc.strerror or exc}"
        raise ListenError(message) from exc


def _adopted(descriptor: int, tls: ssl.SSLContext | None) -> list[Listener]:
    try:
        return adopt([descriptor], tls)
    except OSError as exc:
        message = f"the service manager passed a socket that is none: {exc.strerror or exc}"
        raise ListenError(message) from exc


def _open(text: str, backlog_count: int, tls: ssl.SSLContext | None) -> list[Listener]:
    address = parse(text)
    try:
        match address.kind:
            case "unix":
                return [open_unix(Path(address.place), backlog_count, tls=tls)]
            case "fd":
                return adopt([address.number], tls)
            case "tcp":
                return bind_tcp(address.place, address.number, tls)
    except PermissionError as exc:
        message = f"no permission to listen on {text}"
        raise PermissionError(message) from exc
    except OSError as exc:
        message = f"cannot listen on {text}: {exc.strerror or exc}"
        raise ListenError(message) from exc


def hosts_of(listeners: list[Listener]) -> list[str]:
    """Return the IP addresses that are listened on."""
    names = [listener.sock.getsockname() for listener in listeners]
    return [str(name[0]) for name in names if isinstance(name, tuple)]


def proxies_of(config: Config) -> Proxies | None:
    """Return whose word on their clients is taken, None if nobody's is."""
    trusted = config.server.trusted_proxies
    return Proxies(trusted, config.server.forwarding) if trusted else None


def visitors_of(config: Config, hosts: list[str]) -> Visitors:
    """Return who is welcome on a server that listens on these IP addresses."""
    named = [parse(address) for address in config.server.listen]
    local = all(is_local(host) for host in hosts)
    # What is open without a token is meant for everybody on a public server, and for whoever
    # works on this host otherwise; a page is not one of those.
    tokens = config.access.restricted and not (local and config.access.anonymous)
    return Visitors(
        config.cors,
        config.server.hosts,
        tokens=tokens,
        local=local,
        names=tuple(address.place for address in named if address.kind == "tcp"),
    )


def addresses(listeners: list[Listener]) -> list[str]:
    """Return what a client would put before a path."""
    found = []
    for listener in listeners:
        scheme = "https" if listener.tls else "http"
        name = listener.sock.getsockname()
        if isinstance(name, tuple):
            host = f"[{name[0]}]" if ":" in name[0] else name[0]
            found.append(f"{scheme}://{host}:{name[1]}")
        else:
            found.append(f"{scheme}+unix:{name}")
    return found

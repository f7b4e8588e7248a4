"""Which sockets the server listens on: those it is handed, else those it is told to open."""

import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from durastreamd.config import Config, ConfigError, TlsOptions
from durastreamd.errors import ListenError
from durastreamd.http.listener import Listener, adopt, open_tcp, open_unix, tls_context
from durastreamd.notify import PassedSocket
from durastreamd.service.access.options import check_exposure, is_local, read_jwt, read_tokens
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
    if number.isascii() and number.isdigit() and int(number) <= PORT_MAX:
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
    """Check what can be checked without listening; raises ``ConfigError`` or ``OSError``."""
    for address in config.server.listen:
        parse(address)
    if not config.server.listen:
        message = "server.listen is empty; name an address at least"
        raise ConfigError(message)
    tls_of(config.tls)
    read_tokens(config.access)
    read_jwt(config.access)


def listeners_of(config: Config, passed: Sequence[PassedSocket] = ()) -> list[Listener]:
    """Return the sockets the service manager passed, or open every one the configuration names."""
    tls = tls_of(config.tls)
    found: list[Listener] = []
    if passed:
        for sock in passed:
            if sock.name == "https" and tls is None:
                message = "the socket named https needs tls.certificate and tls.key"
                raise ConfigError(message)
            found += _adopted(sock.descriptor, None if sock.name == "http" else tls)
        return found
    check_config(config)
    try:
        for address in config.server.listen:
            found += _open(address, config.http.backlog_count, tls)
    except (OSError, ListenError):
        for listener in found:
            listener.release()
        raise
    return found


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
                return open_tcp(address.place, address.number, backlog_count, tls)
    except PermissionError as exc:
        message = f"no permission to listen on {text}"
        raise PermissionError(message) from exc
    except OSError as exc:
        message = f"cannot listen on {text}: {exc.strerror or exc}"
        raise ListenError(message) from exc


def refuse_exposure(listeners: list[Listener], config: Config) -> None:
    """Release the sockets and raise, if everybody could reach them and nobody said they may."""
    try:
        check_exposure(hosts_of(listeners), config.access, mutual_tls=bool(config.tls.client_ca))
    except ConfigError:
        for listener in listeners:
            listener.release()
        raise


def hosts_of(listeners: list[Listener]) -> list[str]:
    """Return the IP addresses that are listened on."""
    names = [listener.sock.getsockname() for listener in listeners]
    return [str(name[0]) for name in names if isinstance(name, tuple)]


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

"""Where clients can reach a server: TCP, unix sockets, inherited descriptors; TLS or not.

Opening is synchronous and happens before the server runs. A TCP address can be bound first and
listened on later: a port in use is then told before anything else is done, and nobody can connect
before there is somebody to answer. A ``Listener`` owns its socket, and a unix socket's file.
"""

import os
import socket
import ssl
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ALPN_PROTOCOLS = ("h2", "http/1.1")


@dataclass(slots=True)
class Listener:
    """One listening socket."""

    sock: socket.socket
    name: str  # For logs: "tcp 127.0.0.1:4437", "unix /run/x.sock", "fd 3".
    tls: ssl.SSLContext | None = None
    unlink: Path | None = None  # The file of a unix socket that we made.

    @property
    def port(self) -> int:
        """The TCP port, also when it was chosen by the kernel; 0 for a unix socket."""
        address = self.sock.getsockname()
        return int(address[1]) if isinstance(address, tuple) else 0

    def release(self) -> None:
        """Stop listening."""
        self.sock.close()
        if self.unlink is not None:
            self.unlink.unlink(missing_ok=True)
            self.unlink = None


def open_tcp(
    host: str | None, port: int, backlog_count: int, tls: ssl.SSLContext | None = None
) -> list[Listener]:
    """Listen on every address of ``host`` (None: all addresses); raises ``OSError``."""
    listeners = bind_tcp(host, port, tls)
    try:
        for listener in listeners:
            listener.sock.listen(backlog_count)
    except OSError:
        for listener in listeners:
            listener.release()
        raise
    return listeners


def bind_tcp(host: str | None, port: int, tls: ssl.SSLContext | None = None) -> list[Listener]:
    """Take every address of ``host`` (None: all), without listening yet; raises ``OSError``."""
    listeners: list[Listener] = []
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    try:
        for family, kind, protocol, _, address in found:
            sock = socket.socket(family, kind, protocol)
            listener = Listener(sock, f"tcp {address[0]!r} {address[1]!r}", tls)
            listeners.append(listener)
            # A restart must not wait for the old connections' TIME_WAIT.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                # The IPv4 address has a socket of its own.
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(address)
            sock.setblocking(False)  # noqa: FBT003
    except OSError:
        for listener in listeners:
            listener.release()
        raise
    return listeners


def open_unix(
    path: Path, backlog_count: int, mode: int = 0o660, tls: ssl.SSLContext | None = None
) -> Listener:
    """Listen on a unix socket; raises ``OSError``, also when another process listens there."""
    _remove_stale(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Nobody may connect between bind and chmod.
        umask = os.umask(0o777)
        try:
            sock.bind(os.fspath(path))
        finally:
            os.umask(umask)
        path.chmod(mode)
        sock.listen(backlog_count)
        sock.setblocking(False)  # noqa: FBT003
    except OSError:
        sock.close()
        raise
    return Listener(sock, f"unix {path}", tls, unlink=path)


def adopt(descriptors: Sequence[int], tls: ssl.SSLContext | None = None) -> list[Listener]:
    """Listen on inherited descriptors (LISTEN_FDS); raises ``OSError`` if one is no listener."""
    listeners = []
    for descriptor in descriptors:
        sock = socket.socket(fileno=descriptor)
        if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            sock.detach()
            msg = f"descriptor {descriptor} is not a listening socket"
            raise OSError(msg)
        sock.setblocking(False)  # noqa: FBT003
        listeners.append(Listener(sock, f"fd {descriptor}", tls))
    return listeners


def tls_context(certificate: Path, key: Path, client_ca: Path | None = None) -> ssl.SSLContext:
    """Give a server context: TLS 1.2 and up, HTTP/2 offered first.

    With ``client_ca``, clients must show a certificate signed by it (mutual TLS).
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(list(ALPN_PROTOCOLS))
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.load_cert_chain(certificate, key)
    if client_ca is not None:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _remove_stale(path: Path) -> None:
    """Remove a socket file that nobody listens on any more."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            return  # Not ours to remove; bind will say that the address is in use.
    except FileNotFoundError:
        return
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        probe.connect(os.fspath(path))
    except ConnectionRefusedError:
        path.unlink(missing_ok=True)
    finally:
        probe.close()

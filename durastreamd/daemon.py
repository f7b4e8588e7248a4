"""The whole server on one page: open the data, listen, serve, drain, stop."""

import logging
import signal
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import trio

from durastreamd.config import Config, ConfigError
from durastreamd.engine.engine import Engine
from durastreamd.engine.opening import open_engine
from durastreamd.errors import DataDirectoryError
from durastreamd.http.listener import Listener, adopt, open_tcp, open_unix, tls_context
from durastreamd.http.server import Server
from durastreamd.service.access_options import check_exposure
from durastreamd.service.app import App, Limits
from durastreamd.storage.disk import DIRECTORY_MODE, RealDisk
from durastreamd.streams.registry import Streams

logger = logging.getLogger(__name__)

DRAIN_S = 10.0  # how long running exchanges may take to end


def now_ms() -> int:
    """Return the time of day."""
    return time.time_ns() // 1_000_000


def listeners_of(config: Config) -> list[Listener]:
    """Open every socket the configuration names."""
    tls = None
    if config.tls.certificate or config.tls.key:
        if not (config.tls.certificate and config.tls.key):
            message = "tls.certificate and tls.key go together"
            raise ConfigError(message)
        client_ca = Path(config.tls.client_ca) if config.tls.client_ca else None
        tls = tls_context(Path(config.tls.certificate), Path(config.tls.key), client_ca)
    found: list[Listener] = []
    for address in config.server.listen:
        if address.startswith("unix:"):
            path = Path(address.removeprefix("unix:"))
            found.append(open_unix(path, config.http.backlog_count, tls=tls))
            continue
        host, _, port = address.rpartition(":")
        if host == "fd" and port.isdigit():
            found += adopt([int(port)], tls)
            continue
        if not port.isdigit():
            message = f"server.listen {address!r} is neither host:port, unix:/path nor fd:number"
            raise ConfigError(message)
        host = host.strip("[]") or "127.0.0.1"
        found += open_tcp(host, int(port), config.http.backlog_count, tls)
    return found


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


def open_data(config: Config, *, init: bool) -> Engine:
    """Open the data directory, making one that is not there.

    An empty one that is there is made only when asked: it may be a volume that is not mounted.
    """
    root = Path(config.server.data_dir)
    create = init or not root.exists()
    try:
        root.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        if create and not any(root.iterdir()):
            root.chmod(DIRECTORY_MODE)
    except OSError as exc:
        message = f"cannot use the data directory {root}: {exc.strerror}"
        raise DataDirectoryError(message) from exc
    disk = RealDisk(str(root))
    engine, report = open_engine(
        disk, config.engine, lambda: uuid.uuid4().bytes, now_ms(), create=create
    )
    logger.info("opened %s: %d records replayed", root, report.replayed)
    return engine


def _check_exposure(listeners: list[Listener], config: Config) -> None:
    """Refuse to listen beyond this host for everybody, unless that was said."""
    names = [listener.sock.getsockname() for listener in listeners]
    hosts = [str(name[0]) for name in names if isinstance(name, tuple)]
    try:
        check_exposure(hosts, config.access, mutual_tls=bool(config.tls.client_ca))
    except ConfigError:
        for listener in listeners:
            listener.release()
        raise


async def serve(config: Config, ready: Callable[[list[str]], None], *, init: bool = False) -> None:
    """Serve until a signal says to stop; raises what makes serving impossible."""
    engine = open_data(config, init=init)
    streams = Streams(engine, now_ms, config.streams)
    app = App(streams, Limits(config.reads, config.writes, config.cors))
    try:
        app.restrict(config.access, mutual_tls=bool(config.tls.client_ca))
        listeners = listeners_of(config)
        _check_exposure(listeners, config)
        server = Server(
            listeners, config.http, common_headers=app.common_headers(), quick=app.quick
        )
        app.operations.metrics.statistics = server.statistics
        names = addresses(listeners)
        # Signals are caught before anybody is told that the server is there to be stopped.
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async with streams.running():
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(app.lag.run)
                    await nursery.start(server.serve, app)
                    ready(names)
                    number = await anext(signals)
                    logger.info("stopping on %s", signal.Signals(number).name)
                    await _drain(server, app, nursery)
    finally:
        engine.release()


async def _drain(server: Server, app: App, nursery: trio.Nursery) -> None:
    """Take no more connections, answer who waits, and end what does not end by itself."""
    server.drain()
    app.live.end_all()
    with trio.move_on_after(DRAIN_S):
        while server.statistics.exchanges_open:
            await trio.sleep(0.02)
    nursery.cancel_scope.cancel()

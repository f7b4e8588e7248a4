"""Data and servers that benchmarks time and tests count the work of: the same for both."""

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from durastreamd.daemon import addresses, now_ms
from durastreamd.engine import checkpoint as cp
from durastreamd.engine.opening import open_engine
from durastreamd.engine.options import EngineOptions
from durastreamd.http.listener import open_tcp
from durastreamd.http.server import Server
from durastreamd.model.namespace import CreateCommand, Namespace
from durastreamd.model.records import Append, BucketChange, Create
from durastreamd.service.app import App
from durastreamd.storage.disk import RealDisk
from durastreamd.streams.registry import Streams

RECORD_BYTES = 64 * 1024


def fill(disk: RealDisk, records: int) -> None:
    """Write one stream of so many records into segments."""
    engine, _ = open_engine(disk, EngineOptions(), lambda: os.urandom(16), 1000, create=True)
    engine.commit([(Create(1, 0, 0, 1000, 0, 0, [], "/big", "application/octet-stream"), b"")])
    body = os.urandom(RECORD_BYTES)
    for number in range(records):
        record = Append(1, number * RECORD_BYTES, RECORD_BYTES, 1000, number, 1, [RECORD_BYTES])
        engine.commit([(record, body)])
        if engine.hot_bytes > engine.options.hot_bytes_max:
            cp.run(cp.flush(engine))
        if engine.rotation_due():
            engine.journal.rotate()
            cp.run(cp.checkpoint(engine))
    engine.journal.rotate()
    cp.run(cp.checkpoint(engine))
    engine.release()


def bucket_of(count: int) -> Namespace:
    """Return a namespace with one bucket of so many streams."""
    namespace = Namespace()
    namespace.apply(BucketChange("agents", 1, exists=True), 1)
    for number in range(count):
        command = CreateCommand(f"agents/{number:08d}", content_type="text/plain")
        _, drafted = namespace.decide_create(command, 1)
        assert drafted is not None
        namespace.apply(drafted[0], number + 2)
    return namespace


@asynccontextmanager
async def in_process(disk: RealDisk) -> AsyncIterator[tuple[Streams, int]]:
    """Serve with threads, on a real disk and a loopback port; gives the port."""
    engine, _ = open_engine(disk, EngineOptions(), lambda: os.urandom(16), now_ms(), create=True)
    streams = Streams(engine, now_ms)
    app = App(streams)
    try:
        listeners = open_tcp("127.0.0.1", 0, 16, None)
        server = Server(listeners, common_headers=app.admission.visitors.common, quick=app.quick)
        port = int(addresses(listeners)[0].rpartition(":")[2])
        async with streams.running(), trio.open_nursery() as nursery:
            await nursery.start(server.serve, app)
            yield streams, port
            server.drain()
            nursery.cancel_scope.cancel()
    finally:
        engine.release()


def read_until(sock: socket.socket, mark: bytes) -> bytes:
    """Read until a mark has come; return all that came."""
    found = b""
    while mark not in found:
        data = sock.recv(65536)
        assert data, "the server hung up"
        found += data
    return found

"""Makes the golden data directory of a format version; run once per version, never again.

``python -m tests.golden.make`` writes tests/golden/v1. Its bytes are then frozen: a change of the
code must go on reading them.
"""

import os
from pathlib import Path

from durastreamd.engine import checkpoint as cp
from durastreamd.engine.engine import Engine
from durastreamd.engine.opening import open_engine
from durastreamd.engine.options import EngineOptions
from durastreamd.model.draft import AppendCommand, Draft, Payload
from durastreamd.model.namespace import CreateCommand, ForkPoint
from durastreamd.model.records import Record, Snapshot
from durastreamd.storage import format as fmt
from durastreamd.storage.checksum import payload_sum
from durastreamd.storage.disk import RealDisk, write_new_file

HERE = Path(__file__).parent
NOW = 1_750_000_000_000
OPTIONS = EngineOptions(segment_bytes_max=64, state_every_bytes=200)


def commit(engine: Engine, drafted: tuple[Record, bytes | memoryview] | None) -> None:
    assert drafted is not None
    engine.commit([drafted])


def append(engine: Engine, key: str, body: bytes, **options: object) -> None:
    stream = engine.namespace.by_key[key]
    if engine.needs_loading(stream):
        stream.detail = engine.load_detail(stream)
    draft = Draft(stream, 100)
    payload = Payload(body, body.count(b",\n") or 1)
    draft.decide(AppendCommand(payload, stream.content_type, **options))  # type: ignore[arg-type]
    commit(engine, draft.record(NOW + 5))


def create(engine: Engine, key: str, **options: object) -> None:
    command = CreateCommand(key, **options)  # type: ignore[arg-type]
    commit(engine, engine.namespace.decide_create(command, NOW)[1])


def checkpoint(engine: Engine) -> None:
    engine.journal.rotate()
    cp.run(cp.checkpoint(engine))


def make(root: Path) -> None:
    """Write a directory that has one of everything, part of it still in the journal."""
    root.mkdir(mode=0o700)
    disk = RealDisk(str(root))
    engine, _ = open_engine(disk, OPTIONS, lambda: bytes(range(16)), NOW, create=True)
    _, change = engine.namespace.decide_bucket("logs", NOW, exists=True)
    commit(engine, (change, b"") if change else None)
    create(engine, "/orders", content_type="application/json")
    append(engine, "/orders", b'{"n":1},\n{"n":2},\n', producer=("p-1", 0, 0), seq="a")
    create(engine, "/bytes", ttl_ms=3_600_000)
    for number in range(8):
        append(engine, "/bytes", b"message %d;" % number)
    checkpoint(engine)
    create(engine, "/fork", fork=ForkPoint("/bytes", 20, 2, 20))
    append(engine, "/fork", b"its own")
    stream = engine.namespace.by_key["/bytes"]
    blob = Snapshot(stream.id, 40, 1, "text/plain", 6, payload_sum(b"folded", stream.id, 40))
    write_new_file(disk, fmt.snapshot_path(stream.id, 40, 1), b"folded")
    _, publish = engine.namespace.decide_publish("/bytes", blob, NOW + 6)
    commit(engine, (publish, b"") if publish else None)
    append(engine, "/orders", b'{"n":3},\n', producer=("p-1", 1, 0), closes=True)
    create(engine, "logs/today", content_type="text/plain")
    append(engine, "logs/today", b"still in the journal\n")
    engine.release()


if __name__ == "__main__":
    os.umask(0o077)
    make(HERE / "v1")

"""Data directories of every format version are read for ever. Their bytes never change."""

import shutil
from pathlib import Path

from durastreamd.engine.opening import open_engine
from durastreamd.engine.options import EngineOptions
from durastreamd.offline.verify.verification import Scope, in_turn, verify
from durastreamd.storage.disk import RealDisk

HERE = Path(__file__).parent
NOW = 1_750_000_000_100


def test_version_1_opens_with_everything_it_holds(tmp_path: Path) -> None:
    root = tmp_path / "v1"
    shutil.copytree(HERE / "v1", root)
    disk = RealDisk(str(root))
    engine, report = open_engine(disk, EngineOptions(), lambda: b"", NOW)
    assert report.replayed == 6
    assert report.damaged == []
    space = engine.namespace
    assert list(space.by_key) == ["/bytes", "/fork", "/orders", "logs/today"]
    assert list(space.buckets) == ["logs"]

    orders = space.by_key["/orders"]
    view = engine.view(orders)
    assert view.read(0, view.tail) == b'{"n":1},\n{"n":2},\n{"n":3},\n'
    assert orders.closed
    orders.detail = engine.load_detail(orders)
    assert orders.detail.producers == {"p-1": (1, 0)}
    assert orders.detail.seq == "a"

    stream = space.by_key["/bytes"]
    assert (stream.floor, stream.tail, stream.messages, stream.ttl_ms) == (40, 80, 8, 3_600_000)
    assert stream.snapshot is not None
    assert engine.view(stream).read(40, 80) == b"message 4;message 5;message 6;message 7;"

    fork = space.by_key["/fork"]
    assert engine.view(fork).read(0, fork.tail) == b"message 0;message 1;its own"

    today = space.by_key["logs/today"]
    assert engine.view(today).read(0, today.tail) == b"still in the journal\n"
    engine.release()
    assert not verify(disk, Scope(deep=True), in_turn(disk))

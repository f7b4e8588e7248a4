"""Chains of forks, as long as a client likes: nothing recurses, and nobody walks what is empty."""

import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from durastreamd.engine import checkpoint as cp
from durastreamd.engine.engine import Engine
from durastreamd.engine.opening import open_engine
from durastreamd.engine.options import EngineOptions
from durastreamd.model.draft import Payload
from durastreamd.model.lineage import Lineage
from durastreamd.model.namespace import CreateCommand, ForkPoint, Namespace
from durastreamd.model.records import Create, Snapshot
from durastreamd.model.stream_state import Stream
from durastreamd.offline.verify.census import Readers
from durastreamd.protocol.outcomes import Created, ForkRefused, Outcome
from durastreamd.storage import format as fmt
from durastreamd.storage.blobs import BlobWriter
from durastreamd.storage.disk import Disk
from tests.admin.harness import run
from tests.support.sim_disk import SimDisk
from tests.support.unsynced import UnsyncedDisk

NOW = 1_700_000_000_000
GENERATIONS = 10_000
OPTIONS = EngineOptions(fork_depth_max=GENERATIONS)


def opened(root: Path | Disk, *, create: bool = False) -> Engine:
    disk = UnsyncedDisk(str(root)) if isinstance(root, Path) else root
    return open_engine(disk, OPTIONS, lambda: b"\x07" * 16, NOW, create=create)[0]


def make(engine: Engine, key: str, body: bytes = b"", source: str = "") -> Outcome:
    """Create a stream, as a fork of another one's end if asked."""
    fork = None
    if source:
        found = engine.namespace.by_key[source]
        fork = ForkPoint(source, found.tail, found.messages, found.tail)
    payload = Payload(body) if body else None
    outcome, drafted = engine.namespace.decide_create(
        CreateCommand(key, payload=payload, fork=fork), NOW
    )
    if drafted is not None:
        engine.commit([drafted])
    return outcome


def chain(engine: Engine, generations: int, *, own_bytes: int) -> None:
    """Make /0, and /1 to ... each the fork of the one before; some with bytes of their own."""
    make(engine, "/0", b"root")
    for number in range(1, generations + 1):
        body = b"%d;" % number if own_bytes and number % own_bytes == 0 else b""
        make(engine, f"/{number}", body, f"/{number - 1}")


def shown(engine: Engine, key: str) -> bytes:
    stream = engine.namespace.by_key[key]
    with engine.reading(stream) as view:
        return view.read(stream.floor, stream.tail)


def checkpoint(engine: Engine) -> None:
    engine.journal.rotate()
    cp.run(cp.checkpoint(engine))


def publish(engine: Engine, key: str, position: int) -> None:
    stream = engine.namespace.by_key[key]
    writer = BlobWriter(engine.disk, stream.id, position, 1)
    writer.write(b"folded")
    writer.finish()
    blob = Snapshot(stream.id, position, 1, "text/plain", writer.size, writer.sum)
    outcome, record = engine.namespace.decide_publish(key, blob, NOW)
    assert record is not None, outcome
    engine.commit([(record, b"")])


def delete(engine: Engine, key: str) -> None:
    outcome, record = engine.namespace.decide_delete(key, NOW)
    assert record is not None, outcome
    engine.commit([(record, b"")])


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    """A directory with a chain of ten thousand forks, at a checkpoint; in memory, if possible."""
    logger = logging.getLogger("durastreamd")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    memory = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as root:
        engine = opened(Path(root), create=True)
        make(engine, "/innocent", b"acknowledged")
        chain(engine, GENERATIONS, own_bytes=100)
        checkpoint(engine)
        engine.release()
        logger.setLevel(level)
        yield Path(root)


@pytest.fixture
def engine(directory: Path) -> Iterator[Engine]:
    engine = opened(directory)
    yield engine
    engine.release()


LAST = f"/{GENERATIONS}"
WHOLE = b"root" + b"".join(b"%d;" % n for n in range(100, GENERATIONS + 1, 100))


def test_ten_thousand_generations_live_and_end() -> None:
    disk = SimDisk()
    engine = opened(disk, create=True)
    make(engine, "/innocent", b"acknowledged")
    chain(engine, GENERATIONS, own_bytes=100)
    assert shown(engine, LAST) == WHOLE
    checkpoint(engine)
    assert shown(engine, LAST) == WHOLE
    # What broke: the root is trimmed by a fork of it that ends, and by a snapshot of it.
    make(engine, "/branch", b"", "/0")
    delete(engine, "/branch")
    publish(engine, "/0", 4)
    checkpoint(engine)

    disk = disk.survivor()  # of a kill
    engine = opened(disk)
    assert shown(engine, LAST) == WHOLE
    publish(engine, LAST, len(WHOLE) - 6)
    for number in range(GENERATIONS):
        delete(engine, f"/{number}")
    checkpoint(engine)

    disk = disk.survivor()
    engine = opened(disk)
    assert len(engine.namespace.by_id) == GENERATIONS + 2
    assert shown(engine, LAST) == b"10000;"
    delete(engine, LAST)
    checkpoint(engine)
    assert list(engine.namespace.by_key) == ["/innocent"]
    assert shown(engine, "/innocent") == b"acknowledged"
    assert {path for path in disk.files() if path.startswith("streams/")} == {
        fmt.index_path(1, 0),
        fmt.segment_path(1, 0),
    }


def test_dsadmin_goes_through_ten_thousand_generations(directory: Path, tmp_path: Path) -> None:
    def ask(*words: str | Path) -> bytes:
        found = run("--data-dir", directory, *words)
        assert found.status == 0, found.err
        return found.out

    assert len(ask("ls").splitlines()) == GENERATIONS + 3
    assert ask("cat", LAST) == WHOLE
    assert b"/9999" in ask("info", LAST)
    ask("decode-offset", "0000000000000002", LAST)
    ask("verify", "--deep")
    ask("backup", tmp_path / "copy")
    ask("export", "--all", "--format", "cbor", "--output", tmp_path / "all")
    # By itself the last one takes along what it inherited.
    ask("export", LAST, "--format", "cbor", "--output", tmp_path / "one")
    found = run("--data-dir", tmp_path / "new", "import", "--init", "--input", tmp_path / "one")
    assert found.status == 0, found.err
    assert run("--data-dir", tmp_path / "new", "cat", LAST).out == WHOLE


def test_levels_without_bytes_cost_a_view_nothing(engine: Engine) -> None:
    for key, levels in ((LAST, 101), ("/9999", 101), ("/99", 2), ("/0", 1)):
        stream = engine.namespace.by_key[key]
        view = engine.view(stream)
        assert len(view.levels) == levels
        with engine.reading(stream):
            assert len(engine.pins) == levels
    assert not engine.pins


def test_every_position_of_a_long_chain_is_found(tmp_path: Path) -> None:
    engine = opened(tmp_path, create=True)
    chain(engine, 1200, own_bytes=1)
    whole = b"root" + b"".join(b"%d;" % n for n in range(1, 1201))
    stream = engine.namespace.by_key["/1200"]
    for _ in range(2):
        view = engine.view(stream)
        assert view.read(0, stream.tail) == whole
        assert [view.read(at, at + 1) for at in range(len(whole))] == [
            whole[at : at + 1] for at in range(len(whole))
        ]
        assert [end for _, end in view.messages(0)] == [
            4,
            *(at + 1 for at, byte in enumerate(whole) if byte == ord(";")),
        ]
        assert view.position_of_message(600) == whole.index(b"600;")
        assert view.position_at(NOW) == 0
        assert view.position_at(NOW + 1) == stream.tail
        assert view.is_boundary(whole.index(b"600;"))
        assert not view.is_boundary(whole.index(b"600;") + 1)
        checkpoint(engine)
    engine.release()


# --- the bound ---


def test_the_generation_after_the_last_is_refused(tmp_path: Path) -> None:
    disk = UnsyncedDisk(str(tmp_path))
    few = EngineOptions(fork_depth_max=3)
    engine = open_engine(disk, few, lambda: b"\x07" * 16, NOW, create=True)[0]
    chain(engine, 3, own_bytes=0)
    refused = make(engine, "/4", b"", "/3")
    assert isinstance(refused, ForkRefused)
    assert refused.code == "TOO_DEEP"
    assert "engine.fork_depth_max" in refused.detail
    assert isinstance(make(engine, "/other", b"", "/2"), Created)
    engine.release()
    # What was made under another setting stays, and stays usable.
    engine = open_engine(disk, EngineOptions(fork_depth_max=1), lambda: b"", NOW)[0]
    assert shown(engine, "/3") == b"root"
    assert isinstance(make(engine, "/5", b"", "/3"), ForkRefused)
    assert isinstance(make(engine, "/6", b"", "/0"), Created)
    engine.release()


# --- against the plain definition ---

Family = list[tuple[int, int, int, bool]]  # source's place in the list, fork offset, floor, gone

FAMILIES = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 40), st.integers(0, 40), st.booleans()),
    min_size=1,
    max_size=14,
)


def family(plan: Family) -> Namespace:
    """Return streams of which each may be a fork of an earlier one."""
    space = Namespace()
    for number, (source_at, offset, floor, gone) in enumerate(plan, 1):
        source = space.by_id.get(source_at % number)
        start = min(offset, source.tail) if source is not None else 0
        stream = Stream(Create(number, start, 10, NOW, 0, 1, [10], f"/{number}", "text/plain"))
        if source is not None:
            stream.source = source.id
            stream.floor = min(max(source.floor, floor), start)
        else:
            stream.floor = min(floor, stream.tail)
        stream.gone = gone
        space.add(stream)
    return space


def held_by(space: Namespace, stream: Stream, position: int) -> int:
    """Say whose byte a stream shows at a position, one generation at a time."""
    while stream.source and position < stream.fork_position:
        stream = space.by_id[stream.source]
    return stream.id


@given(FAMILIES)
@settings(max_examples=300, deadline=None)
def test_parts_are_the_bytes_one_generation_at_a_time(plan: Family) -> None:
    space = family(plan)
    for stream in space.by_id.values():
        parts = list(Lineage(space.by_id).parts(stream))
        assert parts == list(space.lineage.parts(stream))
        assert [part for part in parts[1:] if part.low >= part.high] == []
        shown = {at: part.holder.id for part in parts for at in range(part.low, part.high)}
        assert shown == {at: held_by(space, stream, at) for at in range(stream.tail)}


@given(FAMILIES)
@settings(max_examples=300, deadline=None)
def test_what_is_retained_is_what_anybody_reads(plan: Family) -> None:
    space = family(plan)
    readers = Readers(space.by_id)
    for stream in space.by_id.values():
        read = {
            at
            for reader in space.by_id.values()
            if not reader.gone
            for at in range(reader.floor, reader.tail)
            if held_by(space, reader, at) == stream.id
        }
        assert {at for low, high in readers.ranges(stream) for at in range(low, high)} == read
        retained = space.retained_from(stream)
        if read:
            assert retained == min(read)
        else:
            assert retained >= min(stream.tail, max(stream.floor, stream.fork_position))


def test_a_chain_that_is_a_circle_ends() -> None:
    """Which only damage can make of one; dsadmin must get through it."""
    streams = {}
    for number in (1, 2):
        stream = Stream(Create(number, 5, 1, NOW, 0, 1, [1], f"/{number}", "text/plain"))
        stream.source = 3 - number
        streams[number] = stream
    assert len(list(Lineage(streams).parts(streams[1]))) == 1
    assert Readers(streams).ranges(streams[1])

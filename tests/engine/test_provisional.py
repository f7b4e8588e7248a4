"""Marks that may be taken back: whatever came in between, nothing of the stream is missing then."""

import pytest

from durastreamd.engine.engine import Engine
from durastreamd.errors import CorruptDataError, ReadFailedError, StreamDamagedError
from durastreamd.model.stream_state import Detail, Stream
from durastreamd.storage import format as fmt
from tests.support.world import Dump, World

KEY = "/a"


class Unseen(World):
    """A world that does not look at its streams: refused ones cannot be seen."""

    def look(self) -> Dump:
        return {}


def met(world: World) -> World:
    """A stream that was met damaged while it was served, as its row says."""
    world.create(KEY)
    world.append(KEY, b"x" * 50, producer=("p", 0, 0))
    world.checkpoint()
    stream = world.engine.namespace.by_key[KEY]
    world.engine.note_damage(CorruptDataError(fmt.segment_path(stream.id, 0), 0, "met"))
    world.checkpoint()
    return world


def content(engine: Engine) -> bytes:
    stream = engine.namespace.by_key[KEY]
    return engine.view(stream).read(0, stream.tail)


def test_an_append_that_was_on_its_way_is_there_when_the_mark_is_taken_back() -> None:
    """It was decided before the damage was met, and acknowledged after the row was written."""
    world = met(Unseen())
    world.append(KEY, b"y" * 50, producer=("p", 0, 1))
    world.reopen()
    engine = world.engine
    stream = engine.namespace.by_key[KEY]
    assert stream.provisional
    with pytest.raises(StreamDamagedError):
        engine.view(stream)
    assert not [path for path in world.disk.files() if path.startswith(fmt.QUARANTINE_DIR)]
    for _ in engine.check(stream):
        pass
    engine.take_back_damage(stream)
    assert content(engine) == b"x" * 50 + b"y" * 50
    world.checkpoint()
    world.reopen()
    assert content(world.engine) == b"x" * 50 + b"y" * 50
    assert world.engine.load_detail(world.engine.namespace.by_key[KEY]).producers == {"p": (0, 1)}


def test_what_cannot_be_read_at_a_replay_is_marked_for_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A record must be folded in now or be set aside; a reader could have come again."""

    def failing(_engine: Engine, stream: Stream) -> Detail:
        raise ReadFailedError(fmt.index_path(stream.id, 0), "Input/output error")

    world = Unseen()
    world.create(KEY)
    world.append(KEY, b"x" * 50, producer=("p", 0, 0))
    world.checkpoint()
    world.append(KEY, b"y" * 50, producer=("p", 0, 1))
    with monkeypatch.context() as patched:
        patched.setattr(Engine, "load_detail", failing)
        world.reopen()
    stream = world.engine.namespace.by_key[KEY]
    assert "cannot be read" in stream.damage
    assert not stream.provisional
    assert [path for path in world.disk.files() if path.startswith(fmt.QUARANTINE_DIR)]


def test_what_cannot_be_replayed_is_set_aside_and_the_mark_is_for_good() -> None:
    world = met(Unseen())
    world.append(KEY, b"y" * 50, producer=("p", 0, 1))
    stream = world.engine.namespace.by_key[KEY]
    path = fmt.index_path(stream.id, 0)
    before = world.disk.read(path)
    world.disk.damage(path, lambda data: data.__delitem__(slice(60, None)))
    world.reopen()
    world.disk.damage(path, lambda data: data.__setitem__(slice(None), before))
    stream = world.engine.namespace.by_key[KEY]
    assert stream.damage
    assert not stream.provisional
    assert [path for path in world.disk.files() if path.startswith(fmt.QUARANTINE_DIR)]
    with pytest.raises(AssertionError):
        world.engine.take_back_damage(stream)

"""A disk that is full, and a disk whose sync fails, for real."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from durastreamd.engine.engine import Engine
from durastreamd.engine.opening import open_engine
from durastreamd.engine.options import EngineOptions
from durastreamd.errors import OverloadedError, WriteFailedError
from durastreamd.model.namespace import CreateCommand
from durastreamd.protocol.outcomes import Appended
from durastreamd.storage.disk import RealDisk
from durastreamd.streams.limits import StreamLimits
from durastreamd.streams.registry import Streams
from tests.support.file_systems import small_file_system
from tests.support.held_writer import NOW, TEXT, append, content
from tests.support.patience import PATIENCE_S
from tests.system import writer_process
from tests.system.test_kill import spawn

SMALL = EngineOptions(
    journal_bytes_max=64 * 1024, segment_bytes_max=32 * 1024, hot_bytes_max=64 * 1024
)
LIMITS = StreamLimits(retry_s=0.02)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with small_file_system(tmp_path / "mount", "512k") as point:
        yield point


def open_at(data: Path, *, create: bool = False) -> Engine:
    engine, _ = open_engine(RealDisk(str(data)), SMALL, lambda: bytes(16), NOW, create=create)
    return engine


async def fill(streams: Streams, acked: list[bytes]) -> type[Exception]:
    """Append until it is refused for want of room; return the refusal's type."""
    number = len(acked)
    while True:
        message = b"<%05d %s>" % (number, b"x" * 3000)
        try:
            outcome = await streams.ask("/s", append(message, ("p", 0, number)))
        except OverloadedError:
            await trio.sleep(0.005)
            continue
        except WriteFailedError as exc:
            return type(exc)
        assert isinstance(outcome, Appended)
        acked.append(message)
        number += 1


def furnish(small_disk: Path) -> tuple[Path, Path]:
    """Make a data directory, and a file beside it whose room can be given back."""
    data, ballast = small_disk / "data", small_disk / "ballast"
    data.mkdir()
    ballast.write_bytes(bytes(200 * 1024))
    return data, ballast


@pytest.mark.system
async def test_full_disk_refuses_and_serves_again_when_there_is_room(small_disk: Path) -> None:
    with trio.fail_after(PATIENCE_S):
        data, ballast = furnish(small_disk)
        engine = open_at(data, create=True)
        streams = Streams(engine, lambda: NOW, LIMITS)
        acked: list[bytes] = []
        async with streams.running():
            await streams.ask("/s", CreateCommand("/s", content_type=TEXT))
            await streams.ask("/t", CreateCommand("/t", content_type=TEXT))
            await streams.ask("/t", append(b"quiet"))
            assert await fill(streams, acked) is WriteFailedError
            assert len(acked) > 20
            full = engine.namespace.by_key["/s"]
            for _ in range(20):  # still full: every answer is an error, nothing moves
                with pytest.raises((WriteFailedError, OverloadedError)):
                    await streams.ask("/s", append(b"y" * 200_000))
            assert full.tail == sum(map(len, acked))
            assert content(engine, "/s") == b"".join(acked)
            assert content(engine, "/t") == b"quiet"
            ballast.unlink()
            await serve_again(streams, acked)
        engine.release()
        engine = open_at(data)
        assert content(engine, "/s") == b"".join(acked)
        assert content(engine, "/t") == b"quiet"
        engine.release()


async def serve_again(streams: Streams, acked: list[bytes]) -> None:
    number = len(acked)
    while True:
        try:
            outcome = await streams.ask("/s", append(b"<after>", ("p", 0, number)))
        except (OverloadedError, WriteFailedError):
            await trio.sleep(0.01)
            continue
        assert isinstance(outcome, Appended), "the refused number was not taken"
        acked.append(b"<after>")
        return


@pytest.mark.system
async def test_full_disk_leaves_nothing_half_there_after_a_kill(small_disk: Path) -> None:
    with trio.fail_after(PATIENCE_S):
        data, ballast = furnish(small_disk)
        engine = open_at(data, create=True)
        streams = Streams(engine, lambda: NOW, LIMITS)
        acked: list[bytes] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(streams.run)
            await trio.testing.wait_all_tasks_blocked()
            await streams.ask("/s", CreateCommand("/s", content_type=TEXT))
            await fill(streams, acked)
            nursery.cancel_scope.cancel()  # no last checkpoint
        engine.release()
        ballast.unlink()
        engine = open_at(data)
        assert content(engine, "/s") == b"".join(acked)
        stream = engine.namespace.by_key["/s"]
        assert engine.load_detail(stream).producers == {"p": (0, len(acked) - 1)}
        engine.release()


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.parametrize("syncs", [12, 40])
def test_failed_sync_ends_the_process_with_status_74(tmp_path: Path, syncs: int) -> None:
    data, acks = tmp_path / "data", tmp_path / "acks"
    data.mkdir()
    process = spawn(data, acks, 0, str(syncs))
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == writer_process.EXIT_DISK, errors.decode()[-2000:]
    checked = writer_process.check(data, acks)
    assert checked.stored >= checked.acknowledged - checked.deleted

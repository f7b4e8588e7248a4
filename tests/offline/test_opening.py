"""Looking at a directory: as often as it takes, and no file stays open."""

from pathlib import Path

import pytest

from durastreamd.engine.opening import open_engine
from durastreamd.engine.options import EngineOptions
from durastreamd.errors import CorruptDataError, DataDirectoryError
from durastreamd.offline import opening
from durastreamd.offline.opening import Opened, disk_at, in_use, looks, recovered, with_directory
from durastreamd.storage.disk import RealDisk
from tests.golden.test_golden import NOW
from tests.support.sim_disk import SimDisk
from tests.support.world import World

PATH = "catalog/0.cat"


@pytest.mark.parametrize("count", [1, 2, 5])
def test_looks_pause_between_two_and_tell_the_last(count: int) -> None:
    pauses: list[float] = []
    assert list(looks(count, 0.5, pauses.append)) == [False] * (count - 1) + [True]
    assert pauses == [0.5] * (count - 1)


def test_a_look_that_is_enough_costs_no_pause() -> None:
    pauses: list[float] = []
    for _ in looks(5, 0.5, pauses.append):
        break
    assert pauses == []


@pytest.fixture
def data(tmp_path: Path) -> Path:
    engine, _ = open_engine(
        RealDisk(str(tmp_path)), EngineOptions(), lambda: bytes(16), NOW, create=True
    )
    engine.release()
    return tmp_path


def test_work_is_begun_again_where_files_went(data: Path) -> None:
    tries: list[int] = []

    def work(found: Opened) -> int:
        tries.append(len(found.namespace.by_id))
        if len(tries) == 1:
            raise FileNotFoundError
        if len(tries) == 2:
            raise CorruptDataError(PATH, 0, "moved")
        return 7

    assert with_directory(str(data), work) == 7
    assert tries == [0, 0, 0]


def test_what_stays_wrong_is_believed_after_the_last_look(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    monkeypatch.setattr(opening, "looks", lambda: looks(3, 0, lambda _: None))

    def work(found: Opened) -> None:
        seen.append(found.running)
        raise CorruptDataError(PATH, 0, "rotten")

    with pytest.raises(CorruptDataError, match="rotten"):
        with_directory(str(data), work)
    assert len(seen) == 3


def test_no_directory_is_no_reason_to_look_again(tmp_path: Path) -> None:
    with pytest.raises(DataDirectoryError, match="under the same path"):
        disk_at(str(tmp_path / "nothing"))
    with pytest.raises(DataDirectoryError):
        with_directory(str(tmp_path), lambda _: None)


def test_a_lock_shows_that_the_directory_is_in_use(data: Path) -> None:
    disk = RealDisk(str(data))
    assert not in_use(disk)
    engine, _ = open_engine(disk, EngineOptions(), lambda: bytes(16), NOW)
    try:
        assert in_use(RealDisk(str(data)))
    finally:
        engine.release()


def test_a_copy_is_recovered_in_memory_and_left_as_it_is() -> None:
    world = World()
    world.create("/a")
    world.append("/a", b"hot")
    copy: SimDisk = world.disk.survivor()
    before = copy.files()
    with recovered(copy, EngineOptions()) as engine:
        assert engine.namespace.by_key["/a"].tail == 3
    assert copy.files() == before
    assert copy.open_handles == 0

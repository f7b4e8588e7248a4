"""One odd file is one stream's problem: every oddness of every file, wherever it is met.

A file that is missing, or has a directory, a link or a pipe in its place, is lost. One that the
disk does not hand out may be whole: its stream is refused and left alone until it does.
"""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from durastreamd.engine.engine import Engine
from durastreamd.engine.opening import open_engine
from durastreamd.engine.options import EngineOptions
from durastreamd.engine.view import blob_of
from durastreamd.errors import CorruptDataError, ReadFailedError, StreamDamagedError
from durastreamd.offline.repair.apply import Repair
from durastreamd.offline.repair.losses import TAKE, Keep
from durastreamd.offline.repair.plan import Plan, make_plan
from durastreamd.offline.verify.findings import UNREADABLE
from durastreamd.offline.verify.verification import Scope, examine, in_turn
from durastreamd.storage import format as fmt
from durastreamd.storage.disk import RealDisk
from tests.support.world import World

DEEP = Scope(deep=True)
KEYS = ("/a", "/f", "/j", "/s")
FILES = {
    "segment": fmt.segment_path(1, 0),
    "index": fmt.index_path(1, 0),
    "directory": fmt.stream_dir(1),
    "shard": "streams/01",
    "segment of a snapshotted stream": fmt.segment_path(3, 0),
    "snapshot": "*.snap",
}


class RefusingDisk(RealDisk):
    """A disk that does not hand out one file or directory, whatever name it has by now."""

    inode = 0
    error = 0

    def _check(self, path: str) -> None:
        place = Path(self._path(path))
        for each in (place, place.parent, place.parent.parent):
            if os.path.lexists(each) and each.lstat().st_ino == self.inode:
                raise OSError(self.error, os.strerror(self.error), path)

    def open(self, path: str, *, create: bool = False, write: bool = False) -> int:
        self._check(path)
        return super().open(path, create=create, write=write)

    def names(self, path: str) -> list[str]:
        self._check(path)
        return super().names(path)


def _gone(place: Path) -> None:
    if place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink()


def _as_directory(place: Path) -> None:
    _gone(place)
    place.mkdir()


def _as_link(place: Path) -> None:
    _gone(place)
    place.symlink_to("nowhere")


def _as_pipe(place: Path) -> None:
    _gone(place)
    os.mkfifo(place)


def _as_file(place: Path) -> None:
    _gone(place)
    place.write_bytes(b"not ours")


ODD: dict[str, Callable[[Path], None]] = {
    "missing": _gone,
    "a directory": _as_directory,
    "a dangling link": _as_link,
    "a pipe": _as_pipe,
    "another file": _as_file,
}
REFUSED = {"EACCES": errno.EACCES, "EIO": errno.EIO}
CASES = [(file, oddness) for file in FILES for oddness in (*ODD, *REFUSED)]


def content(engine: Engine, key: str) -> bytes:
    stream = engine.namespace.by_key[key]
    data = engine.view(stream).read(stream.floor, stream.tail)
    if stream.snapshot is not None:
        blob = blob_of(stream.snapshot)
        data += engine.proofs.read(blob, 0, blob.size)
    return data


@pytest.fixture(scope="module")
def truth(world: World) -> dict[str, bytes]:
    return {key: content(world.engine, key) for key in KEYS}


def laid_out(world: World, root: Path) -> None:
    for path, data in world.disk.files().items():
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)


def made_odd(world: World, root: Path, file: str, oddness: str) -> tuple[RefusingDisk, str]:
    """Lay the directory out with one odd file; return a disk for it, and the file's path."""
    laid_out(world, root)
    pattern = FILES[file]
    place = next(root.rglob(pattern)) if "*" in pattern else root / pattern
    disk = RefusingDisk(str(root))
    if oddness in ODD:
        ODD[oddness](place)
    else:
        disk.inode, disk.error = place.stat().st_ino, REFUSED[oddness]
    return disk, str(place.relative_to(root))


def concerned(file: str) -> set[str]:
    return {"/s"} if "snapshot" in file else {"/a", "/f"}


def served(disk: RefusingDisk) -> dict[str, bytes | None]:
    """Start on a directory and read every stream; None for one that is refused."""
    engine, _ = open_engine(disk, EngineOptions(), bytes, 1_700_000_000_000)
    found: dict[str, bytes | None] = {}
    for key in KEYS:
        try:
            found[key] = content(engine, key)
        except (StreamDamagedError, CorruptDataError, ReadFailedError):
            found[key] = None
    engine.release()
    return found


def planned(disk: RefusingDisk) -> Plan:
    seen = examine(disk, DEEP, in_turn(disk))
    return make_plan(disk, seen, make_uuid=bytes(16), keep=Keep(unproven=TAKE))


def mended(disk: RefusingDisk) -> Plan:
    plan = planned(disk)
    with Repair(disk) as repair:
        repair.apply(plan)
    return plan


@pytest.mark.parametrize(("file", "oddness"), CASES)
def test_the_server_starts_and_refuses_that_stream_alone(
    world: World, truth: dict[str, bytes], tmp_path: Path, file: str, oddness: str
) -> None:
    disk, _ = made_odd(world, tmp_path, file, oddness)
    for _ in range(2):  # what the first start made of it, the second meets
        for key, data in served(disk).items():
            assert data == truth[key] or (data is None and key in concerned(file))


@pytest.mark.parametrize(("file", "oddness"), CASES)
def test_verify_names_it(world: World, tmp_path: Path, file: str, oddness: str) -> None:
    disk, path = made_odd(world, tmp_path, file, oddness)
    findings = [f for f in examine(disk, DEEP, in_turn(disk)).findings if not f.harmless]
    assert findings
    if oddness in REFUSED:
        assert any((f.path, f.kind) == (path, UNREADABLE) for f in findings)
    else:
        assert all(finding.kind != UNREADABLE for finding in findings)
        assert any(finding.path.startswith(path) for finding in findings)


@pytest.mark.parametrize(("file", "oddness"), [c for c in CASES if c[1] in ODD])
def test_repair_mends_what_is_lost(
    world: World, truth: dict[str, bytes], tmp_path: Path, file: str, oddness: str
) -> None:
    disk, _ = made_odd(world, tmp_path, file, oddness)
    plan = mended(disk)
    assert not plan.left
    assert [str(f) for f in examine(disk, DEEP, in_turn(disk)).findings] == []
    assert planned(disk).empty
    found = served(disk)
    for key in KEYS:
        assert found[key] is not None
        if key not in concerned(file):
            assert found[key] == truth[key]


@pytest.mark.parametrize(("file", "oddness"), [c for c in CASES if c[1] in REFUSED])
def test_repair_leaves_alone_what_may_be_whole(
    world: World, truth: dict[str, bytes], tmp_path: Path, file: str, oddness: str
) -> None:
    disk, path = made_odd(world, tmp_path, file, oddness)
    other = tmp_path / fmt.segment_path(2, 0)
    other.write_bytes(other.read_bytes() + b"\0")  # something for a repair to do elsewhere
    os.truncate(tmp_path / fmt.index_path(2, 0), 100)
    plan = mended(disk)
    assert plan.left
    assert all(why.startswith(path) for why in plan.left.values())
    again = planned(disk)
    assert again.empty
    assert again.left
    for key, data in served(disk).items():
        assert data == truth[key] or (data is None and key in concerned(file))
    disk.inode = 0  # the disk hands it out again, and nothing was given up meanwhile
    if not planned(disk).empty:
        mended(disk)
    assert [str(f) for f in examine(disk, DEEP, in_turn(disk)).findings if not f.harmless] == []
    assert served(disk) == truth


def test_a_repair_without_a_catalogue_waits_for_what_cannot_be_read(
    world: World, tmp_path: Path
) -> None:
    disk, path = made_odd(world, tmp_path, "index", "EIO")
    next(tmp_path.glob("catalog/*.cat")).unlink()
    with pytest.raises(ReadFailedError, match=path):
        planned(disk)


@pytest.mark.parametrize("oddness", ODD)
def test_a_repair_of_an_odd_directory_can_be_undone(
    world: World, tmp_path: Path, oddness: str
) -> None:
    disk, _ = made_odd(world, tmp_path, "directory", oddness)
    before = sorted(str(p) for p in tmp_path.rglob("*") if "quarantine" not in p.parts)
    mended(disk)
    with Repair(disk) as repair:
        repair.undo("repair-0001")
    after = sorted(str(p) for p in tmp_path.rglob("*") if "quarantine" not in p.parts)
    assert [p for p in after if not Path(p).is_dir()] == [p for p in before if not Path(p).is_dir()]


def test_a_name_that_is_nearly_a_streams_is_nobodys(world: World, tmp_path: Path) -> None:
    laid_out(world, tmp_path)
    (tmp_path / fmt.stream_dir(1)).rename(tmp_path / "streams/01/x000000000000001")
    found = served(RefusingDisk(str(tmp_path)))
    assert found["/a"] is None
    assert found["/j"] is not None


@pytest.mark.parametrize("folder", ["journal", "catalog"])
@pytest.mark.parametrize("oddness", ["a directory", "a dangling link", "a pipe"])
def test_what_is_no_file_in_a_shared_place_is_damage_and_mended(
    world: World, tmp_path: Path, oddness: str, folder: str
) -> None:
    laid_out(world, tmp_path)
    place = max((tmp_path / folder).iterdir())
    ODD[oddness](place)
    disk = RefusingDisk(str(tmp_path))
    findings = examine(disk, DEEP, in_turn(disk)).findings
    path = str(place.relative_to(tmp_path))
    assert any((f.path, f.kind) == (path, "no-file") for f in findings)
    mended(disk)
    assert [str(f) for f in examine(disk, DEEP, in_turn(disk)).findings] == []
    assert planned(disk).empty
    assert all(data is not None for data in served(disk).values())

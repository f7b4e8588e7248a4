"""An overlay opens what a real disk would, and leaves what is below it as it was."""

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from durastreamd.engine.opening import open_engine
from durastreamd.engine.options import EngineOptions
from durastreamd.storage.disk import Disk, RealDisk, read_file, write_all
from durastreamd.storage.overlay import HANDLES_MAX, OverlayDisk
from tests.golden.test_golden import HERE as GOLDEN, NOW
from tests.support.sim_disk import SimDisk

PATHS = ("d/a", "d/b", "d/c")


def tree(root: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_recovery_above_an_overlay_finds_the_same_and_changes_nothing(tmp_path: Path) -> None:
    root = tmp_path / "v1"
    shutil.copytree(GOLDEN / "v1", root)
    before = tree(root)
    lone = RealDisk(str(root))
    held = lone.lock("DURASTREAMD")  # as a running server has it
    overlay = OverlayDisk(lone)
    above, _ = open_engine(overlay, EngineOptions(), lambda: b"", NOW)
    lone.release(held)
    assert tree(root) == before
    real, _ = open_engine(RealDisk(str(root)), EngineOptions(), lambda: b"", NOW)
    for key, stream in real.namespace.by_key.items():
        twin = above.namespace.by_key[key]
        assert twin.row() == stream.row()
        view, other = real.view(stream), above.view(twin)
        assert other.read(stream.floor, stream.tail) == view.read(stream.floor, stream.tail)
    above.release()
    overlay.release_base()
    real.release()


Step = tuple[str, str, str, int, bytes]
steps = st.lists(
    st.tuples(
        st.sampled_from(("write", "truncate", "rename", "unlink", "create")),
        st.sampled_from(PATHS),
        st.sampled_from(PATHS),
        st.integers(0, 12),
        st.binary(min_size=1, max_size=6),
    ),
    max_size=14,
)


def apply(disk: Disk, step: Step) -> None:
    kind, path, other, number, data = step
    if kind == "create":
        disk.release(disk.open(path, create=True, write=True))
    elif kind in ("write", "truncate"):
        handle = disk.open(path, write=True)
        if kind == "write":
            write_all(disk, handle, data, number)
        else:
            disk.truncate(handle, number)
        disk.release(handle)
    elif kind == "rename":
        if disk.exists(path) and path != other:
            disk.rename(path, other)
    else:
        disk.unlink(path)


def outcome(disk: Disk, step: Step) -> str:
    try:
        apply(disk, step)
    except OSError as exc:
        return type(exc).__name__
    return ""


def files(disk: Disk) -> dict[str, bytes]:
    return {name: read_file(disk, f"d/{name}") for name in disk.names("d")}


@given(steps)
@settings(max_examples=300, deadline=None)
def test_an_overlay_behaves_as_a_copy_would(found: list[Step]) -> None:
    base, copy = SimDisk(), SimDisk()
    for disk in (base, copy):
        disk.make_directory("d")
        handle = disk.open("d/a", create=True, write=True)
        write_all(disk, handle, b"0123456789", 0)
        disk.release(handle)
    before = files(base)
    overlay = OverlayDisk(base)
    for step in found:
        assert outcome(overlay, step) == outcome(copy, step)
        assert files(overlay) == files(copy)
    assert files(base) == before


def test_a_part_of_a_patched_file_is_read_from_both(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    disk = OverlayDisk(RealDisk(str(tmp_path)))
    handle = disk.open("a", write=True)
    write_all(disk, handle, b"xy", 4)
    assert [disk.pread(handle, 4, n) for n in range(7)] == [
        b"0123", b"123x", b"23xy", b"3xy6", b"xy67", b"y678", b"6789",
    ]  # fmt: skip
    disk.release(handle)
    with pytest.raises(KeyError):
        disk.size(handle)
    disk.release_base()


def test_no_more_files_are_open_than_the_bound_however_many_are_written(tmp_path: Path) -> None:
    disk = OverlayDisk(RealDisk(str(tmp_path)))
    count, before = 2 * HANDLES_MAX, len(os.listdir("/proc/self/fd"))
    for number in range(count):
        (tmp_path / f"{number}").write_bytes(b"below")
        handle = disk.open(f"{number}", write=True)
        write_all(disk, handle, b"B", 0)
        disk.release(handle)
    assert len(os.listdir("/proc/self/fd")) <= before + HANDLES_MAX
    assert {read_file(disk, f"{number}") for number in range(count)} == {b"Below"}
    disk.release_base()
    assert len(os.listdir("/proc/self/fd")) <= before

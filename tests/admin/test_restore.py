"""``dsadmin restore``: a directory nobody else makes anything of, whole or not one yet."""

from pathlib import Path

import pytest

from durastreamd.admin.carry import backup as backup_module
from durastreamd.admin.carry.manifest import OWN_FILES, read_manifest
from durastreamd.engine.opening import open_engine
from durastreamd.errors import DirectoryLockedError
from durastreamd.kit.status import LOCKED, OK, USAGE
from durastreamd.storage import format as fmt
from durastreamd.storage.disk import RealDisk
from tests.admin.harness import run, tree
from tests.support.daemon import Daemon
from tests.support.world import NOW, TINY


@pytest.fixture
def data(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    (tmp_path / "lines").write_bytes(b'{"a":1}\n' * 3000)
    place = ("--data-dir", root, "import", "--init", "--format", "ndjson")
    for name in ("/one", "docs/two"):
        assert run(*place, "--input", tmp_path / "lines", "--stream", name).status == OK
    return root


def check(new: Path, copy: Path) -> None:
    """Everything of the backup is there and nothing else, and it verifies."""
    assert tree(new) == {path: sums for path, sums in tree(copy).items() if path not in OWN_FILES}
    assert run("--data-dir", new, "verify", "--deep").status == OK


def test_a_directory_in_use_is_not_restored_into(data: Path, tmp_path: Path) -> None:
    """Neither one that is served nor one in which something is just being made."""
    copy, new = tmp_path / "copy", tmp_path / "new"
    assert run("--data-dir", data, "backup", copy).status == OK
    (tmp_path / "served").mkdir()
    with Daemon(tmp_path / "served") as daemon:
        served = daemon.home / "data"
        told = run("--data-dir", served, "restore", copy)
        assert (told.status, "is in use by another" in told.err) == (LOCKED, True)
        assert not (served / fmt.RESTORING_FILE).exists()
    new.mkdir()
    disk = RealDisk(str(new))
    handle = disk.lock_directory()
    told = run("--data-dir", new, "restore", copy)
    assert (told.status, "is in use by another" in told.err) == (LOCKED, True)
    assert not list(new.iterdir())
    disk.release(handle)
    assert run("--data-dir", new, "restore", copy).status == OK


def test_nobody_makes_a_directory_of_one_that_is_being_restored(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, new = tmp_path / "copy", tmp_path / "new"
    assert run("--data-dir", data, "backup", copy).status == OK
    original = backup_module._restore_file
    refused = 0

    def interrupted(*arguments: object, **options: object) -> None:
        nonlocal refused
        with pytest.raises(DirectoryLockedError):
            open_engine(RealDisk(str(new)), TINY, lambda: b"x" * 16, NOW, create=True)
        refused += 1
        original(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(backup_module, "_restore_file", interrupted)
    assert run("--data-dir", new, "restore", copy).status == OK
    assert refused == len(read_manifest(copy).files)
    check(new, copy)


def test_a_restore_goes_on_where_it_was_interrupted(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, new = tmp_path / "copy", tmp_path / "new"
    assert run("--data-dir", data, "backup", copy).status == OK
    files = len(read_manifest(copy).files)
    original = backup_module._restore_file
    for limit in range(1, files):
        calls = 0

        def killed(*arguments: object, **options: object) -> None:
            nonlocal calls
            calls += 1
            if calls > limit:  # noqa: B023  # called in this turn only
                raise KeyboardInterrupt
            original(*arguments, **options)  # type: ignore[arg-type]

        with monkeypatch.context() as patched:
            patched.setattr(backup_module, "_restore_file", killed)
            assert run("--data-dir", new, "restore", copy).status == 130
        assert not (new / fmt.IDENTITY_FILE).exists()
    assert run("--data-dir", new, "restore", copy).status == OK
    check(new, copy)
    assert not (new / "RESTORING").exists()
    told = run("--data-dir", new, "restore", copy)
    assert (told.status, "is not empty" in told.err) == (USAGE, True)
    modes = {path.stat().st_mode & 0o777 for path in new.rglob("*") if path.is_file()}
    assert modes == {0o600}

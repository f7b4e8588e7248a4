"""Run as root, own as the directory: the service reads everything that dsadmin wrote."""

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from durastreamd.admin.place import owner_of
from durastreamd.kit.status import NO_INPUT, OK
from durastreamd.storage.disk import RealDisk
from tests.admin.harness import run
from tests.support.daemon import Daemon

SERVICE = 61234
MEND = ("repair", "--apply", "--yes", "--unproven", "take")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Daemon]:
    """A directory with two streams, whose server has ended."""
    with Daemon(tmp_path) as daemon:
        put(daemon, "one", b"of the first")
        put(daemon, "two", b"of the second")
        daemon.terminate()
        yield daemon


def put(daemon: Daemon, name: str, body: bytes) -> None:
    head = {"Content-Type": "text/plain"}
    assert httpx.put(daemon.stream(name), content=body, headers=head).status_code in (200, 201)


def given(root: Path) -> None:
    for place in (root, *root.rglob("*")):
        os.chown(place, SERVICE, SERVICE)


def strangers(root: Path) -> list[str]:
    found = []
    for place in (root, *root.rglob("*")):
        status = place.lstat()
        mode = 0o700 if place.is_dir() else 0o600
        if (status.st_uid, status.st_gid) != (SERVICE, SERVICE) or status.st_mode & 0o777 != mode:
            found.append(str(place))
    return found


@needs_root
def test_a_repair_belongs_to_the_owner(home: Daemon) -> None:
    data = home.home / "data"
    next(data.glob("catalog/*.cat")).unlink()
    next(data.glob("streams/*/*/*.idx")).unlink()
    given(data)
    assert run("--data-dir", data, *MEND).status == OK
    assert strangers(data) == []
    undo = run("--data-dir", data, "repair", "--undo", "repair-0001", "--apply", "--yes")
    assert undo.status == OK
    assert strangers(data) == []


@needs_root
def test_an_import_and_a_restore_belong_to_the_owner(home: Daemon, tmp_path: Path) -> None:
    data, target = home.home / "data", tmp_path / "target"
    file = tmp_path / "all.cbor"
    export = run("--data-dir", data, "export", "--all", "--format", "cbor", "--output", file)
    assert export.status == OK
    target.mkdir(mode=0o700)
    given(target)
    assert run("--data-dir", target, "import", "--init", "--input", file).status == OK
    assert strangers(target) == []
    assert run("--data-dir", data, "backup", tmp_path / "backup").status == OK
    restored = tmp_path / "restored"
    restored.mkdir(mode=0o700)
    given(restored)
    assert run("--data-dir", restored, "restore", tmp_path / "backup").status == OK
    assert strangers(restored) == []


@needs_root
@pytest.mark.parametrize(("owner", "kept_by"), [(5150, 5150), (61184, 0), (65519, 0)])
def test_a_backup_belongs_to_the_owner_but_not_to_a_number_that_is_lent(
    home: Daemon, tmp_path: Path, owner: int, kept_by: int
) -> None:
    data, copy = home.home / "data", tmp_path / "copy"
    for place in (data, *data.rglob("*")):
        os.chown(place, owner, owner)
    for _ in range(2):  # the second links
        assert run("--data-dir", data, "backup", copy).status == OK
        there = [place.lstat() for place in (copy, *copy.rglob("*"))]
        assert {(one.st_uid, one.st_gid) for one in there} == {(kept_by, kept_by)}
        assert {one.st_mode & 0o777 for one in there} == {0o600, 0o700}


def test_what_root_makes_is_given_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same without being root: who would be given what."""
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "fchown", lambda _, *owner: told.append(owner))
    monkeypatch.setattr(os, "chown", lambda _, *owner: told.append(owner))
    disk = RealDisk(str(tmp_path))
    disk.owner = owner_of(tmp_path)
    disk.make_directory("folder")
    disk.make_directory("folder")
    disk.release(disk.open("folder/file", create=True, write=True))
    disk.release(disk.open("folder/file", write=True))
    found = tmp_path.stat()
    assert told == [(found.st_uid, found.st_gid)] * 2


def damaged(home: Daemon) -> Path:
    data = home.home / "data"
    next(data.glob("streams/*/*/*.idx")).unlink()
    assert run("--data-dir", data, *MEND).status == OK
    return data


def files(data: Path) -> dict[str, bytes]:
    there = [p for p in data.rglob("*") if p.is_file() and "quarantine" not in p.parts]
    return {str(p.relative_to(data)): p.read_bytes() for p in there}


def test_a_repair_is_undone_after_a_start_without_writes(home: Daemon) -> None:
    data = home.home / "data"
    next(data.glob("streams/*/*/*.idx")).unlink()
    before = files(data)
    assert run("--data-dir", data, *MEND).status == OK
    for _ in range(2):
        home.start()
        assert home.terminate() == 0
    undo = run("--data-dir", data, "repair", "--undo", "repair-0001", "--apply", "--yes")
    assert (undo.status, files(data)) == (OK, before)


@pytest.mark.parametrize("change", ["append", "create", "delete", "bucket"])
def test_a_repair_is_not_undone_over_what_was_written(home: Daemon, change: str) -> None:
    data = damaged(home)
    home.start()
    head = {"Content-Type": "text/plain"}
    if change == "append":
        assert httpx.post(home.stream("one"), content=b"!", headers=head).status_code == 204
    elif change == "create":
        put(home, "three", b"new")
    elif change == "delete":
        assert httpx.delete(home.stream("two")).status_code == 204
    else:
        assert httpx.put(f"{home.url}/agents").status_code == 201
    home.terminate()
    undo = run("--data-dir", data, "repair", "--undo", "repair-0001", "--apply", "--yes")
    assert undo.status == NO_INPUT
    assert "cannot be undone" in undo.err
    assert "since" in undo.err

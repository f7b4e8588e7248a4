"""A directory is looked at without a trace, and streams are found by any of their names."""

import argparse
import io
import shutil
from pathlib import Path

import pytest

from durastreamd.admin import place
from durastreamd.engine.opening import open_engine
from durastreamd.errors import CorruptDataError, UnknownStreamError
from durastreamd.kit.console import Console
from durastreamd.kit.status import FOUND, OK
from durastreamd.offline import opening
from durastreamd.offline.names import find_stream
from durastreamd.storage.disk import RealDisk
from tests.admin.harness import run, tree

COMMANDS = (
    ["ls"],
    ["info", "orders/1"],
    ["cat", "blob"],
    ["dump"],
    ["dump", "fork"],
    ["decode-offset", "10", "log"],
)


def test_no_reading_command_changes_anything_even_where_nothing_can_be_written(data: Path) -> None:
    before = tree(data)
    paths = [data, *data.rglob("*")]
    for path in paths:
        path.chmod(0o500 if path.is_dir() else 0o400)
    try:
        for command in COMMANDS:
            assert run("--data-dir", data, *command).status == 0, command
    finally:
        for path in paths:
            path.chmod(0o700 if path.is_dir() else 0o600)
    assert tree(data) == before


def test_a_lock_is_noticed_and_not_disturbed(data: Path) -> None:
    disk = RealDisk(str(data))
    assert not disk.locked("DURASTREAMD")
    held = disk.lock("DURASTREAMD")
    assert disk.locked("DURASTREAMD")
    assert "a daemon is running" in run("--data-dir", data, "ls").err
    disk.release(held)
    assert not disk.locked("DURASTREAMD")
    assert "a daemon is running" not in run("--data-dir", data, "ls").err


NAMES = {
    "orders/1": "/orders/1",
    "/orders/1": "/orders/1",
    "/v1/stream/orders/1": "/orders/1",
    "http://127.0.0.1:4437/v1/stream/orders/1": "/orders/1",
    "0000000000000001": "/orders/1",
    "team/a b": "team/a b",
    "/team/a%20b": "team/a b",
    "https://example.org/team/a%20b": "team/a b",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_stream_is_found_by_name_url_and_id(original: Path, name: str) -> None:
    (found,) = run("--data-dir", original, "info", name, "--json").records
    assert found["name"] == NAMES[name]
    assert run("--data-dir", original, "dump", name, "--limit", "1").status == 0
    assert run("--data-dir", original, "verify", name).status in (OK, FOUND)
    assert run("--data-dir", original, "reindex", name).status == OK


@pytest.mark.parametrize("command", ["info", "cat", "dump"])
def test_an_unknown_name_is_answered_with_the_nearest(original: Path, command: str) -> None:
    found = run("--data-dir", original, command, "order/1")
    assert (found.status, found.out) == (66, b"")
    assert "did you mean /orders/1?" in found.err


def _look(data: Path, tries: list[Exception | None], monkeypatch: pytest.MonkeyPatch) -> str:
    """Open with failures in between; return what was noted."""
    real = open_engine

    def flaky(*args: object, **kwargs: object) -> object:
        failure = tries.pop(0) if tries else None
        if failure is not None:
            raise failure
        return real(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(opening, "open_engine", flaky)
    err = io.StringIO()
    args = argparse.Namespace(data_dir=str(data), config=None)
    with place.opened(args, Console(io.StringIO(), err)) as found:
        find_stream(found.namespace, "orders/1")
        with pytest.raises(UnknownStreamError):
            find_stream(found.namespace, "nothing")
    return err.getvalue()


def test_files_that_go_between_two_looks_are_looked_at_again(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealDisk(str(data))
    held = disk.lock("DURASTREAMD")
    gone: list[Exception | None] = [FileNotFoundError("x"), CorruptDataError("journal", 0, "gone")]
    _look(data, gone, monkeypatch)
    assert not gone
    disk.release(held)


def test_without_a_daemon_one_look_is_believed(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CorruptDataError):
        _look(data, [CorruptDataError("journal", 0, "gone")], monkeypatch)


def test_a_stream_damaged_in_one_look_only_is_looked_at_again(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream whose files a daemon removed meanwhile would be taken for damaged."""
    disk = RealDisk(str(data))
    held = disk.lock("DURASTREAMD")
    segments = data / "streams/01/0000000000000001"
    aside = data.parent / "aside"
    shutil.move(segments, aside)
    real = open_engine
    looks = []

    def mending(*args: object, **kwargs: object) -> object:
        found = real(*args, **kwargs)  # type: ignore[arg-type]
        looks.append(bool(found[1].damaged))
        if not segments.exists():
            shutil.move(aside, segments)
        return found

    monkeypatch.setattr(opening, "open_engine", mending)
    states = {r["name"]: r["state"] for r in run("--data-dir", data, "ls", "--json").records}
    assert looks == [True, False]
    assert states["/orders/1"] == "open"
    disk.release(held)


def test_damage_that_stays_is_told(data: Path) -> None:
    shutil.rmtree(data / "streams/01/0000000000000001")
    found = run("--data-dir", data, "ls", "--state", "damaged", "--json")
    assert [r["name"] for r in found.records] == ["/orders/1"]
    assert "is damaged" in found.err
    assert run("--data-dir", data, "cat", "orders/1").status == 65

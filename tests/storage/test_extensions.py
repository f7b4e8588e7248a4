"""Extensions of the format: named before they are used, refused by name, kept by a repair."""

from pathlib import Path

import cbor2
import pytest

from durastreamd.engine.engine import Engine
from durastreamd.engine.opening import open_engine
from durastreamd.errors import DataDirectoryError, DirectoryLockedError, WriteFailedError
from durastreamd.model.records import Mark
from durastreamd.offline.repair.apply import Repair
from durastreamd.offline.repair.plan import make_plan
from durastreamd.offline.verify.verification import Scope, examine, in_turn, survey
from durastreamd.storage import datadir, extensions, format as fmt
from durastreamd.storage.checksum import digest
from durastreamd.storage.disk import Disk, RealDisk
from durastreamd.storage.extensions import Extension
from tests.support.moving_disk import moving
from tests.support.sim_disk import SimDisk
from tests.support.world import NOW, TINY, World

UUID = b"u" * 16
NAMED = frozenset({extensions.SUBSCRIPTIONS})


def opened(disk: Disk) -> Engine:
    engine, _ = open_engine(disk, TINY, lambda: UUID, NOW, create=True)
    return engine


def extended(disk: Disk) -> Engine:
    """Return an engine that has used an extension."""
    engine = opened(disk)
    engine.extend(extensions.SUBSCRIPTIONS)
    engine.commit([(Mark(NOW), b"")])
    return engine


def foreign(name: str) -> bytes:
    body = f"durastreamd\nformat 2\nuuid {UUID.hex()}\nextensions {name}\n"
    return f"{body}sum {digest(body.encode(), 0):016x}\n".encode()


def test_a_directory_without_extensions_has_the_identity_of_version_1() -> None:
    disk = SimDisk()
    opened(disk).commit([(Mark(NOW), b"")])
    body = f"durastreamd\nformat 1\nuuid {UUID.hex()}\n"
    assert disk.read(fmt.IDENTITY_FILE).decode().startswith(f"{body}sum ")
    assert datadir.read_identity(disk) == datadir.Identity(UUID, 1)


def test_an_extension_is_named_before_anything_of_the_batch_is_written() -> None:
    disk = SimDisk()
    engine = opened(disk)
    engine.extend(extensions.SUBSCRIPTIONS)
    before: list[str] = []
    disk.hook = lambda operation, path: before.append(f"{operation} {path}")
    engine.commit([(Mark(NOW), b"")])
    written = next(at for at, done in enumerate(before) if "journal/" in done)
    assert before.index("sync_directory ") < written
    assert datadir.read_identity(disk.survivor()).extensions == NAMED
    engine.release()
    assert opened(disk).extensions == NAMED


def test_it_is_named_once_and_costs_nothing_afterwards() -> None:
    disk = SimDisk()
    engine = extended(disk)
    told: list[str] = []
    disk.hook = lambda _, path: told.append(path)
    engine.extend(extensions.SUBSCRIPTIONS)
    engine.commit([(Mark(NOW), b"")])
    assert fmt.IDENTITY_FILE not in "".join(told)


def test_an_unknown_extension_is_refused_by_its_name() -> None:
    disk = SimDisk()
    extended(disk).release()
    disk.damage(fmt.IDENTITY_FILE, lambda data: data.__setitem__(slice(None), foreign("moon-base")))
    before = disk.files()
    with pytest.raises(DataDirectoryError, match="uses the extension 'moon-base' of the format"):
        opened(disk)
    with pytest.raises(DataDirectoryError, match="moon-base"):
        survey(disk)
    assert disk.files() == before


def test_a_name_that_could_not_be_written_refuses_the_batch_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = SimDisk()
    engine = opened(disk)
    engine.extend(extensions.SUBSCRIPTIONS)
    before = engine.journal.next_lsn

    def full(path: str) -> None:
        raise WriteFailedError(path)

    with monkeypatch.context() as patched:
        patched.setattr(disk, "sync_directory", full)
        with pytest.raises(WriteFailedError):
            engine.commit([(Mark(NOW), b"")])
    assert engine.journal.next_lsn == before
    engine.commit([(Mark(NOW), b"")])
    assert datadir.read_identity(disk.survivor()).extensions == NAMED


def test_the_directory_stays_locked_while_its_identity_is_replaced(tmp_path: Path) -> None:
    disk = RealDisk(str(tmp_path))
    engine = extended(disk)
    assert disk.locked(fmt.IDENTITY_FILE)
    with pytest.raises(DirectoryLockedError):
        RealDisk(str(tmp_path)).lock(fmt.IDENTITY_FILE)
    engine.release()
    assert not disk.locked(fmt.IDENTITY_FILE)


def test_a_repair_keeps_the_names() -> None:
    world = World()
    world.create("/a")
    world.engine.extend(extensions.SUBSCRIPTIONS)
    world.engine.commit([(Mark(NOW), b"")])
    disk = moving(world.disk)
    disk.unlink(next(path for path in disk.files() if path.endswith(".cat")))
    scope = Scope(deep=True)
    plan = make_plan(disk, examine(disk, scope, in_turn(disk)), make_uuid=UUID)
    with Repair(disk) as repair:
        repair.apply(plan)
    assert datadir.read_identity(disk).extensions == NAMED


def test_the_kinds_of_records_and_rows_tell_which_extensions_are_in_use() -> None:
    kinds = extensions.EXTENSIONS[extensions.SUBSCRIPTIONS]
    plain = [cbor2.dumps([0, [5]]), b"\xff"]
    # Those that only add a field cannot be told, and so are always named.
    fields = {name for name, kind in extensions.EXTENSIONS.items() if kind == Extension()}
    assert extensions.used_by(plain, [[0, [1], []], "strange"]) == fields
    assert extensions.used_by([cbor2.dumps([min(kinds.records)])], []) == NAMED | fields
    assert extensions.used_by([], [[min(kinds.rows), "x"]]) == NAMED | fields


def test_a_damaged_identity_with_extensions_is_called_damaged() -> None:
    disk = SimDisk()
    extended(disk).release()
    disk.damage(fmt.IDENTITY_FILE, lambda data: data.__setitem__(slice(30, 31), b"!"))
    with pytest.raises(DataDirectoryError, match="is damaged"):
        datadir.read_identity(disk)

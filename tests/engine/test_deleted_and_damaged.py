"""A stream that was deleted stays so, whatever became of its files since the last checkpoint."""

import pytest

from tests.support.damage import repaired, truncate, verified
from tests.support.moving_disk import MovingDisk, moving
from tests.support.world import World, start


def deleted_behind_its_fork(*, fork_too: bool, appended: bytes = b"") -> MovingDisk:
    """Return a directory whose journal deletes /a, of which a fork reads; its segment is short."""
    world = World()
    world.create("/a")
    world.append("/a", b"of the source")
    world.fork("/f", "/a", 13)
    world.append("/f", b"of the fork")
    world.checkpoint()
    if appended:
        world.append("/a", appended)
    world.delete("/a")
    if fork_too:
        world.delete("/f")
    disk = moving(world.disk)
    truncate(disk, "streams/01/0000000000000001/0000000000000000.log", 5)
    return disk


@pytest.mark.parametrize("appended", [b"", b"more"])
def test_a_damaged_stream_goes_with_its_last_fork(appended: bytes) -> None:
    disk = deleted_behind_its_fork(fork_too=True, appended=appended)
    assert not [finding for finding in verified(disk) if not finding.harmless]
    assert not start(disk)[0].namespace.by_id


def test_a_damaged_stream_that_a_fork_reads_is_deleted_and_known_as_damaged() -> None:
    source = start(deleted_behind_its_fork(fork_too=False))[0].namespace.by_key["/a"]
    assert source.gone
    assert source.damage


def test_records_set_aside_before_the_deletion_come_back_with_a_repair() -> None:
    disk = deleted_behind_its_fork(fork_too=False, appended=b"more")
    engine = start(disk)[0]
    assert engine.namespace.by_key["/a"].gone
    repaired_disk = moving(disk.survivor())
    repaired(repaired_disk)
    assert start(repaired_disk)[0].namespace.by_key["/a"].tail == 17

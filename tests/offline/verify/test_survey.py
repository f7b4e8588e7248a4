"""A survey: what is there, and what catalogue and journal claim, however little of it is whole."""

import pytest

from durastreamd.errors import DataDirectoryError
from durastreamd.offline.verify.survey import NEVER, Survey
from durastreamd.offline.verify.verification import survey
from durastreamd.storage import format as fmt
from durastreamd.storage.checksum import digest
from tests.support.damage import UUID, flip, put
from tests.support.moving_disk import MovingDisk, moving
from tests.support.world import World


@pytest.fixture
def disk() -> MovingDisk:
    world = World()
    world.bucket("logs", exists=True)
    world.create("/a")
    world.append("/a", b"flushed")
    world.checkpoint()
    world.append("/a", b"in the journal")
    return moving(world.disk)


def kinds(found: Survey) -> set[tuple[str, str]]:
    return {(finding.path.partition("/")[0], finding.kind) for finding in found.findings}


def test_a_whole_directory_is_told_as_it_is(disk: MovingDisk) -> None:
    found = survey(disk)
    assert found.findings == []
    assert (found.uuid, found.catalog_trusted) == (UUID, True)
    assert [row.stream.key for row in found.listed.values()] == ["/a"]
    assert found.listed[1].placement.segment_bytes == len(b"flushed")
    assert list(found.buckets) == ["logs"]
    assert [head.frame.size for head in found.heads] == [len(b"in the journal")]
    assert found.files[1].segments == [0]
    assert (found.foreign, found.leftovers, found.missing) == ([], [], [])
    assert found.torn_lsn == NEVER


def test_names_that_are_not_ours_are_foreign_and_drafts_left_over(disk: MovingDisk) -> None:
    put(disk, "alien", b"")
    put(disk, f"{fmt.stream_dir(1)}/notes.txt", b"")
    put(disk, f"{fmt.CATALOG_DIR}/{9:016d}.cat.new", b"")
    found = survey(disk)
    assert sorted(found.foreign) == ["alien", f"{fmt.stream_dir(1)}/notes.txt"]
    assert found.leftovers == [f"{fmt.CATALOG_DIR}/{9:016d}.cat.new"]


def test_without_its_identity_the_other_files_name_the_directory(disk: MovingDisk) -> None:
    disk.unlink(fmt.IDENTITY_FILE)
    found = survey(disk)
    assert found.uuid == UUID
    assert (fmt.IDENTITY_FILE, "missing") in kinds(found)
    assert list(found.listed) == [1]


def test_an_identity_of_another_version_is_refused_and_not_mended(disk: MovingDisk) -> None:
    body = f"durastreamd\nformat {fmt.FORMAT_VERSION + 1}\nuuid {UUID.hex()}\n"
    put(disk, fmt.IDENTITY_FILE, f"{body}sum {digest(body.encode(), 0):016x}\n".encode())
    with pytest.raises(DataDirectoryError):
        survey(disk)


def test_rot_in_the_catalogue_takes_its_trust(disk: MovingDisk) -> None:
    path = max(path for path in disk.files() if path.endswith(".cat"))
    flip(disk, path, fmt.CATALOG_HEADER.size + 3)
    found = survey(disk)
    assert not found.catalog_trusted
    assert (fmt.CATALOG_DIR, "frame") in kinds(found)


def test_no_catalogue_is_damage_and_no_empty_directory(disk: MovingDisk) -> None:
    for path in [path for path in disk.files() if path.endswith(".cat")]:
        disk.unlink(path)
    assert (fmt.CATALOG_DIR, "missing") in kinds(survey(disk))


def test_a_lost_frame_that_others_vouch_for_is_missing() -> None:
    world = World()
    world.create("/a")
    for number in range(4):
        world.append("/a", b"message %d" % number)
    disk = moving(world.disk)
    heads = survey(disk).heads
    lost = heads[2]
    flip(disk, fmt.journal_path(lost.number), lost.position + 1)
    found = survey(disk)
    assert found.missing == [(lost.frame.lsn, lost.frame.lsn)]
    assert any(finding.path.endswith(".jnl") for finding in found.findings)


def test_the_torn_end_of_the_journal_is_harmless(disk: MovingDisk) -> None:
    last = survey(disk).heads[-1]
    flip(disk, fmt.journal_path(last.number), last.end - 1)
    found = survey(disk)
    assert found.torn_lsn == last.frame.lsn
    assert all(finding.harmless for finding in found.findings)

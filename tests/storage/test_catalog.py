"""The catalogue: a checkpoint is there whole or not at all; rot is told from a torn end."""

import pytest
from hypothesis import given, strategies as st

from durastreamd.errors import CorruptDataError
from durastreamd.storage import catalog, format as fmt
from durastreamd.storage.catalog import CatalogWriter, Commit, Loaded
from durastreamd.storage.rows import BucketRow, Row, StrangeRow
from tests.support.sim_disk import SimDisk

UUID = bytes(range(16))
FIRST = Commit(0, 1, 1, [])

rows = st.lists(st.builds(BucketRow, st.text(max_size=8), st.integers(1, 9)), max_size=6)
checkpoints = st.lists(st.tuples(rows, st.booleans()), max_size=5)


def commit_of(number: int) -> Commit:
    return Commit(10 * number, number, number + 1, [f"streams/{number}"])


def encoded(found: list[Row]) -> list[bytes]:
    return list(catalog.encode_rows(found))


def fresh() -> tuple[SimDisk, CatalogWriter]:
    disk = SimDisk()
    disk.make_directory(fmt.CATALOG_DIR)
    return disk, CatalogWriter.create(disk, UUID, FIRST)


@given(checkpoints)
def test_what_is_appended_is_loaded_again(given_: list[tuple[list[Row], bool]]) -> None:
    disk, writer = fresh()
    expected: list[Row] = []
    commit = FIRST
    for number, (found, anew) in enumerate(given_, 1):
        commit = commit_of(number)
        if anew:
            writer.rewrite(encoded(found), commit)
            expected = found
        else:
            writer.append(encoded(found), commit)
            expected = expected + found
    loaded = catalog.load(disk.survivor(), UUID)
    assert (loaded.rows, loaded.commit, loaded.torn) == (expected, commit, b"")
    assert (loaded.number, loaded.length) == (writer.number, writer.length)
    assert loaded.checkpoint == writer.checkpoint == 1 + len(given_)
    assert disk.names(fmt.CATALOG_DIR) == [fmt.catalog_path(writer.number).rpartition("/")[2]]
    assert disk.open_handles == 0


def test_more_rows_than_a_frame_holds_are_several_frames() -> None:
    many: list[Row] = [BucketRow("x", number) for number in range(2 * catalog.ROWS_PER_FRAME + 1)]
    bodies = encoded(many)
    assert len(bodies) == 3
    disk, writer = fresh()
    writer.append(bodies, commit_of(1))
    assert catalog.load(disk, UUID).rows == many


def test_a_row_of_no_known_kind_is_refused_once_it_counts() -> None:
    disk, writer = fresh()
    good = writer.length
    writer.append(encoded([BucketRow("a", 1), StrangeRow([9, "a"])]), commit_of(1))
    with pytest.raises(CorruptDataError, match=r"a row cannot be understood: \[9, 'a'\]"):
        catalog.load(disk, UUID)
    body = fmt.CATALOG_FRAME.size
    rows_end = good + body + len(encoded([BucketRow("a", 1), StrangeRow([9, "a"])])[0])
    handle = disk.open(fmt.catalog_path(writer.number), write=True)
    disk.truncate(handle, rows_end)  # its commit never came: it says nothing
    disk.release(handle)
    assert catalog.load(disk, UUID).rows == []


@pytest.fixture
def three() -> tuple[SimDisk, list[int]]:
    """A catalogue of three checkpoints, and where each ends."""
    disk, writer = fresh()
    ends = [writer.length]
    for number in (1, 2):
        found: list[Row] = [BucketRow("row", number), BucketRow("other", number + 5)]
        writer.append(encoded(found), commit_of(number))
        ends.append(writer.length)
    return disk, ends


def changed(disk: SimDisk, at: int, value: int) -> SimDisk:
    twin = disk.survivor()

    def change(data: bytearray) -> None:
        data[at] ^= value

    twin.damage(fmt.catalog_path(1), change)
    return twin


def loaded_or_refused(disk: SimDisk) -> Loaded | None:
    try:
        return catalog.load(disk, UUID)
    except CorruptDataError:
        return None


def test_no_byte_changes_unnoticed(three: tuple[SimDisk, list[int]]) -> None:
    """Below the last checkpoint but one it is damage; in the last it may be a torn write."""
    disk, ends = three
    for at in range(ends[-1]):
        for value in (0x01, 0x80):
            found = loaded_or_refused(changed(disk, at, value))
            if at < ends[-2]:
                assert found is None, at
            else:
                assert found is not None, at
                assert (found.commit, found.length) == (commit_of(1), ends[-2])
                assert found.torn, "and what was cut is told"


def test_an_end_torn_anywhere_leaves_the_last_whole_checkpoint(
    three: tuple[SimDisk, list[int]],
) -> None:
    disk, ends = three
    for end in range(ends[0], ends[-1] + 1):
        twin = disk.survivor()
        handle = twin.open(fmt.catalog_path(1), write=True)
        twin.truncate(handle, end)
        twin.release(handle)
        found = catalog.load(twin, UUID)
        assert found.length == max(each for each in ends if each <= end)
        assert len(found.torn) == end - found.length


def test_a_catalogue_that_is_not_there_or_not_ours_is_refused() -> None:
    disk, writer = fresh()
    with pytest.raises(CorruptDataError, match="header is damaged"):
        catalog.load(disk, bytes(16))
    disk.unlink(fmt.catalog_path(writer.number))
    with pytest.raises(CorruptDataError, match="the catalogue is missing"):
        catalog.load(disk, UUID)

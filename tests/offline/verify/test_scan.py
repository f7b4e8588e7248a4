"""Files read without trust: headers name their owner or nobody, and damage is a gap, not an end."""

from durastreamd.offline.verify.scan import (
    JournalHead,
    catalog_header,
    journal_header,
    scan_catalog,
    scan_journal,
)
from durastreamd.storage import format as fmt
from durastreamd.storage.catalog import Commit, encode_file
from durastreamd.storage.rows import BucketRow
from durastreamd.storage.scan import Gap
from tests.support.damage import UUID
from tests.support.world import World

CATALOG = encode_file(UUID, 4, 0, [BucketRow("b", 1)], Commit(7, 2, 3, []))


def journal() -> tuple[int, bytes]:
    world = World()
    world.create("/a")
    for number in range(3):
        world.append("/a", b"message %d" % number)
    path = max(path for path in world.disk.files() if path.endswith(".jnl"))
    return int(path.rpartition("/")[2][:16]), world.disk.read(path)


def test_a_journal_s_header_names_its_directory_and_number() -> None:
    number, raw = journal()
    header = journal_header(raw)
    assert header is not None
    assert (header.uuid, header.number) == (UUID, number)
    for at in range(fmt.JOURNAL_HEADER.size):
        assert journal_header(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]) is None
    assert journal_header(raw[: fmt.JOURNAL_HEADER.size - 1]) is None


def test_a_catalogue_s_header_names_its_directory_and_number() -> None:
    assert catalog_header(CATALOG) == (UUID, 4)
    for at in range(fmt.CATALOG_HEADER.size):
        assert catalog_header(CATALOG[:at] + bytes([CATALOG[at] ^ 1]) + CATALOG[at + 1 :]) is None
    assert catalog_header(CATALOG[: fmt.CATALOG_HEADER.size - 1]) is None


def test_frames_of_the_journal_are_found_around_damage() -> None:
    number, raw = journal()
    whole = [item for item in scan_journal(raw, UUID, number) if isinstance(item, JournalHead)]
    assert len(whole) >= 4
    for head in whole:
        assert raw[head.payload_at : head.end] == raw[head.end - head.frame.size : head.end]
    hit = whole[1]
    rotten = raw[: hit.position] + b"\0" * 8 + raw[hit.position + 8 :]
    found = list(scan_journal(rotten, UUID, number))
    assert [item for item in found if isinstance(item, JournalHead)] == whole[:1] + whole[2:]
    gaps = [item for item in found if isinstance(item, Gap)]
    assert [(gap.position, gap.end) for gap in gaps] == [(hit.position, hit.end)]


def test_a_payload_that_does_not_verify_is_told_and_its_head_believed() -> None:
    number, raw = journal()
    last = [i for i in scan_journal(raw, UUID, number) if isinstance(i, JournalHead)][-1]
    rotten = raw[: last.end - 1] + bytes([raw[last.end - 1] ^ 1]) + raw[last.end :]
    again = [i for i in scan_journal(rotten, UUID, number) if isinstance(i, JournalHead)][-1]
    assert (last.payload_ok, again.payload_ok) == (True, False)
    assert again.frame == last.frame


def test_nothing_verifies_under_another_number_or_uuid() -> None:
    number, raw = journal()
    assert all(isinstance(item, Gap) for item in scan_journal(raw, UUID, number + 1))
    assert all(isinstance(item, Gap) for item in scan_catalog(CATALOG, bytes(16), 4))
    rows, commit = scan_catalog(CATALOG, UUID, 4)
    assert not isinstance(rows, Gap)
    assert not isinstance(commit, Gap)
    assert (rows.rows, commit.commit) == ([BucketRow("b", 1)], Commit(7, 2, 3, []))

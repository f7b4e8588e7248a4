"""Journal files: what is written is found again, a changed byte is noticed, an end may be torn."""

import errno

import pytest
from hypothesis import given, strategies as st

from durastreamd.errors import WriteFailedError
from durastreamd.storage import format as fmt, journal
from durastreamd.storage.checksum import payload_sum
from durastreamd.storage.journal import FileHead, JournalFrame, JournalWriter
from tests.support.sim_disk import SimDisk

UUID = bytes(range(16))
NUMBER = 3
HEAD = FileHead(41, 40)
HEADER_BYTES = fmt.JOURNAL_HEADER.size
SEED = journal.file_seed(UUID, NUMBER)

contents = st.lists(
    st.lists(
        st.tuples(st.integers(1, 2**64 - 1), st.binary(max_size=40), st.binary(max_size=60)),
        min_size=1,
        max_size=4,
    ),
    max_size=5,
)
Contents = list[list[tuple[int, bytes, bytes]]]


def writer_on(disk: SimDisk) -> JournalWriter:
    disk.make_directory(fmt.JOURNAL_DIR)
    return JournalWriter(disk, UUID, NUMBER, HEAD)


def commit(writer: JournalWriter, batch: list[tuple[int, bytes, bytes]]) -> list[fmt.StoredFrame]:
    """Write frames of (stream, header, payload) as one batch."""
    frames = [
        fmt.StoredFrame(
            stream,
            7,
            len(data),
            1,
            2,
            payload_sum(data, stream, 7),
            writer.next_lsn + at,
            head,
            data,
        )
        for at, (stream, head, data) in enumerate(batch)
    ]
    writer.commit(frames, writer.encode(frames))
    return frames


def written(batches: Contents) -> tuple[bytes, list[list[fmt.StoredFrame]]]:
    """Return a file's bytes and the frames of each batch in it."""
    disk = SimDisk()
    writer = writer_on(disk)
    frames = [commit(writer, batch) for batch in batches]
    writer.release()
    return disk.read(fmt.journal_path(NUMBER)), frames


def parsed(data: bytes) -> list[JournalFrame]:
    """Return the frames from the first on, up to one that does not verify."""
    found: list[JournalFrame] = []
    position = HEADER_BYTES
    while frame := journal.parse_frame(memoryview(data), position, SEED):
        found.append(frame)
        position = frame.end
    return found


@given(contents)
def test_what_is_written_is_found_again_with_its_witnesses(batches: Contents) -> None:
    data, frames = written(batches)
    assert journal.decode_header(data, UUID, NUMBER) == HEAD
    found = parsed(data)
    expected = [frame for batch in frames for frame in batch]
    assert [each.frame for each in found] == expected
    assert all(each.payload_ok for each in found)
    assert (found[-1].end if found else HEADER_BYTES) == len(data)
    durable = [batch[0].lsn - 1 for batch in frames for _ in batch]
    assert [each.durable_lsn for each in found] == durable, "what was durable before its batch"
    before = [0, *(frame.stream for frame in expected)][: len(expected)]
    assert [each.previous for each in found] == before


SAMPLE: Contents = [[(5, b"head", b"payload"), (6, b"", b"")], [(5, b"x", b"more bytes")]]


def test_no_byte_of_a_header_changes_unnoticed() -> None:
    data, _ = written([])
    for at in range(HEADER_BYTES):
        for value in (0x01, 0x80, 0xFF):
            changed = bytearray(data)
            changed[at] ^= value
            assert journal.decode_header(bytes(changed), UUID, NUMBER) is None, at


def test_no_byte_of_a_frame_changes_unnoticed() -> None:
    data, _ = written(SAMPLE)
    whole = parsed(data)
    for at in range(HEADER_BYTES, len(data)):
        changed = bytearray(data)
        changed[at] ^= 0x10
        hit = next(number for number, each in enumerate(whole) if each.position <= at < each.end)
        found = parsed(bytes(changed))
        assert found[:hit] == whole[:hit], "what stands before it is not touched"
        assert len(found) == hit or not found[hit].payload_ok, at


def test_a_file_that_ends_anywhere_has_only_whole_frames_before_its_end() -> None:
    data, _ = written(SAMPLE)
    whole = parsed(data)
    for end in range(len(data)):
        found = [each for each in parsed(data[:end]) if each.payload_ok]
        assert found == [each for each in whole if each.end <= end]
    assert journal.decode_header(data[: HEADER_BYTES - 1], UUID, NUMBER) is None


def test_a_frame_verifies_nowhere_but_where_it_was_written() -> None:
    data, _ = written(SAMPLE)
    second = parsed(data)[1]
    piece = data[second.position : second.end]
    moved = memoryview(data + piece)
    assert journal.parse_frame(moved, len(data), SEED) is None, "at another position"
    for other in (journal.file_seed(UUID, NUMBER + 1), journal.file_seed(bytes(16), NUMBER)):
        assert journal.parse_frame(memoryview(data), second.position, other) is None
    assert journal.decode_header(data, UUID, NUMBER + 1) is None, "renamed"
    assert journal.decode_header(data, bytes(16), NUMBER) is None, "from another directory"


def test_a_rotation_goes_on_with_the_next_lsn_in_the_next_file() -> None:
    disk = SimDisk()
    writer = writer_on(disk)
    commit(writer, SAMPLE[0])
    writer.rotate()
    commit(writer, SAMPLE[1])
    writer.release()
    assert journal.journal_numbers(disk) == [NUMBER, NUMBER + 1]
    later = journal.read_journal_file(disk, UUID, NUMBER + 1)
    assert later.head == FileHead(HEAD.first_lsn + 2, HEAD.first_lsn + 1)
    assert disk.open_handles == 0


def test_a_failed_write_is_cut_back_before_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk()
    writer = writer_on(disk)
    commit(writer, SAMPLE[0])
    before = disk.read(fmt.journal_path(NUMBER))
    whole = SimDisk.pwrite
    end = len(before) + 3

    def short(self: SimDisk, handle: int, data: bytes | memoryview, position: int) -> int:
        if position >= end:
            raise OSError(errno.ENOSPC, "No space left on device")
        return whole(self, handle, data[: end - position], position)

    monkeypatch.setattr(SimDisk, "pwrite", short)
    with pytest.raises(WriteFailedError):
        commit(writer, SAMPLE[1])
    monkeypatch.setattr(SimDisk, "pwrite", whole)
    assert disk.survivor().read(fmt.journal_path(NUMBER)) == before
    commit(writer, SAMPLE[1])
    writer.release()
    assert len(parsed(disk.read(fmt.journal_path(NUMBER)))) == 3

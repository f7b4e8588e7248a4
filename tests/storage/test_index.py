"""Index files: entries are found again and searched for, and each changed byte is noticed."""

import pytest
from hypothesis import given, strategies as st

from durastreamd.errors import CorruptDataError
from durastreamd.storage import format as fmt, index, log
from durastreamd.storage.disk import read_file
from durastreamd.storage.index import HEADER_BYTES, Entry, IndexFile, IndexReader, owner_of
from tests.support.sim_disk import SimDisk

STREAM, BASE = 9, 4000
FILE = IndexFile(STREAM, BASE)

# Each a header's length (a few are longer than one probe of a search), a payload's, a time's step.
parts = st.lists(
    st.tuples(
        st.sampled_from((0, 3, 40, index.PROBE_BYTES, 70_000)),
        st.integers(0, 50),
        st.integers(0, 3),
        st.booleans(),
    ),
    max_size=12,
)
Parts = list[tuple[int, int, int, bool]]


def written(given_parts: Parts) -> tuple[bytes, list[tuple[fmt.StoredFrame, bool]]]:
    """Return an index file and what is in it; times and positions do not decrease."""
    data = FILE.header()
    start, time_ms, frames = BASE, 1000, []
    for number, (header, size, step, is_state) in enumerate(given_parts):
        time_ms += step
        filler = fmt.ENTRY_MAGIC * (header // 4 + 1)  # looks like the begin of entries
        size = 0 if is_state else size
        frame = fmt.StoredFrame(
            STREAM, start, size, time_ms, number, number, number + 1, filler[:header], b""
        )
        data += FILE.entry(frame, len(data), is_state=is_state)
        frames.append((frame, is_state))
        start += size
    return data, frames


def reader_of(data: bytes) -> IndexReader:
    def read(size: int, position: int) -> bytes:
        return data[position : position + size]

    return FILE.reader(read, len(data))


def found_in(data: bytes) -> list[Entry]:
    return list(reader_of(data).entries())


@given(parts)
def test_what_is_written_is_found_again(given_parts: Parts) -> None:
    data, frames = written(given_parts)
    reader = reader_of(data)
    reader.verify_header()
    entries = list(reader.entries())
    assert [(each.frame, each.is_state) for each in entries] == frames
    assert [each.end for each in entries[:-1]] == [each.position for each in entries[1:]]
    for each in entries:
        assert list(reader.entries(each.position)) == entries[entries.index(each) :]


@given(parts, st.integers(0, 40))
def test_a_search_finds_the_last_record_at_or_before(given_parts: Parts, past: int) -> None:
    data, frames = written(given_parts)
    records = [frame for frame, is_state in frames if not is_state]
    wanted = 1000 + past // 2
    found = reader_of(data).last_at_or_before(lambda frame: frame.time_ms, wanted)
    expected = [frame for frame in records if frame.time_ms <= wanted]
    assert (found.frame if found else None) == (expected[-1] if expected else None)


SAMPLE: Parts = [(3, 10, 1, False), (0, 0, 1, False), (12, 0, 0, True), (5, 20, 1, False)]


def test_no_byte_of_an_index_changes_unnoticed() -> None:
    data, _ = written(SAMPLE)
    whole = found_in(data)
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 0x04
        reader = reader_of(bytes(changed))
        if at < HEADER_BYTES:
            with pytest.raises(CorruptDataError, match="header is damaged"):
                reader.verify_header()
            continue
        before = [each for each in whole if each.end <= at]
        seen: list[Entry] = []
        with pytest.raises(CorruptDataError, match="does not verify"):
            seen.extend(reader.entries())
        assert seen == [] or seen == before
        hit = len(before)
        left = list(reader.entries(passing_over=whole[hit].position))
        assert left == whole[:hit] + whole[hit + 1 :], "one damaged entry hides no other"


def test_an_index_that_ends_inside_an_entry_is_damaged() -> None:
    data, _ = written(SAMPLE)
    ends = {each.end for each in found_in(data)} | {HEADER_BYTES}
    for end in range(HEADER_BYTES, len(data)):
        if end in ends:
            assert len(found_in(data[:end])) < len(SAMPLE)
        else:
            with pytest.raises(CorruptDataError):
                found_in(data[:end])


def test_an_entry_verifies_nowhere_but_where_it_was_written() -> None:
    data, _ = written(SAMPLE)
    entry = found_in(data)[1]
    assert FILE.parse(data, entry.position, entry.position) == entry
    assert FILE.parse(data, entry.position, entry.position + 8) is None
    for stream, start in ((STREAM + 1, BASE), (STREAM, BASE + 1)):
        assert IndexFile(stream, start).parse(data, entry.position, entry.position) is None


def test_the_header_names_the_owner_or_nobody() -> None:
    header = FILE.header()
    assert owner_of(header + b"more") == (STREAM, BASE)
    assert owner_of(header[:-1]) is None
    for at in range(len(header)):
        assert owner_of(header[:at] + bytes([header[at] ^ 1]) + header[at + 1 :]) is None


def on_disk(data: bytes) -> SimDisk:
    disk = SimDisk()
    disk.make_directory(fmt.STREAMS_DIR)
    log.make_directories(disk, STREAM)
    FILE.write(disk, data, 0)
    return disk


def test_a_file_is_lent_whole_or_in_part_and_given_back() -> None:
    data, _ = written(SAMPLE)
    disk, second = on_disk(data), found_in(data)[1].end
    for length, at_most, count in ((None, None, 4), (second, None, 2), (None, second, 2)):
        with FILE.opened(disk, length, at_most=at_most) as reader:
            assert len(list(reader.entries())) == count
    with FILE.opened(disk, at_most=len(data) + 1) as reader:  # one that has more, some day
        assert reader.length == len(data)
    with FILE.opened(disk, len(data) + 1) as reader, pytest.raises(CorruptDataError):
        list(reader.entries())  # one that has lost some
    assert disk.open_handles == 0
    with pytest.raises(FileNotFoundError), IndexFile(STREAM, 1).opened(disk):
        pass


def test_what_is_written_ends_the_file_and_a_cut_brings_it_back() -> None:
    data, _ = written(SAMPLE)
    disk, first = on_disk(data + b"of an attempt that failed"), found_in(data)[0].end
    FILE.write(disk, data[first:], first)
    assert read_file(disk, FILE.path) == data
    FILE.cut(disk, first)
    assert read_file(disk, FILE.path) == data[:first]
    with pytest.raises(CorruptDataError, match=f"{first + 1} bytes were durable"):
        FILE.cut(disk, first + 1)
    assert disk.open_handles == 0

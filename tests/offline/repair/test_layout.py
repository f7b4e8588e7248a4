"""Layout: new files hold what survives, byte for byte, and whole ones stay where they are."""

import pytest

from durastreamd.offline.repair import layout
from durastreamd.offline.repair.layout import FileRange, Layout, NewFile, lay_out
from durastreamd.offline.repair.salvage import Salvage, Strays, Traces, salvage
from durastreamd.offline.verify.survey import StreamFiles
from durastreamd.offline.verify.verification import survey
from durastreamd.storage import format as fmt
from durastreamd.storage.index import HEADER_BYTES, Entry, IndexFile
from tests.support.damage import flip
from tests.support.moving_disk import MovingDisk

SEGMENT, INDEX = fmt.segment_path(1, 0), fmt.index_path(1, 0)


def saved(disk: MovingDisk) -> tuple[Salvage, StreamFiles]:
    seen = survey(disk)
    files = seen.files[1]
    traces = Traces(1, seen.listed[1], files, [], [], seen.torn_lsn, Strays({}, []))
    found = salvage(disk, traces)
    assert found is not None
    return found, files


def laid(disk: MovingDisk) -> Layout:
    found, files = saved(disk)
    made = lay_out(disk, found, files, [(0, found.stream.tail)])
    assert disk.open_handles == 0
    return made


def content(disk: MovingDisk, file: NewFile) -> bytes:
    parts = []
    for part in file.parts:
        if isinstance(part, FileRange):
            parts.append(disk.read(part.path)[part.at : part.at + part.size])
        else:
            parts.append(part)
    return b"".join(parts)


def entries_of(base: int, raw: bytes) -> list[Entry]:
    reader = IndexFile(1, base).reader(lambda size, at: raw[at : at + size], len(raw))
    return list(reader.entries())


def test_a_whole_segment_stays_and_a_new_one_begins_at_the_tail(disk: MovingDisk) -> None:
    found = laid(disk)
    assert found.kept == {SEGMENT, INDEX}
    (last,) = found.made
    assert last.path == fmt.index_path(1, 40)
    place = found.placement
    assert (place.base, place.segment_bytes, place.state_at, place.made) == (
        40,
        0,
        HEADER_BYTES,
        True,
    )
    data = content(disk, last)
    assert len(data) == place.index_bytes
    (state,) = IndexFile(1, 40).reader(lambda size, at: data[at : at + size], len(data)).entries()
    assert state.is_state


def test_what_is_left_of_a_broken_one_goes_into_new_files(disk: MovingDisk) -> None:
    flip(disk, SEGMENT, 15)
    made = {file.path: content(disk, file) for file in laid(disk).made}
    assert made[fmt.segment_path(1, 0)] == b"0" * 10
    assert made[fmt.segment_path(1, 20)] == b"2" * 10 + b"3" * 10
    raw = made[fmt.index_path(1, 20)]
    entries = list(
        IndexFile(1, 20).reader(lambda size, at: raw[at : at + size], len(raw)).entries()
    )
    assert [entry.is_state for entry in entries] == [True, False, False]
    assert [entry.frame.start for entry in entries[1:]] == [20, 30]


def test_where_only_the_index_broke_the_segment_s_file_is_kept(disk: MovingDisk) -> None:
    flip(disk, INDEX, 3)
    found = laid(disk)
    assert SEGMENT in found.kept
    assert fmt.index_path(1, 0) in {file.path for file in found.made}
    assert SEGMENT not in {file.path for file in found.made}


def test_what_nobody_reads_is_left_out(disk: MovingDisk) -> None:
    flip(disk, SEGMENT, 15)
    found, files = saved(disk)
    paths = {file.path for file in lay_out(disk, found, files, [(20, 40)]).made}
    assert fmt.segment_path(1, 0) not in paths
    assert fmt.segment_path(1, 20) in paths


def test_no_new_segment_is_larger_than_one_may_be(
    disk: MovingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "SEGMENT_BYTES_MAX", 10)
    flip(disk, SEGMENT, 5)
    made = {file.path: content(disk, file) for file in laid(disk).made}
    sizes = [len(data) for path, data in made.items() if path.endswith(".log")]
    assert sizes == [10, 10, 10]

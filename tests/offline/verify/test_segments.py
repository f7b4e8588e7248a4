"""Segments whose every checksum holds, and that are wrong all the same."""

import cbor2
import pytest

from durastreamd.model.records import Append, Create, Record
from durastreamd.model.stream_state import Detail, Stream
from durastreamd.offline.verify.segments import SegmentReport, SegmentTask, check_segment
from durastreamd.storage import format as fmt, index
from durastreamd.storage.checksum import payload_sum
from tests.support.damage import put
from tests.support.moving_disk import MovingDisk

CREATE = Create(1, 0, 0, 1000, 0, 0, [], "/a", "text/plain")
FIRST = Append(1, 0, 3, 1001, 0, 1, [3], producers=(("p", 0, 0),))

LAST = Append(1, 0, 3, 1001, 0, 1, [3], closes=True)


def state(**changes: object) -> Stream:
    """Return the stream as it is after both records, but for some changes."""
    stream = Stream(CREATE)
    stream.tail, stream.messages, stream.lsn, stream.plain = 3, 1, 2, False
    for name, value in changes.items():
        setattr(stream, name, value)
    return stream


def checked(*items: tuple[Record | Stream, int], producers: bool = True) -> SegmentReport:
    """Write an index of records and states, each with its lsn, and check it."""
    disk = MovingDisk()
    for directory in ("streams", "streams/01", fmt.stream_dir(1)):
        disk.make_directory(directory)
    raw = index.IndexFile(1, 0).header()
    for item, lsn in items:
        if isinstance(item, Stream):
            detail = Detail()
            if producers:
                detail.producers = {"p": (0, 0)}
            header = cbor2.dumps([item.row(), detail.row()])
            frame = fmt.StoredFrame(1, item.tail, 0, 1002, item.messages, 0, lsn, header, b"")
        else:
            total = payload_sum(b"abc"[: item.size], 1, item.start)
            place = (1, item.start, item.size, item.time_ms, item.ordinal, total, lsn)
            frame = fmt.StoredFrame(*place, item.header(), b"")
        is_state = isinstance(item, Stream)
        raw += index.IndexFile(1, 0).entry(frame, len(raw), is_state=is_state)
    put(disk, fmt.index_path(1, 0), raw)
    put(disk, fmt.segment_path(1, 0), b"abc")
    return check_segment(disk, SegmentTask(1, 0, "/a", None, None, deep=True, live=False))


def test_what_is_right_is_clean() -> None:
    assert checked((CREATE, 1), (FIRST, 2), (state(), 2)).findings == []


@pytest.mark.parametrize(
    ("kind", "items"),
    [
        ("state", [(CREATE, 1), (FIRST, 2), (state(messages=0), 2)]),
        ("state", [(CREATE, 1), (FIRST, 2), (state(key="/b"), 2)]),
        ("state", [(CREATE, 1), (FIRST, 2), (state(lsn=1), 2)]),
        ("state", [(CREATE, 1), (FIRST, 2), (state(id=2), 2)]),
        ("order", [(CREATE, 2), (FIRST, 1)]),
        ("order", [(CREATE, 1), (CREATE, 2)]),
        ("order", [(FIRST, 1)]),
        ("record", [(CREATE, 1), (Append(1, 0, 3, 1001, 0, 2, [1, 3]), 2)]),
        ("gap", [(CREATE, 1), (Append(1, 1, 2, 1001, 0, 1, [2]), 2)]),
        ("gap", [(CREATE, 1), (FIRST, 2), (Append(1, 4, 0, 1001, 1, 0, []), 3)]),
        ("order", [(CREATE, 1), (FIRST, 2), (Append(1, 3, 0, 1001, 0, 0, []), 3)]),
        ("order", [(CREATE, 1), (FIRST, 2), (Append(1, 3, 0, 1001, 1, 0, []), 2)]),
        ("order", [(CREATE, 1), (FIRST, 2), (Append(1, 3, 0, 900, 1, 0, []), 3)]),
        ("order", [(CREATE, 1), (Append(1, 0, 3, 999, 0, 1, [3]), 2)]),
        (
            "order",
            [(CREATE, 1), (LAST, 2), (Append(1, 3, 0, 1001, 1, 0, []), 3)],
        ),
    ],
)  # fmt: skip
def test_what_contradicts_itself_is_found(
    kind: str, items: list[tuple[Record | Stream, int]]
) -> None:
    assert kind in [finding.kind for finding in checked(*items).findings]


def test_a_state_without_a_producer_of_the_records_before_it_is_found() -> None:
    report = checked((CREATE, 1), (FIRST, 2), (state(), 2), producers=False)
    assert [finding.kind for finding in report.findings] == ["state"]

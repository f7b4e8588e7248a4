"""What hurt entries of an index prove: sums that fit, and nothing that merely looks right."""

import pytest

from durastreamd.model.records import Append
from durastreamd.offline.repair.pieces import SegmentBytes
from durastreamd.offline.repair.witnesses import EFFORT, Witness, Witnesses
from durastreamd.storage import format as fmt
from durastreamd.storage.checksum import payload_sum
from durastreamd.storage.index import HEADER_BYTES, IndexFile
from durastreamd.storage.scan import Gap

DATA = b"one record's bytes, another's bytes, and a third one's"
CUTS = ((0, 19), (19, 36), (36, len(DATA)))
FILE = IndexFile(7, 0)


def entry_of(low: int, high: int, position: int, lsn: int) -> bytes:
    record = Append(7, low, high - low, 1000, lsn, 1, [high - low], producers=(("p", 0, lsn),))
    total = payload_sum(DATA[low:high], 7, low)
    frame = fmt.StoredFrame(7, low, high - low, 1000, lsn, total, lsn, record.header(), b"")
    return FILE.entry(frame, position)


@pytest.fixture
def raw() -> bytearray:
    made = bytearray(FILE.header())
    for lsn, (low, high) in enumerate(CUTS):
        made += entry_of(low, high, len(made), lsn)
    return made


def places(raw: bytearray) -> list[int]:
    size = (len(raw) - HEADER_BYTES) // 3
    return [HEADER_BYTES + size * number for number in range(4)]


def witnesses(raw: bytearray, gap: Gap, edges: tuple[int, int]) -> list[Witness]:
    segment = SegmentBytes("a file", 0, len(DATA), lambda size, at: DATA[at : at + size])
    return list(Witnesses(FILE, bytes(raw), segment).of(gap, *edges))


def test_every_flipped_bit_of_an_entry_leaves_a_proof(raw: bytearray) -> None:
    low, high = places(raw)[1:3]
    for at in range(low, high):
        for bit in range(8):
            hurt = bytearray(raw)
            hurt[at] ^= 1 << bit
            (found,) = witnesses(hurt, Gap(low, high), (19, 36))
            assert (found.frame.start, found.frame.size) == (19, 17), (at, bit)
            known_from_elsewhere = at - low < 24 or 40 <= at - low < 48
            assert found.whole == known_from_elsewhere
            if found.whole:
                assert FILE.entry(found.frame, low) == raw[low:high], "put right"


def test_of_several_hurt_entries_each_proves_its_own(raw: bytearray) -> None:
    first, second, third, end = places(raw)
    for place in (first, second, third):
        raw[place + 26] ^= 1  # its time
    found = witnesses(raw, Gap(first, end), (0, -1))
    assert [(w.frame.start, w.frame.start + w.frame.size) for w in found] == list(CUTS)
    raw[second + 41] ^= 1  # and the sum of one
    found = witnesses(raw, Gap(first, end), (0, -1))
    assert [w.frame.start for w in found] == [0, 36]


def test_lengths_that_fit_prove_nothing(raw: bytearray) -> None:
    low, high = places(raw)[1:3]
    raw[low + 40 : low + 48] = bytes(8)  # the sum of the bytes
    raw[high - 1] ^= 1  # and the header, so the entry's own does not hold either
    assert witnesses(raw, Gap(low, high), (19, 36)) == []
    raw[low:high] = bytes(high - low)
    assert witnesses(raw, Gap(low, high), (19, 36)) == []


def test_the_effort_is_bounded_by_the_segment() -> None:
    """Every place pretends to be all of the segment; few of them are summed."""
    liar = fmt.ENTRY.pack(fmt.ENTRY_MAGIC, 1, len(DATA), 0, 0, 0, 1, 0, 0)
    raw = bytearray(FILE.header()) + liar * 500
    read = 0

    def count(size: int, at: int) -> bytes:
        nonlocal read
        read += size
        return DATA[at : at + size]

    found = Witnesses(FILE, bytes(raw), SegmentBytes("a file", 0, len(DATA), count))
    assert list(found.of(Gap(HEADER_BYTES, len(raw)), -1, -1)) == []
    assert 0 < read <= EFFORT * len(DATA)

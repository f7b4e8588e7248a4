"""The walk through damaged indexes and catalogues; of the journal see ``test_scan.py``."""

import cbor2
import pytest
from xxhash import xxh3_64_intdigest

from durastreamd.errors import CorruptDataError
from durastreamd.storage import catalog, format as fmt, index, scan
from durastreamd.storage.rows import BucketEndRow
from durastreamd.storage.scan import CROWDED_FACTOR, NESTED_MAX_ELSEWHERE, Gap
from tests.support.sim_disk import SimDisk

UUID = b"\x07" * 16
NOW = 1_700_000_000_000
APPEND = cbor2.dumps([0, [5]])


def test_an_index_is_read_on_after_a_bad_entry() -> None:
    file = index.IndexFile(3, 0)
    data = file.header()
    places = []
    for lsn in range(1, 6):
        places.append(len(data))
        frame = fmt.StoredFrame(3, 10 * lsn, 10, NOW, lsn, 1, lsn, APPEND, b"")
        data += file.entry(frame, len(data))
    rotten = bytearray(data)
    rotten[places[2] + 30] ^= 4
    items = list(file.walk(bytes(rotten)).items(index.HEADER_BYTES))
    assert [item.position for item in items] == places
    assert [isinstance(item, Gap) for item in items] == [False, False, True, False, False]


def test_the_torn_end_of_a_catalogue_costs_little_whatever_it_imitates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hashed = []

    def count(data: bytes, seed: int) -> int:
        hashed.append(len(data))
        return xxh3_64_intdigest(data, seed)

    monkeypatch.setattr(scan, "xxh3_64_intdigest", count)
    disk = SimDisk()
    disk.make_directory(fmt.CATALOG_DIR)
    writer = catalog.CatalogWriter.create(disk, UUID, catalog.Commit(1, 1, 1, []))
    path = fmt.catalog_path(writer.number)
    good = disk.read(path)
    fake = fmt.CATALOG_FRAME.pack(fmt.COMMIT_MAGIC, 40_000, 3, 0)
    data = good + (fake * 4000)
    walk = catalog.walk(data, catalog.file_seed(UUID, writer.number), 1)
    assert [type(item) for item in walk.items(len(good))] == [Gap]
    assert 0 < sum(hashed) <= (NESTED_MAX_ELSEWHERE + 1 + CROWDED_FACTOR) * len(data)
    handle = disk.open(path, write=True)
    disk.pwrite(handle, fake * 4000, len(good))
    assert catalog.load(disk, UUID).torn == fake * 4000


def test_a_later_checkpoint_behind_damage_is_seen() -> None:
    disk = SimDisk()
    disk.make_directory(fmt.CATALOG_DIR)
    writer = catalog.CatalogWriter.create(disk, UUID, catalog.Commit(1, 1, 1, []))
    ends = [writer.length]
    for lsn in (2, 3):
        writer.append(list(catalog.encode_rows([BucketEndRow("b")])), catalog.Commit(lsn, 1, 1, []))
        ends.append(writer.length)

    def rot(data: bytearray) -> None:
        data[ends[0] + 30] ^= 1

    disk.damage(fmt.catalog_path(writer.number), rot)
    with pytest.raises(CorruptDataError, match="damaged before its last checkpoint"):
        catalog.load(disk, UUID)

"""Every bit of a small data directory flipped, one at a time: detected, or provably harmless."""

import logging

import pytest

from durastreamd.errors import CorruptDataError, DataDirectoryError
from durastreamd.model.records import Mark
from durastreamd.offline.verify.verification import Scope, in_turn, verify
from tests.support.sim_disk import SimDisk
from tests.support.world import Dump, World, dump, start


def flipped(disk: SimDisk, path: str, bit: int) -> SimDisk:
    twin = disk.survivor()

    def flip(data: bytearray) -> None:
        data[bit // 8] ^= 1 << bit % 8

    twin.damage(path, flip)
    return twin


@pytest.fixture
def world() -> World:
    logging.getLogger("durastreamd").setLevel(logging.CRITICAL)
    world = World()
    world.create("/a")
    world.append("/a", b"first", producer=("p", 0, 0))
    world.create("/j", content_type="application/json")
    world.append("/j", b"1,\n", b"2,\n")
    return world


def bits(disk: SimDisk, path: str, step: int = 1) -> range:
    return range(0, len(disk.read(path)) * 8, step)


def surviving(found: Dump) -> Dump:
    return {key: fields for key, fields in found.items() if not fields[6]}


def open_quietly(disk: SimDisk) -> Dump | None:
    """Return the state, damaged streams told apart by name alone; None where opening is refused."""
    try:
        engine, _ = start(disk)
    except (CorruptDataError, DataDirectoryError):
        return None
    damaged = [key for key, stream in engine.namespace.by_key.items() if stream.damage]
    for key in damaged:
        stream = engine.namespace.by_key.pop(key)
        del engine.namespace.by_id[stream.id]
    return {**dump(engine), **dict.fromkeys(damaged, ("damaged",) * 7)}


def test_no_bit_of_the_journal_flips_unnoticed(world: World) -> None:
    """The mark after the last batch is its witness; the mark itself proves nothing and is cut."""
    world.commit([(Mark(world.now_ms), b"")])
    expected = dump(world.engine)
    path = f"journal/{world.disk.names('journal')[-1]}"
    refused = damaged = harmless = 0
    for bit in bits(world.disk, path):
        found = open_quietly(flipped(world.disk, path, bit))
        if found is None:
            refused += 1
        elif found == expected:
            harmless += 1
        else:
            damaged += 1
            for key, fields in expected.items():
                assert found.get(key) in (fields, ("damaged",) * 7), f"bit {bit}: {key}"
    mark_bits = 8 * (96 + 2)
    assert harmless <= mark_bits
    assert damaged > 300
    assert refused > 300


def test_no_bit_of_the_catalogue_flips_unnoticed(world: World) -> None:
    world.checkpoint()
    expected = dump(world.engine)
    path = f"catalog/{world.disk.names('catalog')[-1]}"
    for bit in bits(world.disk, path, 3):
        found = open_quietly(flipped(world.disk, path, bit))
        assert found is None or found == expected, f"bit {bit}"


def test_no_bit_of_the_identity_flips_unnoticed(world: World) -> None:
    for bit in bits(world.disk, "DURASTREAMD"):
        assert open_quietly(flipped(world.disk, "DURASTREAMD", bit)) is None


def two_segments(world: World, suffix: str) -> list[str]:
    """Fill a segment and begin another; return their files of one kind."""
    world.append("/a", b"z" * 250)
    world.checkpoint()
    world.append("/a", b"second", seq="1")
    world.checkpoint()
    paths = [path for path in world.disk.files() if path.endswith(suffix) and "0001/" in path]
    assert len(paths) == 2
    return paths


@pytest.mark.parametrize("suffix", [".log", ".idx"])
def test_no_bit_of_segments_and_indexes_flips_unnoticed(world: World, suffix: str) -> None:
    paths = two_segments(world, suffix)
    scope = Scope(deep=True)
    assert not verify(world.disk, scope, in_turn(world.disk))
    for path in paths:
        for bit in bits(world.disk, path):
            twin = flipped(world.disk, path, bit)
            findings = verify(twin, scope, in_turn(twin))
            assert findings, f"{path} bit {bit}"
            assert any(finding.path == path for finding in findings)


@pytest.mark.parametrize("suffix", [".log", ".idx"])
def test_no_reader_gets_a_byte_of_a_segment_whose_bits_flip(world: World, suffix: str) -> None:
    """The daemon's readers are asked: the truth, or nothing, and the file is named."""
    paths = two_segments(world, suffix)
    true = b"first" + b"z" * 250 + b"second"
    harmless = 0
    for path in paths:
        for bit in bits(world.disk, path):
            engine, _ = start(flipped(world.disk, path, bit))
            stream = engine.namespace.by_key["/a"]
            try:
                with engine.reading(stream) as view:
                    assert view.read(0, view.tail) == true, f"{path} bit {bit}"
            except CorruptDataError:
                assert path.rpartition(".")[0] in stream.damage
            else:
                harmless += 1
    # Of an index, the header of the file: nothing rests on it.
    assert harmless == (0 if suffix == ".log" else len(paths) * 8 * 40)


def test_the_daemon_refuses_a_stream_whose_detail_does_not_verify(world: World) -> None:
    world.checkpoint()
    stream = world.engine.namespace.by_key["/a"]
    path = f"streams/01/{stream.id:016x}/{0:016d}.idx"
    for bit in bits(world.disk, path, 5):
        if bit < 8 * 40:
            continue  # the file's header is for the verifier; no decision rests on it
        engine, _ = start(flipped(world.disk, path, bit))
        with pytest.raises(CorruptDataError):
            engine.load_detail(engine.namespace.by_key["/a"])

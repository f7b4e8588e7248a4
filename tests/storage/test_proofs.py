"""What a view reads is what was written, or it raises: for any damage, before and after a proof."""

import errno
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings, strategies as st

from durastreamd.engine.engine import Engine
from durastreamd.engine.view import View
from durastreamd.errors import ColdReadError, CorruptDataError, ReadFailedError
from durastreamd.storage import format as fmt, proofs
from durastreamd.storage.proofs import Proofs
from tests.support.fault_disk import FaultDisk
from tests.support.sim_disk import SimDisk
from tests.support.world import World, start

BLOCK = 16
KEY = "/s"


def world_of(bodies: list[bytes], key: str = KEY, *, world: World | None = None) -> World:
    """A stream with a record for each body, all in files; TINY ends a segment after 200 bytes."""
    world = world or World()
    world.create(key)
    for body in bodies:
        world.append(key, body)
        world.checkpoint()
    return world


def opened(disk: SimDisk) -> Engine:
    engine, _ = start(disk.survivor())
    engine.proofs.block_bytes = BLOCK
    return engine


def view_of(engine: Engine, key: str = KEY) -> View:
    return engine.view(engine.namespace.by_key[key])


def paths(engine: Engine, suffix: str, key: str = KEY) -> list[str]:
    directory = fmt.stream_dir(engine.namespace.by_key[key].id)
    return [f"{directory}/{n}" for n in engine.disk.names(directory) if n.endswith(suffix)]


def disk_of(engine: Engine) -> SimDisk:
    assert isinstance(engine.disk, SimDisk)
    return engine.disk


def served(engine: Engine, true: bytes, start: int, end: int, key: str = KEY) -> bool:
    """Read a range in both ways; tell whether it was given out, and then it must be right."""
    view = view_of(engine, key)
    try:
        assert view.read(start, end) == true[start:end]
        if start < end:
            assert bytes(view.lend(start, end, memoryview(bytearray(512)))) == true[start:end]
    except CorruptDataError:
        return False
    return True


# --- damage ---


def flip(rng: random.Random, data: bytearray, _other: bytes) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def zero(rng: random.Random, data: bytearray, _other: bytes) -> None:
    at = rng.randrange(len(data))
    data[at : at + 32] = bytes(len(data[at : at + 32]))


def cut(rng: random.Random, data: bytearray, _other: bytes) -> None:
    del data[rng.randrange(len(data)) :]


def extend(rng: random.Random, data: bytearray, _other: bytes) -> None:
    data += rng.randbytes(rng.randrange(1, 50))


def replace(_rng: random.Random, data: bytearray, other: bytes) -> None:
    data[:] = other


def shift(_rng: random.Random, data: bytearray, _other: bytes) -> None:
    data[:] = data[1:] + data[:1]


KINDS: list[Callable[[random.Random, bytearray, bytes], None]] = [
    flip,
    zero,
    cut,
    extend,
    replace,
    shift,
]
BODIES = st.lists(st.binary(min_size=1, max_size=90), min_size=1, max_size=10)


def hurt(engine: Engine, rng: random.Random) -> str:
    """Damage one file of the stream; what replaces it is its like of another stream."""
    suffix = rng.choice((".log", ".idx"))
    path = rng.choice(paths(engine, suffix))
    others = paths(engine, suffix, "/other")
    other = disk_of(engine).read(rng.choice(others))
    kind = rng.choice(KINDS)
    before = disk_of(engine).read(path)
    if before:
        disk_of(engine).damage(path, lambda data: kind(rng, data, other))
    return f"{kind.__name__} {path}"


def check_damages(bodies: list[bytes], seed: int) -> None:
    """Read, damage, read, over and over: never a wrong byte."""
    rng = random.Random(seed)
    true = b"".join(bodies)
    world = world_of(bodies)
    world_of([rng.randbytes(len(body)) for body in bodies], "/other", world=world)
    engine = opened(world.disk)
    assert served(engine, true, 0, len(true))
    engine = opened(world.disk)
    for _ in range(4):
        for _ in range(3):
            start = rng.randrange(len(true) + 1)
            served(engine, true, start, rng.randint(start, len(true)))
        told = hurt(engine, rng)
        served(engine, true, 0, len(true))
        if "replace" in told and ".log" in told:
            assert not served(engine, true, 0, len(true)), told


@settings(max_examples=60, deadline=None)
@given(BODIES, st.integers(0, 2**32))
def test_no_damage_is_ever_served(bodies: list[bytes], seed: int) -> None:
    check_damages(bodies, seed)


def test_every_bit_of_a_segment_is_seen_before_its_proof_and_after() -> None:
    bodies = [b"a" * 20, b"b" * 45, b"c" * 7]
    true = b"".join(bodies)
    world = world_of(bodies)
    proven = opened(world.disk)
    assert served(proven, true, 0, len(true))
    (path,) = paths(proven, ".log")
    for bit in range(8 * len(true)):

        def change(data: bytearray, bit: int = bit) -> None:
            data[bit // 8] ^= 1 << bit % 8

        fresh = opened(world.disk)
        for engine in (proven, fresh):
            disk_of(engine).damage(path, change)
            assert not served(engine, true, bit // 8, bit // 8 + 1), bit
            disk_of(engine).damage(path, change)
        assert served(proven, true, 0, len(true))


@pytest.mark.parametrize("mutant", ["unchecked", "records", "off by one", "too few"])
def test_a_proof_that_is_not_checked_is_seen(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if mutant == "unchecked":
        monkeypatch.setattr(Proofs, "_compare", lambda *_: None)
    elif mutant == "records":
        judge = proofs.Records._judge

        def judged(self: proofs.Records, _total: int) -> None:
            assert self._entry is not None
            judge(self, self._entry.frame.payload_sum)

        monkeypatch.setattr(proofs.Records, "_judge", judged)
    else:
        take = Proofs._take

        def taken(self: Proofs, table: object, path: str, start: int, stop: int) -> object:
            found = take(self, table, path, start, stop)  # type: ignore[arg-type]
            if found is None or len(found.sums) < 2:
                return found
            if mutant == "too few":
                return found._replace(sums=found.sums[:-1])
            return found._replace(sums=found.sums[1:] + found.sums[:1])

        monkeypatch.setattr(Proofs, "_take", taken)
    with pytest.raises(AssertionError):  # one of many damages is enough
        for seed in range(40):
            check_damages([b"%d" % n * (n % 7 * 9 + 1) for n in range(9)], seed)
        test_every_bit_of_a_segment_is_seen_before_its_proof_and_after()


# --- growth, and what is kept ---


def test_the_last_block_is_proven_anew_when_it_has_grown() -> None:
    world = World()
    world.engine.proofs.block_bytes = BLOCK
    world.create(KEY)
    true = b""
    for number in range(40):
        body = bytes([number]) * (number % 5 + 1)
        true += body
        before = world.engine.view(world.engine.namespace.by_key[KEY])
        world.append(KEY, body)
        world.flush()
        assert served(world.engine, true, 0, len(true))
        assert before.read(0, before.tail) == true[: before.tail]


def test_tables_are_bounded_and_made_anew() -> None:
    world = World()
    true: dict[str, bytes] = {}
    for number in range(8):
        true[f"/{number}"] = body = random.Random(number).randbytes(150)
        world_of([body[:75], body[75:]], f"/{number}", world=world)
    engine = opened(world.disk)
    engine.proofs = Proofs(engine.disk, engine.handles, 1500)
    for _ in range(3):
        for key, body in true.items():
            assert served(engine, body, 0, len(body), key)
            assert 0 < len(engine.proofs) <= 3
    assert engine.proofs._bytes <= 1500


def test_reading_in_pieces_reads_no_block_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = [random.Random(n).randbytes(37) for n in range(20)]
    true = b"".join(bodies)
    engine = opened(world_of(bodies).disk)
    assert served(engine, true, 0, len(true))
    view, buffer = view_of(engine), memoryview(bytearray(4 * BLOCK))
    disk, read = disk_of(engine), 0
    fill = disk.pread_into

    def counted(handle: int, part: memoryview, position: int, *, wait: bool = True) -> int:
        nonlocal read
        read += len(part)
        return fill(handle, part, position, wait=wait)

    monkeypatch.setattr(disk, "pread_into", counted)
    at, found = 5, b""
    while at < view.tail:
        end = view.piece_end(at, view.tail, len(buffer))
        assert at < end <= at + len(buffer)
        found += bytes(view.lend(at, end, buffer))
        at = end
    assert found == true[5:]
    assert read == len(true)  # the block that 5 lies in is read whole


def test_a_long_record_is_proven_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    body = random.Random(1).randbytes(5000)
    engine = opened(world_of([b"before", body]).disk)
    largest = 0
    fill = proofs.Proofs._fill

    def seen(self: Proofs, path: str, buffer: memoryview, position: int, *, wait: bool) -> None:
        nonlocal largest
        largest = max(largest, len(buffer))
        fill(self, path, buffer, position, wait=wait)

    monkeypatch.setattr(Proofs, "_fill", seen)
    assert view_of(engine).read(3000, 3010) == (b"before" + body)[3000:3010]
    assert largest == proofs._CHUNK_BLOCKS * BLOCK


# --- waiting ---


def test_only_a_small_stream_is_proven_without_waiting() -> None:
    world = world_of([b"x" * 10])
    world_of([b"y" * 100], "/larger", world=world)
    engine = opened(world.disk)
    small, large = view_of(engine), view_of(engine, "/larger")
    small.wait = large.wait = False
    assert small.read(0, 10) == b"x" * 10
    with pytest.raises(ColdReadError):
        large.read(0, 10)
    large.wait = True
    assert large.read(0, 10) == b"y" * 10
    large.wait = False
    assert large.read(0, 10) == b"y" * 10


# --- odd files ---


@pytest.mark.parametrize("suffix", [".log", ".idx"])
@pytest.mark.parametrize("code", [errno.EISDIR, errno.ELOOP, errno.ENOENT, errno.ENXIO])
def test_what_is_no_file_is_damage(suffix: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = opened(world_of([b"x" * 100]).disk)
    (bad,) = paths(engine, suffix)
    whole = engine.disk.open

    def refuse(path: str, *, create: bool = False, write: bool = False) -> int:
        if path == bad:
            raise OSError(code, "no")
        return whole(path, create=create, write=write)

    monkeypatch.setattr(engine.disk, "open", refuse)
    with pytest.raises(CorruptDataError, match=r"missing|cannot be used") as told:
        view_of(engine).read(0, 100)
    assert told.value.file == bad
    with pytest.raises(CorruptDataError), engine.reading(engine.namespace.by_key[KEY]) as view:
        view.read(0, 100)
    assert bad in engine.namespace.by_key[KEY].damage


@pytest.mark.parametrize("operation", ["open", "pread"])
@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.ETIMEDOUT])
def test_a_disk_that_fails_says_nothing_about_the_bytes(code: int, operation: str) -> None:
    disk = FaultDisk(world_of([b"x" * 100]).disk.survivor().root)
    engine, _ = start(disk)
    stream = engine.namespace.by_key[KEY]
    for number in range(1, 4):
        disk.refuse(code, (operation,))
        with pytest.raises(ReadFailedError, match="cannot be read"), engine.reading(stream) as view:
            view.read(0, 100)
        disk.mend()
        assert not stream.damage
        assert engine.failed_reads == number
        engine.handles.release()
        with engine.reading(stream) as view:
            assert view.read(0, 100) == b"x" * 100
        engine.handles.release()


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_running_out_is_no_damage(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = opened(world_of([b"x" * 100]).disk)
    whole = engine.disk.open

    def refuse(path: str, *, create: bool = False, write: bool = False) -> int:
        raise OSError(code, "no more")

    monkeypatch.setattr(engine.disk, "open", refuse)
    stream = engine.namespace.by_key[KEY]
    with pytest.raises(OSError, match="no more"), engine.reading(stream) as view:
        view.read(0, 100)
    assert not stream.damage
    monkeypatch.setattr(engine.disk, "open", whole)
    assert view_of(engine).read(0, 100) == b"x" * 100


# --- marking ---


def test_damage_in_an_ancestor_marks_it_and_refuses_who_read_it() -> None:
    world = world_of([b"x" * 30])
    world.fork("/fork", KEY, 30)
    world.append("/fork", b"own")
    world.checkpoint()
    engine = opened(world.disk)
    (path,) = paths(engine, ".log")
    disk_of(engine).damage(path, lambda data: data.__setitem__(3, 0))
    source, fork = (engine.namespace.by_key[key] for key in (KEY, "/fork"))
    with pytest.raises(CorruptDataError), engine.reading(fork) as view:
        view.read(0, 33)
    assert path in source.damage
    assert not fork.damage
    assert list(engine.damaged) == [source.id]
    with engine.reading(fork) as view:
        assert view.read(30, 33) == b"own"


def test_a_mark_is_kept_over_a_restart_and_goes_with_the_stream() -> None:
    world = world_of([b"x" * 30])
    stream = world.engine.namespace.by_key[KEY]
    world.engine.note_damage(CorruptDataError(fmt.segment_path(stream.id, 0), 7, "rot"))
    first = stream.damage
    world.engine.note_damage(CorruptDataError(fmt.segment_path(stream.id, 0), 8, "more rot"))
    world.engine.note_damage(CorruptDataError("catalog/x", 0, "nobody's"))
    assert stream.damage == first
    world.checkpoint()
    world.reopen()
    assert world.engine.namespace.by_key[KEY].damage == first
    assert list(world.engine.damaged) == [stream.id]
    world.delete(KEY)
    assert not world.engine.damaged

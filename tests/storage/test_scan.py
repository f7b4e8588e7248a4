"""The walk through damaged bytes: nothing real is passed over, and imitations cost little.

Effort is counted in hashes and bytes hashed, never in seconds.
"""

import logging
import math
import random
import re
from contextlib import nullcontext
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import cbor2
import pytest
from hypothesis import given, settings, strategies as st
from xxhash import xxh3_64_intdigest

from durastreamd.engine.engine import Engine
from durastreamd.engine.opening import Report, open_engine
from durastreamd.engine.options import EngineOptions
from durastreamd.model.draft import AppendCommand, Draft, Payload
from durastreamd.model.namespace import CreateCommand
from durastreamd.model.records import Append, Create, Mark
from durastreamd.storage import format as fmt, journal, scan
from durastreamd.storage.checksum import digest, payload_sum
from durastreamd.storage.scan import (
    CROWDED_BYTES,
    CROWDED_FACTOR,
    NESTED_MAX,
    Gap,
    first_lsn,
    journal_shape,
)
from tests.support.sim_disk import SimDisk
from tests.support.world import numbered_from_1

UUID = b"\x07" * 16
NOW = 1_700_000_000_000
SEED = journal.file_seed(UUID, 1)
HEAD = journal.FileHead(1, 0)
MIB = 1024 * 1024


class Effort(NamedTuple):
    """How many bytes were hashed: of heads, and of payloads."""

    heads: list[int]
    payloads: list[int]

    @property
    def total(self) -> int:
        return sum(self.heads) + sum(self.payloads)


@pytest.fixture
def effort(monkeypatch: pytest.MonkeyPatch) -> Effort:
    """Count what reading a journal hashes."""
    counted = Effort([], [])

    def count_head(data: bytes, base: int, position: int = 0) -> int:
        counted.heads.append(len(data))
        return digest(data, base, position)

    def count_payload(data: bytes, stream: int, start: int) -> int:
        counted.payloads.append(len(data))
        return payload_sum(data, stream, start)

    def count_place(data: bytes, seed: int) -> int:
        counted.heads.append(len(data))
        return xxh3_64_intdigest(data, seed)

    monkeypatch.setattr(scan, "xxh3_64_intdigest", count_place)
    monkeypatch.setattr(journal, "digest", count_head)
    monkeypatch.setattr(journal, "payload_sum", count_payload)
    return counted


# --- imitations ---


def spam(size: int, every: int) -> bytes:
    """The crudest imitation: a magic and the length of a long header, again and again."""
    unit = (fmt.FRAME_MAGIC + (size // 4).to_bytes(4, "little")).ljust(every, b"\0")
    return (unit * (size // every + 1))[:size]


def crude(size: int, kind: str) -> bytes:
    """Imitations that fail at one field after the other, as close to each other as they fit."""
    lengths = fmt.FRAME_MAGIC + (2).to_bytes(4, "little")
    unit = {
        "magic": fmt.FRAME_MAGIC,
        "header": lengths,
        "payload": lengths + bytes(8),
        "lsn": fmt.FRAME.pack(fmt.FRAME_MAGIC, 2, 5, 1, 0, NOW, 0, 0, 10**9, 1, 1, 0) + b"\x81\4",
        "durable": fmt.FRAME.pack(fmt.FRAME_MAGIC, 2, 5, 1, 0, NOW, 0, 0, 2, 10**9, 1, 0)
        + b"\x81\4",
        "array": fmt.FRAME.pack(fmt.FRAME_MAGIC, 2, 5, 1, 0, NOW, 0, 0, 2, 1, 1, 0) + b"\0\4",
    }[kind]
    return (unit * (size // len(unit) + 1))[:size]


def overlapping(size: int) -> bytes:
    """Structs inside structs, as close as fields allow: each word is several fields at once."""
    unit = fmt.FRAME_MAGIC + (2).to_bytes(4, "little") + (3).to_bytes(8, "little")
    unit += (0x81).to_bytes(8, "little")
    return (unit * (size // len(unit) + 1))[:size]


def careful(size: int, reach: int, *, unit: int = 96, first: int = 1) -> bytes:
    """The best imitation: every field as it could be, the header an array, heads inside heads."""
    bare = fmt.FRAME.pack(fmt.FRAME_MAGIC, reach, 5, 1, 0, NOW, 0, 0, first + 1, first, 1, 0)
    one = (bare + b"\x82\x00\x81\x05").ljust(unit, b"\0")
    return (one * (size // unit + 1))[:size]


# --- opening ---


def torn_write(body: bytes, *, older: bool = False) -> SimDisk:
    """Return a directory whose last write, of ``body``, was cut short: its first sector is lost."""
    logging.getLogger("durastreamd").setLevel(logging.CRITICAL)
    disk = SimDisk()
    with numbered_from_1() if older else nullcontext():
        engine = opened(disk, create=True)[0]
    outcome, drafted = engine.namespace.decide_create(CreateCommand("/a"), NOW)
    assert drafted is not None, outcome
    engine.commit([drafted])
    path = fmt.journal_path(engine.journal.number)
    begun = engine.journal.length
    draft = Draft(engine.namespace.by_key["/a"], 10)
    draft.decide(AppendCommand(Payload(body), "application/octet-stream"))
    engine.commit([draft.record(NOW)])
    engine.release()

    def lose(data: bytearray) -> None:
        data[begun : begun + 512] = b"\0" * 512

    disk.damage(path, lose)
    return disk


def opened(disk: SimDisk, *, create: bool = False) -> tuple[Engine, Report]:
    return open_engine(disk, EngineOptions(), lambda: UUID, NOW, create=create)


def opening_hashes(body: bytes, effort: Effort, *, older: bool = False) -> int:
    disk = torn_write(body, older=older)
    effort.heads.clear()
    effort.payloads.clear()
    engine, report = opened(disk)
    assert report.torn_bytes >= len(body)
    assert engine.namespace.by_key["/a"].tail == 0
    return effort.total


@pytest.mark.parametrize("every", [8, 88])
def test_imitated_heads_open_like_noise(every: int, effort: Effort) -> None:
    noise = opening_hashes(random.Random(1).randbytes(MIB), effort)
    imitated = opening_hashes(spam(MIB, every), effort)
    assert imitated <= 3 * max(noise, 1024)


@pytest.mark.parametrize("kind", ["magic", "header", "payload", "lsn", "durable", "array"])
def test_no_crude_imitation_is_ever_looked_at(kind: str, effort: Effort) -> None:
    """Whatever field gives it away, the pattern finds no place; the walk has nothing to do."""
    opening_hashes(crude(MIB, kind), effort, older=True)
    assert len(effort.heads) < 20
    assert not journal_shape(MIB, 1).place.search(crude(MIB, kind))


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(careful(MIB, 2, unit=fmt.FRAME.size + 2), id="heads side by side"),
        pytest.param(careful(MIB, 4 * 96), id="heads inside heads"),
        pytest.param(careful(MIB, MIB // 2), id="long heads"),
        pytest.param(overlapping(MIB), id="structs inside structs"),
        pytest.param(careful(MIB, 2, first=2**40 + 2**30), id="numbers as if drawn"),
    ],
)
def test_no_imitation_by_a_client_is_ever_looked_at(body: bytes, effort: Effort) -> None:
    """No client knows the sequence numbers, and they are what is looked for: no place, no try."""
    first = first_lsn(UUID)
    opening_hashes(body, effort)
    assert len(effort.heads) < 20
    pattern = journal_shape(MIB, first).place.pattern
    assert pattern.startswith(re.escape(first.to_bytes(8, "little")[3:]))
    assert first.to_bytes(8, "little")[3:6] not in body


def test_sequence_numbers_begin_where_nobody_guesses() -> None:
    drawn = {first_lsn(bytes([number]) * 16) for number in range(256)}
    assert len({lsn >> 24 for lsn in drawn}) == 256  # what the pattern knows of them differs
    assert all(2**40 <= lsn < 2**47 for lsn in drawn)
    disk = SimDisk()
    engine = opened(disk, create=True)[0]
    assert engine.journal.next_lsn == first_lsn(UUID)


def bytes_bound(size: int) -> int:
    return (NESTED_MAX + 1 + CROWDED_FACTOR) * size


def hashes_bound(size: int) -> int:
    return size // fmt.FRAME.size + CROWDED_FACTOR * size // CROWDED_BYTES + 20


def test_the_best_imitation_opens_within_the_bound(effort: Effort) -> None:
    size = MIB
    whole = size + 1024  # with what stands before it in the file
    first = first_lsn(UUID)  # known to somebody who reads the server's files
    # Each head holds as many others as may be; then more, and most are not even looked at.
    hashed = opening_hashes(careful(size, 4 * 96, first=first), effort)
    assert 4 * size < hashed <= bytes_bound(whole)
    assert len(effort.heads) <= hashes_bound(whole)
    for reach in (5 * 96, size // 2):
        assert opening_hashes(careful(size, reach, first=first), effort) <= bytes_bound(whole)
        assert len(effort.heads) <= hashes_bound(whole)
    assert opening_hashes(overlapping(size), effort, older=True) <= bytes_bound(whole)
    assert len(effort.heads) <= hashes_bound(whole)
    # As many short ones as there is room for.
    opening_hashes(careful(size, 2, unit=fmt.FRAME.size + 2, first=first), effort)
    assert size // 100 < len(effort.heads) <= hashes_bound(whole)


def test_however_many_places_are_bad_a_file_is_walked_twice(effort: Effort) -> None:
    """Every second record has rotted, and the mark at the end proves that all were durable."""
    disk = SimDisk()
    engine = opened(disk, create=True)[0]
    starts = []
    for number in range(120):
        outcome, drafted = engine.namespace.decide_create(
            CreateCommand(f"/{number}", payload=Payload(b"x" * 1000)), NOW
        )
        assert drafted is not None, outcome
        engine.commit([drafted])
        starts.append(engine.journal.length)
    engine.commit([(Mark(NOW), b"")])
    path, length = fmt.journal_path(engine.journal.number), engine.journal.length
    engine.release()

    def rot(data: bytearray) -> None:
        for end in starts[::2]:
            data[end - 1] ^= 1

    disk.damage(path, rot)
    effort.heads.clear()
    effort.payloads.clear()
    _, report = opened(disk)
    assert len(report.damaged) == 60
    assert effort.total <= 4 * length


# --- the walk itself ---


def frames_of(batches: list[list[tuple[int, bytes, bytes]]]) -> tuple[bytes, list[int]]:
    """Return a journal file of these (stream, header, payload), and where its frames begin."""
    disk = SimDisk()
    disk.make_directory(fmt.JOURNAL_DIR)
    writer = journal.JournalWriter(disk, UUID, 1, HEAD)
    places = []
    for batch in batches:
        position, lsn = writer.length, writer.next_lsn
        frames = []
        for number, (stream, header, payload) in enumerate(batch):
            total = payload_sum(payload, stream, 0)
            at = lsn + number
            frames.append(
                fmt.StoredFrame(stream, 0, len(payload), NOW, 0, total, at, header, payload)
            )
            places.append(position)
            position += fmt.FRAME.size + len(header) + len(payload)
        writer.commit(frames, writer.encode(frames))
    return disk.read(fmt.journal_path(1)), places


def walked(data: bytes) -> list[journal.JournalFrame | Gap]:
    return list(journal.walk(data, SEED, HEAD.first_lsn).items(fmt.JOURNAL_HEADER.size))


def found_at(data: bytes) -> list[int]:
    return [item.position for item in walked(data) if not isinstance(item, Gap)]


APPEND = cbor2.dumps([0, [5]])


@given(
    st.lists(
        st.tuples(
            st.integers(1, 5),
            st.sampled_from(["plain", "spam", "careful", "deep", "empty"]),
            st.booleans(),
        ),
        min_size=1,
        max_size=12,
    ),
    st.randoms(use_true_random=False),
)
@settings(max_examples=150, deadline=None)
def test_every_whole_frame_is_found_whatever_stands_before_it(
    plan: list[tuple[int, str, bool]], rng: random.Random
) -> None:
    bodies = {
        "plain": b"plain bytes",
        "spam": spam(5000, 8),
        "careful": careful(5000, 900),
        "deep": careful(5000, 4000),
        "empty": b"",
    }
    data, places = frames_of([[(stream, APPEND, bodies[kind])] for stream, kind, _ in plan])
    rotten = bytearray(data)
    for place, (*_, bad) in zip(places, plan, strict=True):
        if bad:
            rotten[place + rng.randrange(fmt.FRAME.size)] ^= 1 << rng.randrange(8)
    whole = [place for place, (*_, bad) in zip(places, plan, strict=True) if not bad]
    assert found_at(bytes(rotten)) == whole


def test_the_effort_is_bounded_for_the_best_imitation(effort: Effort) -> None:
    for reach in (1, 100, 4 * 96, 4 * 96 + 9, 24 * 96, 50_000):
        data = b"\0" * 64 + careful(200_000, reach)
        effort.heads.clear()
        assert [item[:2] for item in walked(data)] == [(64, len(data))]
        assert sum(effort.heads) <= bytes_bound(len(data))
        assert len(effort.heads) <= hashes_bound(len(data))


def test_crowded_places_are_hashed_while_the_extra_effort_lasts() -> None:
    places, header = 200, 40 * 96 - 1
    data = b"\0" * 64 + careful(places * 96, header)
    (gap,) = walked(data)
    assert isinstance(gap, Gap)
    crowded = places - 40  # the last forty reach too far
    hashed = CROWDED_FACTOR * len(data) // (header + CROWDED_BYTES)
    assert gap.passed == crowded - 1 - hashed  # the first was tried before the search began


def test_a_frame_right_behind_structs_inside_structs_is_found() -> None:
    """Those before it reach into its struct, and it has them crowded, not itself."""
    for end in range(24):
        decoys = overlapping(50_000 + end)
        data, places = frames_of([[(1, APPEND, decoys)], [(2, APPEND, b"whole")]])
        rotten = bytearray(data)
        rotten[places[0] + 20] ^= 1
        assert found_at(bytes(rotten)) == places[1:]


def test_sequence_numbers_out_of_range_cost_nothing(effort: Effort) -> None:
    """A frame's lsn cannot be larger than the frames that fit before it allow."""
    far = fmt.FRAME.pack(fmt.FRAME_MAGIC, 3, 5, 1, 0, NOW, 0, 0, 10**6, 1, 1, 0) + b"\x81\x00\0"
    list(journal.walk(b"\0" * 64 + far * 100, SEED, HEAD.first_lsn).items(64))
    assert len(effort.heads) == 1  # where a frame was expected
    list(journal.walk(b"\0" * 64 + far * 100, SEED).items(64))
    assert len(effort.heads) > 90


@given(st.integers(1, 2**48 - 2**32) | st.integers(1, 2**32), st.integers(0, 2**31), st.data())
def test_every_struct_that_could_be_real_is_a_place(
    first: int, size: int, data: st.DataObject
) -> None:
    lsn = data.draw(st.integers(first, first + size // fmt.FRAME.size))
    durable = data.draw(st.integers(first - 1, lsn - 1))
    payload = data.draw(st.integers(0, max(size, 2**30) - 1))
    ids = st.integers(0, 2**48) | st.just(2**64 - 1)
    fields = [data.draw(ids), *(data.draw(st.integers(0, 2**63)) for _ in range(4))]
    bare = (fmt.FRAME_MAGIC, 2, payload, *fields, lsn, durable, data.draw(ids), 2**64 - 1)
    for shape in (journal_shape(size, first), journal_shape(size, None)):
        assert shape.place.match(fmt.FRAME.pack(*bare) + b"\x81\4", shape.lead)


MAGIC = int.from_bytes(fmt.FRAME_MAGIC, "big")


def test_a_create_full_of_magics_is_found_after_damage() -> None:
    """Every integer a client or an accident could choose holds the magic."""
    record = Create(
        stream=7,
        start=0,
        size=0,
        time_ms=NOW,
        ordinal=0,
        count=0,
        lengths=[],
        key="/k",
        content_type="text/plain",
        ttl_ms=MAGIC,
        expires_ms=MAGIC << 8,
        source=MAGIC,
        anchor=MAGIC << 16,
        sub=MAGIC,
        floor=MAGIC << 8,
    )
    data, places = frames_of([[(1, APPEND, b"first")], [(7, record.header(), careful(4000, 800))]])
    rotten = bytearray(data)
    rotten[places[0] + 20] ^= 1
    assert found_at(bytes(rotten)) == places[1:]


def test_an_append_of_many_producers_whose_epochs_are_magics_is_found_after_damage() -> None:
    producers = tuple((f"p{n}", MAGIC << n % 3 * 8, 0) for n in range(2000))
    header = Append(7, 0, 0, NOW, 0, 1, [5], producers=producers).header()
    assert header.count(fmt.FRAME_MAGIC) == 2000
    data, places = frames_of([[(1, APPEND, b"first")], [(7, header, b"")]])
    rotten = bytearray(data)
    rotten[places[0] + 20] ^= 1
    assert found_at(bytes(rotten)) == places[1:]


# --- why real heads are not crowded ---

# Tokens of a list of producers, byte by byte: z may be zero, n is never zero; then how many of the
# bytes after the first are not all zero, since integers are written as short as they can be.
Token = tuple[str, int]
NUMBERS: list[Token] = [("z", 0), ("nn", 0), ("nnz", 0), ("nzzzz", 2), ("nzzzzzzzz", 4)]
SEQS = NUMBERS[:-1]  # nobody makes four thousand million appends to imitate one frame
APPENDS = {1: 0, 2: 24, 3: 256, 5: 65_536}  # what a seq of so many bytes takes
TEXTS: list[Token] = [
    *(("n" + "n" * size, 0) for size in range(1, 24)),
    ("nn" + "n" * 24, 0),
    ("nnz" + "n" * 256, 0),
]
ZEROS = {7, 12, 13, 14, 15, 62, 63, 70, 71}  # of every journal file


def fits(at: int, token: Token) -> bool:
    form, run = token
    if any(kind == "n" and at + number in ZEROS for number, kind in enumerate(form)):
        return False
    return not run or not all(at + 1 + number in ZEROS for number in range(run))


@cache
def appends_needed(at: int, turn: int) -> float:
    """Return how many appends it takes to have a struct's zeros in a list of producers."""
    if at > max(ZEROS):
        return 0
    choices = (SEQS, [("n", 0)], TEXTS, NUMBERS)[turn]
    return min(
        (
            appends_needed(at + len(form), (turn + 1) % 4) + (APPENDS[len(form)] if not turn else 0)
            for form, run in choices
            if fits(at, (form, run))
        ),
        default=math.inf,
    )


def test_no_list_of_producers_holds_a_place() -> None:
    """The magic is in an epoch of four bytes, or of eight with up to two of them after it."""
    assert [appends_needed(4 + after, 0) for after in range(3)] == [math.inf] * 3
    # These zeros are the pattern's.
    place = journal_shape(MIB, None).place
    whole = fmt.FRAME.pack(fmt.FRAME_MAGIC, 2**24 - 1, 2**30 - 1, *[1] * 9)
    assert place.match(whole + b"\x81")
    for zero in ZEROS:
        changed = bytearray(whole + b"\x81")
        changed[zero] = 1
        assert not place.match(changed), zero


@given(st.binary(min_size=0, max_size=40), st.integers(0, 60))
def test_places_are_at_least_sixteen_bytes_apart(junk: bytes, shift: int) -> None:
    """In the six integers that a header may end with there is room for NESTED_MAX."""
    data = (careful(400, 3) + overlapping(200) + junk)[shift:] + careful(200, 3)
    places = [match.start() for match in journal_shape(MIB, None).place.finditer(data)]
    assert all(second - first >= 16 for first, second in pairwise(places))
    assert NESTED_MAX >= (6 * 9 - 1) // 16 + 1

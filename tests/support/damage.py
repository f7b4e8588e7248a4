"""Damage to data directories, and what is known of them before and after.

``Damaged`` does what broken disks and hasty operators do: flips bits, zeroes blocks, cuts files
short, removes them, swaps two, adds what is not ours. All of it through ``SimDisk``.
"""

import random
from collections.abc import Iterator
from typing import NamedTuple, cast

from durastreamd.offline.repair.apply import Repair
from durastreamd.offline.repair.losses import TAKE, Keep
from durastreamd.offline.repair.plan import Plan, make_plan
from durastreamd.offline.verify.findings import Finding
from durastreamd.offline.verify.verification import Scope, examine, in_turn, verify
from durastreamd.storage import format as fmt, index, journal
from durastreamd.storage.checksum import payload_sum
from tests.support.moving_disk import MovingDisk
from tests.support.world import Dump, World, dump, random_step, start

UUID = b"\x07" * 16  # of every world
NEW_UUID = b"\x09" * 16

KINDS = ("flip", "zero", "truncate", "remove", "swap", "foreign", "grow")


def flip(disk: MovingDisk, path: str, position: int, bit: int = 0) -> None:
    def change(data: bytearray) -> None:
        data[position] ^= 1 << bit

    disk.damage(path, change)


def zero(disk: MovingDisk, path: str, position: int, size: int = 512) -> None:
    def change(data: bytearray) -> None:
        end = min(position + size, len(data))
        data[position:end] = bytes(end - position)

    disk.damage(path, change)


def truncate(disk: MovingDisk, path: str, size: int) -> None:
    def change(data: bytearray) -> None:
        del data[size:]

    disk.damage(path, change)


def put(disk: MovingDisk, path: str, content: bytes) -> None:
    def change(data: bytearray) -> None:
        data[:] = content

    if not disk.exists(path):
        disk.release(disk.open(path, create=True))
    disk.damage(path, change)


def swap(disk: MovingDisk, one: str, other: str) -> None:
    first, second = disk.read(one), disk.read(other)
    put(disk, one, second)
    put(disk, other, first)


def random_damage(disk: MovingDisk, rng: random.Random, kind: str) -> tuple[object, ...]:
    """Do one thing of a kind to a random file; return what was done."""
    path = rng.choice(sorted(disk.files()))
    size = len(disk.read(path))
    at = rng.randrange(max(size, 1))
    if kind == "flip" and size:
        flip(disk, path, at, rng.randrange(8))
    elif kind == "zero" and size:
        zero(disk, path, at)
    elif kind == "truncate":
        truncate(disk, path, at)
    elif kind == "remove":
        disk.unlink(path)
    elif kind == "swap":
        swap(disk, path, rng.choice(sorted(disk.files())))
    elif kind == "foreign":
        put(disk, f"{path.rpartition('/')[0]}/alien".lstrip("/"), b"not ours")
    elif kind == "grow":
        put(disk, path, disk.read(path) + b"\xff\xfeIE" + bytes(100))
    return kind, path, at


def random_world(seed: int, steps: int) -> World:
    rng = random.Random(seed)
    world = World()
    for _ in range(steps):
        world.step(random_step(world, rng), keep=False)
    return world


def verified(disk: MovingDisk, *, deep: bool = True) -> list[Finding]:
    return verify(disk, Scope(deep=deep), in_turn(disk))


def planned(disk: MovingDisk, **options: object) -> Plan:
    seen = examine(disk, Scope(deep=True), in_turn(disk))
    return make_plan(disk, seen, make_uuid=NEW_UUID, **options)  # type: ignore[arg-type]


def repaired(disk: MovingDisk, **options: object) -> Plan:
    """Repair a directory: plan, carry out, and check that nothing is left to do.

    Bytes without proof are taken where nothing else is said.
    """
    options.setdefault("keep", Keep(unproven=TAKE))
    plan = planned(disk, **options)
    assert not plan.undecided or not options["keep"].unproven  # type: ignore[attr-defined]
    if not plan.empty:
        with Repair(disk) as repair:
            repair.apply(plan)
    assert [str(finding) for finding in verified(disk)] == []
    assert planned(disk).empty
    assert not disk.open_handles
    return plan


def opened(disk: MovingDisk) -> Dump:
    """Start on a directory, and return everything a client could find out."""
    return dump(start(disk)[0])


class Shown(NamedTuple):
    """What a client could find out about one stream that a repair may change."""

    id: int
    floor: int
    tail: int
    closed: bool
    gone: bool
    producers: dict[str, tuple[int, int]]
    data: bytes

    def byte(self, position: int) -> int:
        return self.data[position - self.floor]


def shown(found: Dump) -> dict[str, Shown]:
    """Return the streams of a dump by name."""
    streams = {}
    for key, fields in found.items():
        if not key.startswith("bucket "):
            number, _, tail, floor, closed, gone, _, _, producers, _, _, _, data, *_ = fields
            known = dict(cast(tuple[tuple[str, tuple[int, int]], ...], producers))
            place = cast(tuple[int, int, int, bool, bool], (number, floor, tail, closed, gone))
            streams[key] = Shown(*place, known, cast(bytes, data))
    return streams


def losses_of(plan: Plan, key: str, *kinds: str) -> list[tuple[int, int]]:
    found = []
    if "unproven" in kinds:
        found += [run for told in plan.affected if told.stream == key for run in told.unproven]
    for loss in plan.losses:
        if loss["stream"] == key and "to" in loss and loss["what"] in kinds:
            low, high = loss["from"], loss["to"]
            assert isinstance(low, int)
            assert isinstance(high, int)
            found.append((low, high))
    return found


def surviving(disk: MovingDisk) -> Iterator[fmt.StoredFrame]:
    """Yield every record whose head and bytes verify where they are, found without dsadmin."""
    files = disk.files()
    for path, data in files.items():
        name = path.rpartition("/")[2]
        if path.startswith(fmt.JOURNAL_DIR) and fmt.numbered([name], ".jnl"):
            seed = journal.file_seed(UUID, int(name[:16]))
            for found in journal.frames(data, 0, seed, payloads=True):
                if found.payload_ok:
                    yield found.frame
        elif path.startswith(fmt.STREAMS_DIR) and fmt.numbered([name], ".idx"):
            stream, base = int(path.split("/")[2], 16), int(name[:16])
            segment = files.get(fmt.segment_path(stream, base), b"")
            yield from _entries(data, stream, base, segment)


def _entries(data: bytes, stream: int, base: int, segment: bytes) -> Iterator[fmt.StoredFrame]:
    file = index.IndexFile(stream, base)
    at = data.find(fmt.ENTRY_MAGIC)
    while at >= 0:
        entry = file.parse(data, at, at)
        if entry is not None:
            frame = entry.frame
            payload = segment[frame.start - base : frame.start - base + frame.size]
            if payload_sum(payload, stream, frame.start) == frame.payload_sum:
                yield frame
        at = data.find(fmt.ENTRY_MAGIC, at + 1)

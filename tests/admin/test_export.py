"""What is exported and imported again is the same, to the byte; what is damaged is refused."""

import argparse
import io
import itertools
import random

import cbor2
import msgspec
import pytest
from hypothesis import example, given, settings, strategies as st

from durastreamd.admin.carry.exporting import export_everything
from durastreamd.admin.carry.importing import bring_in
from durastreamd.admin.carry.items import (
    ITEM,
    SELF_DESCRIBED,
    End,
    ExportHead,
    ForkOf,
    Item,
    ItemReader,
    ItemWriter,
    RecordItem,
    SnapshotItem,
    StreamEnd,
    StreamItem,
)
from durastreamd.engine.engine import Engine
from durastreamd.errors import DurastreamError, StreamNameError, SyncFailedError
from durastreamd.kit.command import CommandError
from durastreamd.model.draft import AppendCommand, Draft, Payload
from durastreamd.model.stream_state import Stream
from durastreamd.offline.verify.verification import Scope, in_turn, verify
from durastreamd.protocol.outcomes import Duplicate, StaleEpoch
from tests.support.fault_disk import FAULTS, FaultDisk
from tests.support.sim_disk import SimDisk, crash_images
from tests.support.world import NOW, Dump, World, dump, random_step, start

CBOR = argparse.Namespace(format="cbor")


def exported(engine: Engine, streams: list[Stream] | None = None) -> bytes:
    out = io.BytesIO()
    chosen = list(engine.namespace.by_id.values()) if streams is None else streams
    chosen.sort(key=lambda stream: stream.id)
    export_everything(engine, chosen, out, NOW, whole=streams is None)
    return out.getvalue()


def imported(engine: Engine, data: bytes, renames: dict[str, str] | None = None) -> None:
    bring_in(engine, CBOR, (io.BytesIO(data), "export.cbor"), renames or {})


def without_ids(found: Dump) -> Dump:
    """Leave out what an import may choose anew: ids, and the blob's name and sum with them.

    And what no export holds: the sums of strict appends, which then are not known any more.
    """
    left: Dump = {}
    for key, (first, *rest) in found.items():
        if key.startswith("bucket "):
            left[key] = (first, *rest)
            continue
        blob = None if rest[4] else rest[9]  # a deleted stream shows none
        rest[9] = blob and (blob.position, blob.serial, blob.content_type, blob.size)  # type: ignore[attr-defined]
        left[key] = tuple(rest[:-3] + rest[-2:])
    return left


def lifetimes(engine: Engine) -> dict[str, tuple[int, ...]]:
    return {
        key: (s.created_ms, s.written_ms, s.accessed_ms, s.expires_ms, s.anchor, s.sub)
        for key, s in engine.namespace.by_key.items()
    }


def times(engine: Engine) -> dict[str, list[tuple[int, int]]]:
    """When each readable byte range was written: what a read by time goes by."""
    return {
        key: [(max(span.start, s.floor), span.time_ms) for span in engine.view(s).spans(s.floor)]
        for key, s in engine.namespace.by_key.items()
        if not s.gone
    }


def assert_verifies(engine: Engine) -> None:
    seen = verify(engine.disk, Scope(deep=True), in_turn(engine.disk))
    assert [str(finding) for finding in seen if not finding.harmless] == []


def random_world(seed: int, steps: int) -> World:
    rng = random.Random(seed)
    world = World()
    for _ in range(steps):
        world.step(random_step(world, rng), keep=False)
    world.reopen()
    return world


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 60))
@example(seed=92953, steps=17)  # a deleted stream with a snapshot, kept for a fork
def test_a_directory_comes_back_the_same(seed: int, steps: int) -> None:
    world = random_world(seed, steps)
    data = exported(world.engine)
    disk = SimDisk()
    engine, _ = start(disk, create=True)
    imported(engine, data)
    for _ in range(2):  # at once, and after a stop without a word
        assert without_ids(dump(engine)) == without_ids(dump(world.engine))
        assert lifetimes(engine) == lifetimes(world.engine)
        assert times(engine) == times(world.engine)
        assert_verifies(engine)
        assert exported(engine) == data
        disk = disk.survivor()
        engine, report = start(disk)
        assert not report.damaged


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32), steps=st.integers(5, 40), more=st.integers(1, 30))
def test_an_imported_directory_lives_on(seed: int, steps: int, more: int) -> None:
    data = exported(random_world(seed, steps).engine)
    world = World(serial=2**32)  # none that an imported snapshot has
    imported(world.engine, data)
    rng = random.Random(seed)
    for _ in range(more):
        world.step(random_step(world, rng), keep=False)
    before = dump(world.engine)
    assert not world.reopen().damaged
    assert dump(world.engine) == before
    assert_verifies(world.engine)


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), steps=st.integers(10, 60))
def test_a_stream_alone_reads_the_same(seed: int, steps: int) -> None:
    """A fork without its source is a stream of its own, with the same bytes at the same offsets."""
    world = random_world(seed, steps)
    space = world.engine.namespace
    here = without_ids(dump(world.engine))
    for stream in [one for one in space.by_id.values() if not one.gone]:
        engine, _ = start(SimDisk(), create=True)
        imported(engine, exported(world.engine, [stream]))
        there = without_ids(dump(engine))
        assert there[stream.key] == here[stream.key]
        assert times(engine) == {stream.key: times(world.engine)[stream.key]}
        assert_verifies(engine)
        engine.release()


def filled() -> World:
    """A world with one of each: producers, closure, JSON, a fork of a deleted source, snapshots."""
    world = World()
    world.bucket("logs", exists=True)
    world.bucket("idle", exists=True)
    world.create("logs/a", content_type="text/plain", ttl_ms=60_000)
    for number in range(40):
        world.now_ms += 5
        world.append("logs/a", b"line %d\n" % number, producer=("p", 3, number), seq=f"{number:04}")
        if number == 20:
            stream = world.engine.namespace.by_key["logs/a"]
            world.publish("logs/a", stream.tail, b"folded up to here")
            world.checkpoint()
    world.create("/json", content_type="application/json", payload=Payload(b"1,\n[2],\n", 2))
    world.append("/json", b'{"a":3},\n', producer=("q", 0, 0), closes=True)
    world.create("/source", content_type="application/octet-stream")
    world.append("/source", b"\x00\xff" * 50)
    world.append("/source", b"not the fork's", producer=("r", 1, 0))
    world.fork("/fork", "/source", 100)
    world.append("/fork", b"the fork's own", producer=("r", 7, 0))
    world.delete("/source")
    world.reopen()
    return world


def decided(engine: Engine, key: str, producer: tuple[str, int, int]) -> object:
    stream = engine.namespace.by_key[key]
    if engine.needs_loading(stream):
        stream.detail = engine.load_detail(stream)
    body = Payload(b"9,\n" if stream.json else b"again")
    command = AppendCommand(body, stream.content_type, closes=False, producer=producer)
    return Draft(stream, 10).decide(command)


def test_producers_are_still_fenced() -> None:
    engine, _ = start(SimDisk(), create=True)
    imported(engine, exported(filled().engine))
    assert isinstance(decided(engine, "logs/a", ("p", 3, 39)), Duplicate)
    assert isinstance(decided(engine, "logs/a", ("p", 2, 0)), StaleEpoch)
    assert isinstance(decided(engine, "/json", ("q", 0, 0)), Duplicate)
    assert isinstance(decided(engine, "/fork", ("r", 6, 0)), StaleEpoch)
    assert not isinstance(decided(engine, "/fork", ("r", 7, 1)), Duplicate | StaleEpoch)


def test_what_is_there_already_stays_and_names_do_not_clash() -> None:
    world = filled()
    data = exported(world.engine)
    before = dump(world.engine)
    with pytest.raises(CommandError, match=r"4 of 4 streams are there already: .*nothing was"):
        imported(world.engine, data)
    with pytest.raises(CommandError, match="holds no stream /nope"):
        imported(world.engine, data, {"/nope": "/other"})
    assert dump(world.engine) == before
    one = exported(world.engine, [world.engine.namespace.by_key["/fork"]])
    with pytest.raises(StreamNameError, match="cannot be a stream's name"):
        imported(world.engine, one, {"/fork": "UPPER/x"})
    imported(world.engine, one, {"/fork": "news/fork"})
    after = without_ids(dump(world.engine))
    assert after.pop("bucket news") == (1,)
    twin = after.pop("news/fork")
    assert after == without_ids(before)
    assert twin == after["/fork"]


@pytest.mark.parametrize(
    ("key", "told"), [("/json", "is closed and takes nothing"), ("/source", "was deleted")]
)
def test_a_stream_that_takes_nothing_is_left_alone(key: str, told: str) -> None:
    world = filled()
    before = dump(world.engine)
    args = argparse.Namespace(format="ndjson", stream=key, content_type=None, envelope=False)
    with pytest.raises(CommandError, match=f"{key} {told}.*; nothing was imported"):
        bring_in(world.engine, args, (io.BytesIO(b"1\n"), "in"), {})
    assert dump(world.engine) == before


def test_an_export_begins_with_self_described_cbor_and_every_tool_can_read_it() -> None:
    data = exported(filled().engine)
    assert data.startswith(SELF_DESCRIBED)
    stream = io.BytesIO(data)
    kinds: list[str] = []
    decoder = cbor2.CBORDecoder(stream)
    while stream.tell() < len(data) or not kinds or kinds[-1] != "end":
        item = decoder.decode()
        total, body = item.value if isinstance(item, cbor2.CBORTag) else item
        assert isinstance(total, int)
        inner = cbor2.loads(body.value) if isinstance(body, cbor2.CBORTag) else body
        kinds.append(inner["kind"])
    assert kinds[0] == "durastreamd-export"
    assert kinds.count("stream") == kinds.count("stream-end") == 4
    assert kinds[-1] == "end"


# --- damage ---


def test_a_cut_export_is_refused_wherever_it_was_cut() -> None:
    data = exported(filled().engine)
    engine, _ = start(SimDisk(), create=True)
    for length in range(0, len(data), 17):
        with pytest.raises(CommandError) as caught:
            imported(engine, data[:length])
        text = str(caught.value)
        assert "cut short" in text or "not a durastreamd export" in text
        assert f"byte {length}" in text or length < len(SELF_DESCRIBED)
        assert "nothing was imported" in text
        assert dump(engine) == {}
    with pytest.raises(CommandError, match=f"byte {len(data)}: bytes follow the end"):
        imported(engine, data + b"\0")
    assert dump(engine) == {}


def item_starts(data: bytes) -> list[int]:
    found, at = [], len(SELF_DESCRIBED)
    while at < len(data):
        found.append(at)
        at += ITEM.size + ITEM.unpack_from(data, at)[-1]
    return found


@settings(max_examples=60)
@given(draw=st.data())
def test_a_flipped_bit_is_found_in_its_item(draw: st.DataObject) -> None:
    data = SAMPLE
    at = draw.draw(st.integers(len(SELF_DESCRIBED), len(data) - 1))
    bad = bytearray(data)
    bad[at] ^= 1 << draw.draw(st.integers(0, 7))
    where = max(start for start in item_starts(data) if start <= at)
    engine, _ = start(SimDisk(), create=True)
    with pytest.raises(CommandError, match=f"byte {where}: .*nothing was imported"):
        imported(engine, bytes(bad))
    assert dump(engine) == {}


def test_an_item_left_out_or_repeated_is_found() -> None:
    starts = [*item_starts(SAMPLE), len(SAMPLE)]
    engine, _ = start(SimDisk(), create=True)
    for number, (low, high) in enumerate(itertools.pairwise(starts)):
        for bad in (SAMPLE[:low] + SAMPLE[high:], SAMPLE[:high] + SAMPLE[low:]):
            with pytest.raises(CommandError, match="byte"):
                imported(engine, bad)
            assert dump(engine) == {}, number


SAMPLE = exported(filled().engine)


# --- items that verify and make no sense: another program wrote the file ---


def items_of(data: bytes) -> list[Item]:
    return list(ItemReader(io.BytesIO(data), "in").items())


def written(items: list[Item]) -> bytes:
    out = io.BytesIO()
    writer = ItemWriter(out)
    for item in items:
        writer.write(item)
    return out.getvalue()


def changed(kind: type[Item], **members: object) -> bytes:
    """Return the sample with the first item of a kind changed, its checksum good."""
    items = items_of(SAMPLE)
    at = next(number for number, item in enumerate(items) if isinstance(item, kind))
    items[at] = msgspec.structs.replace(items[at], **members)
    return written(items)


NONSENSE = [
    (changed(ExportHead, version=2), "not an export of version 1"),
    (changed(ExportHead, names=["logs/a"]), "is not among the names"),
    (changed(ExportHead, names=["/json"] * 4), "has a name twice"),
    (changed(StreamItem, number=2), "streams are not in order"),
    (changed(StreamItem, name="/json"), "the stream /json is there twice|do not add up"),
    (changed(StreamItem, floor=10**9), "positions are out of order"),
    (changed(StreamItem, fork=ForkOf(9, 0, 0, 0)), "source is not in the export"),
    (changed(StreamItem, ttl_ms=-9), "not understood"),
    (changed(RecordItem, at=0), "the record is at 0, not"),
    (changed(RecordItem, messages=[1]), "do not add up"),
    (changed(RecordItem, messages=1), "do not add up"),
    (changed(RecordItem, time_ms=2**42), "older than the one before"),
    (changed(RecordItem, closes=True), "follows the end of a closed stream"),
    (changed(RecordItem, producers=[("p", 2**70, 0)]), "not understood"),
    (changed(SnapshotItem, size=3), "longer than its 3 bytes"),
    (changed(SnapshotItem, size=10**6), "has no place here"),
    (changed(SnapshotItem, position=10**9), "past the tail"),
    (changed(SnapshotItem, serial=7), "is not in the export"),
    (changed(StreamEnd, tail=5), "the stream should end as"),
    (changed(StreamEnd, producers=[("p", 3, 40)]), "the stream should end as"),
    (changed(StreamEnd, seq="9999"), "the stream should end as"),
    (changed(StreamEnd, closed=True), "the stream should end as"),
    (changed(End, records=1), "the export says"),
]


@pytest.mark.parametrize(("data", "told"), NONSENSE)
def test_nonsense_is_refused_by_name(data: bytes, told: str) -> None:
    engine, _ = start(SimDisk(), create=True)
    with pytest.raises(CommandError, match=told):
        imported(engine, data)
    assert dump(engine) == {}


@settings(max_examples=60)
@given(draw=st.data())
def test_any_order_of_items_is_refused_or_makes_a_sound_directory(draw: st.DataObject) -> None:
    items = items_of(SAMPLE)
    for _ in range(draw.draw(st.integers(1, 3))):
        at, other = (draw.draw(st.integers(0, len(items) - 1)) for _ in range(2))
        how = draw.draw(st.sampled_from(("drop", "repeat", "swap")))
        if how == "drop":
            del items[at]
        elif how == "repeat":
            items.insert(other, items[at])
        else:
            items[at], items[other] = items[other], items[at]
        if not items:
            return
    disk = SimDisk()
    engine, _ = start(disk, create=True)
    try:
        imported(engine, written(items))
    except CommandError:
        assert dump(engine) == {}
    engine.release()
    settled(disk.survivor())


# --- an import that does not come to its end ---


def base_world(disk: SimDisk) -> tuple[World, Dump]:
    """A directory that holds something, to be imported into."""
    world = World(disk)
    world.create("/mine", content_type="text/plain")
    world.append("/mine", b"before", producer=("m", 0, 0))
    world.checkpoint()
    return world, dump(world.engine)


def settled(disk: SimDisk) -> Dump:
    """What the directory is found as afterwards; nothing half-imported is left in it, either."""
    engine, report = start(disk)
    assert not report.damaged
    assert_verifies(engine)
    found = dump(engine)
    engine.release()
    directories = {path.split("/")[2] for path in disk.files() if path.startswith("streams/")}
    assert directories == {f"{stream:016x}" for stream in engine.namespace.by_id}
    return found


# Each with a time of its own, so each is a record: more than the tiny journal takes in one file.
LINES = b"".join(b'{"text":"more %d","time":%d}\n' % (n, NOW + 1000 * n) for n in range(120))
WAYS: list[tuple[argparse.Namespace, bytes]] = [
    (CBOR, SAMPLE),
    (
        argparse.Namespace(format="ndjson", stream="/mine", content_type=None, envelope=True),
        LINES,
    ),
    (
        argparse.Namespace(
            format="ndjson", stream="/new", content_type="text/plain", envelope=True
        ),
        LINES,
    ),
]


@pytest.mark.parametrize(("args", "data"), WAYS)
def test_killed_anywhere_nothing_or_everything_is_there(
    args: argparse.Namespace, data: bytes
) -> None:
    world, before = base_world(SimDisk())
    images: list[SimDisk] = []
    world.disk.hook = lambda *_: images.append(world.disk.survivor())
    bring_in(world.engine, args, (io.BytesIO(data), "in"), {})
    world.disk.hook = None
    after = dump(world.engine)
    assert after != before
    world.engine.release()
    rng = random.Random(5)
    found = [settled(image) for image in images]
    step = max(len(images) // 25, 1)
    for image in images[::step]:
        found += [settled(cut) for cut in crash_images(image, rng, cap=2)]
    assert all(one in (before, after) for one in found)
    assert found[0] == before
    assert found[len(images) - 1] == after


def after_import(args: argparse.Namespace, data: bytes) -> Dump:
    world, _ = base_world(SimDisk())
    bring_in(world.engine, args, (io.BytesIO(data), "in"), {})
    return dump(world.engine)


AFTER = [after_import(*way) for way in WAYS]


@settings(max_examples=60)
@given(
    way=st.sampled_from(range(len(WAYS))),
    at=st.integers(1, 120),
    fault=st.sampled_from(FAULTS),
    persistent=st.booleans(),
)
def test_a_failing_disk_leaves_nothing_or_everything(
    way: int, at: int, fault: int | str, *, persistent: bool
) -> None:
    args, data = WAYS[way]
    disk = FaultDisk()
    world, before = base_world(disk)
    disk.fail_at, disk.fault, disk.period = disk.calls + at, fault, int(persistent)
    legal = [AFTER[way]]
    try:
        bring_in(world.engine, args, (io.BytesIO(data), "in"), {})
    except SyncFailedError:
        legal.append(before)  # nobody can say; but one of the two it is
    except (DurastreamError, OSError):
        legal = [before]
    disk.fail_at = 0
    assert settled(disk.survivor()) in legal

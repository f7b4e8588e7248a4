"""An engine on a simulated disk, driven by operations, with what it must be found as afterwards.

``World.step`` does one operation. While it runs, every change of the disk is a crash point and the
disk is kept as it was there. When it is done we know which logical states a crash may leave: the
one before, or the one after each record of the operation, in order. ``dump`` is that logical
state: everything a client could find out.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import NamedTuple

from durastreamd.engine import checkpoint as cp
from durastreamd.engine.engine import HOT_RECORD_BYTES, Engine
from durastreamd.engine.opening import Report, open_engine
from durastreamd.engine.options import EngineOptions
from durastreamd.errors import ReadFailedError, WriteFailedError
from durastreamd.model import retention
from durastreamd.model.draft import AppendCommand, Conditions, Draft, Payload
from durastreamd.model.namespace import CreateCommand, ForkPoint
from durastreamd.model.records import Producer, Record, Snapshot, Touch
from durastreamd.model.retention import Change
from durastreamd.model.stream_state import Detail, Stream, check_invariants
from durastreamd.model.subscription import SubscriptionState
from durastreamd.protocol.outcomes import Outcome
from durastreamd.storage import datadir, format as fmt, log, scan
from durastreamd.storage.blobs import BlobWriter
from durastreamd.storage.disk import read_file
from durastreamd.storage.extensions import RETENTION, STRICT_PRODUCERS, SUBSCRIPTIONS
from durastreamd.storage.format import StoredFrame
from tests.support.sim_disk import SimDisk

TINY = EngineOptions(
    journal_bytes_max=4096,
    segment_bytes_max=200,
    hot_bytes_max=600 + 3 * HOT_RECORD_BYTES,
    state_every_bytes=300,
    handles_max=8,
    syncs_max=6,
    slice_streams=2,
    producers_max=50,
)
NOW = 1_700_000_000_000

Dump = dict[str, tuple[object, ...]]


@contextmanager
def numbered_from_1() -> Iterator[None]:
    """Make directories as older versions did: the first lsn is 1, as everybody may know."""
    drawn, scan.first_lsn = scan.first_lsn, lambda uuid: 1
    try:
        yield
    finally:
        scan.first_lsn = drawn


def start(disk: SimDisk, *, create: bool = False, now_ms: int = NOW) -> tuple[Engine, Report]:
    return open_engine(disk, TINY, lambda: b"\x07" * 16, now_ms, create=create)


def dump(engine: Engine) -> Dump:
    """Return everything a client could find out, and check what must always hold."""
    found: Dump = {}
    for name, bucket in engine.namespace.buckets.items():
        found[f"bucket {name}"] = (bucket.streams,)
    for key, stream in engine.namespace.by_key.items():
        check_invariants(stream)
        # Looking must not load: a stream at rest stays at rest.
        at_rest = stream.detail is None and not stream.plain
        detail = engine.load_detail(stream) if at_rest else stream.detail or Detail()
        view = engine.view(stream)
        assert view.tail == stream.tail
        # A deleted stream is read by its forks alone, and what they do not read may be gone.
        data = b"" if stream.gone else view.read(stream.floor, stream.tail)
        ends = () if stream.gone else tuple(end for _, end in view.messages(stream.floor))
        assert ends[-1:] in ((stream.tail,), ())
        if stream.snapshot is not None and not stream.gone:
            shown = stream.snapshot
            path = fmt.snapshot_path(shown.owner, shown.position, shown.serial)
            assert len(read_file(engine.disk, path)) == shown.size
        found[key] = (
            stream.id,
            stream.content_type,
            stream.tail,
            stream.floor,
            stream.closed,
            stream.gone,
            stream.damage,
            stream.messages,
            tuple(sorted(detail.producers.items())),
            detail.seq,
            stream.snapshot,
            stream.ttl_ms,
            data,
            ends,
            tuple(detail.sums.items()),
            stream.trimmed,
            stream.policy,
        )
    found |= dump_subscriptions(engine)
    return found


def dump_subscriptions(engine: Engine) -> Dump:
    """Return all that is known of subscriptions, and check that none is asleep (W4)."""
    held = engine.subscriptions
    found: Dump = {f"tombstone {key}": (top,) for key, top in held.tombstones.items()}
    for (root, name), each in held.by_id.items():
        each.check()
        if each.state is SubscriptionState.IDLE and each.pending:
            assert each in held.stirred, f"{each} is asleep"
        links = sorted((link.path, link.marks, link.cursor) for link in each.links.values())
        config, head = each.config, each.head
        found[f"subscription {root}/{name}"] = (each.incarnation, config, head, tuple(links))
    if found:
        assert SUBSCRIPTIONS in datadir.read_identity(engine.disk).extensions
    return found


def unreferenced(engine: Engine, disk: SimDisk) -> list[str]:
    """Return files of a disk that nothing of an engine's refers to: of ended streams, and blobs."""
    space = engine.namespace
    kept: set[str] = set()
    for stream in space.by_id.values():
        kept |= cp.blobs_kept(engine, stream)
    found = []
    for path in disk.files():
        stream_id = fmt.stream_of(path)
        if stream_id is not None:
            orphan = stream_id not in space.by_id
            found += [path] if orphan or (path.endswith(".snap") and path not in kept) else []
    return found


def passed(engine: Engine) -> list[str]:
    """Return segments that retention has passed and that are still there."""
    space = engine.namespace
    found = []
    for stream in space.by_id.values():
        bases = log.bases(engine.disk, stream.id, engine.placements[stream.id].base)
        lowest = space.retained_from(stream)
        found += [fmt.segment_path(stream.id, a) for a, b in pairwise(bases) if b <= lowest]
    return found


def _only_steps(flushing: cp.Flushing) -> cp.Steps:
    """A flush that fails as a whole if that of any stream does."""
    failed = yield from flushing
    for error in failed.values():
        raise error


class CrashPoint(NamedTuple):
    """The disk after one of its operations, and what a crash there may be found as."""

    disk: SimDisk
    operation: str
    legal: list[Dump]


class World:
    """One engine and its history."""

    def __init__(self, disk: SimDisk | None = None, *, serial: int = 0) -> None:
        self.disk = disk or SimDisk()
        self.engine, _ = start(self.disk, create=True)
        self.now_ms = NOW
        self.points: list[CrashPoint] = []
        self._history: list[Dump] = []  # the states of this step, in order
        self._acked = 0  # how many of them are acknowledged, less one
        self._committing = False
        self._serial = serial  # of snapshots; a server draws them by lot

    def step(self, operation: Callable[[], object], *, keep: bool = True) -> object:
        """Do one operation, keeping the disk at each of its crash points."""
        self.now_ms += 10
        self._history, self._acked = [dump(self.engine) if keep else {}], 0
        caught: list[tuple[SimDisk, str, int, bool]] = []
        if keep:
            self.disk.hook = lambda name, path: caught.append(
                (self.disk.survivor(), f"{name} {path}", self._acked, self._committing)
            )
        result = operation()
        self.disk.hook = None
        caught.append((self.disk.survivor(), "acknowledged", self._acked, False))
        ends = sorted({acked for *_, acked, _ in caught})
        for disk, name, acked, committing in caught:
            # What was acknowledged must be there. A batch on its way may be, up to any record.
            end = next((other for other in ends if other > acked), acked) if committing else acked
            self.points.append(CrashPoint(disk, name, self._history[acked : end + 1]))
        return result

    def look(self) -> Dump:
        """Return the state as it is now."""
        return dump(self.engine)

    def commit(self, records: list[tuple[Record, bytes | memoryview]]) -> None:
        """Make records durable and apply them, noting the state after each."""
        engine = self.engine
        original = engine.applied

        def applied(record: Record, frame: StoredFrame) -> list[Stream]:
            ended = original(record, frame)
            self._history.append(self.look())
            return ended

        engine.applied = applied  # type: ignore[method-assign]
        self._committing = True
        try:
            engine.commit(records)
        finally:
            engine.applied = original  # type: ignore[method-assign]
            self._committing = False
        self._acked = len(self._history) - 1

    # --- operations ---

    def create(self, key: str, **options: object) -> Outcome:
        command = CreateCommand(key, **options)  # type: ignore[arg-type]
        outcome, drafted = self.engine.namespace.decide_create(command, self.now_ms)
        if drafted:
            self.commit([drafted])
        return outcome

    def append(
        self,
        key: str,
        *bodies: bytes,
        producer: Producer | None = None,
        closes: bool = False,
        seq: str | None = None,
    ) -> Outcome:
        return self.append_many([(key, bodies, producer, closes, seq)])[-1]

    def append_many(
        self, appends: list[tuple[str, tuple[bytes, ...], Producer | None, bool, str | None]]
    ) -> list[Outcome]:
        """Append to several streams in one batch."""
        outcomes: list[Outcome] = []
        records: list[tuple[Record, bytes | memoryview]] = []
        for key, bodies, producer, closes, seq in appends:
            stream = self.engine.namespace.find(key, self.now_ms)
            if not isinstance(stream, Stream):
                outcomes.append(stream)
                continue
            if self.engine.needs_loading(stream):
                stream.detail = self.engine.load_detail(stream)
            draft = Draft(stream, TINY.producers_max)
            for body in bodies or (None,):
                payload = None if body is None else Payload(body, body.count(b",\n") or 1)
                strict = None
                if producer and len(body or b"") != 7:  # some appends of one are not strict
                    strict = Conditions(sum=f"{len(body or b''):016x}")
                    self.engine.extend(STRICT_PRODUCERS)
                command = AppendCommand(payload, stream.content_type, closes, producer, seq, strict)
                outcomes.append(draft.decide(command))
            if not draft.empty:
                records.append(draft.record(self.now_ms))
        if records:
            self.commit(records)
        return outcomes

    def delete(self, key: str) -> Outcome:
        outcome, record = self.engine.namespace.decide_delete(key, self.now_ms)
        if record:
            self.commit([(record, b"")])
        return outcome

    def fork(self, key: str, source: str, position: int) -> Outcome:
        found = self.engine.namespace.by_key[source]
        ordinal = self.engine.view(found).ordinal_at(position)
        return self.create(key, fork=ForkPoint(source, position, ordinal, position))

    def publish(self, key: str, position: int, blob: bytes) -> Outcome:
        stream = self.engine.namespace.by_key[key]
        # As the service does: who is refused before the upload leaves no trace, not even a touch.
        wanted = Snapshot(stream.id, position, 0, "text/plain", 0, 0)
        outcome, record = self.engine.namespace.decide_publish(key, wanted, self.now_ms)
        if record is None:
            return outcome
        writer = self._upload(stream, position, blob)
        place = (stream.id, position, self._serial)
        snapshot = Snapshot(*place, "text/plain", writer.size, writer.sum)
        outcome, record = self.engine.namespace.decide_publish(key, snapshot, self.now_ms)
        try:
            if record:
                self.commit([(record, b"")])
        except WriteFailedError:
            record = None
            raise
        finally:
            self.engine.end_upload(stream.id, None if record else writer.path)
        return outcome

    def retain(self, key: str, floor: int, policy: int) -> None:
        stream = self.engine.namespace.by_key[key]
        if self.engine.needs_loading(stream):
            stream.detail = self.engine.load_detail(stream)
        if record := retention.decide(stream, Change(floor, size=policy), self.now_ms):
            self.engine.extend(RETENTION)
            self.commit([(record, b"")])

    def _upload(self, stream: Stream, position: int, blob: bytes) -> BlobWriter:
        self.touch(stream.key)
        self._serial += 1
        writer = BlobWriter(self.disk, stream.id, position, self._serial)
        self.engine.begin_upload(stream.id)
        try:
            writer.write(blob)
            writer.finish()
        except WriteFailedError:
            writer.discard()
            self.engine.end_upload(stream.id, writer.path)
            raise
        return writer

    def upload_in_vain(self, key: str, between: Callable[[], object]) -> None:
        """Upload a snapshot that is given up at the last moment, whatever happens meanwhile."""
        stream = self.engine.namespace.by_key[key]
        writer = self._upload(stream, stream.tail, b"in vain")
        between()
        writer.discard()
        self.engine.end_upload(stream.id, writer.path)

    def touch(self, key: str) -> None:
        stream = self.engine.namespace.by_key[key]
        self.commit([(Touch(stream.id, stream.tail, self.now_ms, stream.messages), b"")])

    def bucket(self, name: str, *, exists: bool) -> Outcome:
        outcome, record = self.engine.namespace.decide_bucket(name, self.now_ms, exists=exists)
        if record:
            self.commit([(record, b"")])
        return outcome

    def checkpoint(self) -> None:
        self.engine.journal.rotate()
        cp.run(cp.checkpoint(self.engine))

    def checkpoint_under_load(self, between: Callable[[], object]) -> None:
        """Take a checkpoint while other operations go on between its steps."""
        self.engine.journal.rotate()
        steps = cp.checkpoint(self.engine)
        try:
            job = next(steps)
            while True:
                between()
                try:
                    result = cp.attempt(job)
                except WriteFailedError as exc:
                    job = steps.throw(exc)
                    continue
                between()
                job = steps.send(result)
        except StopIteration:
            return

    def flush(self) -> None:
        streams = [self.engine.namespace.by_id[stream] for stream in self.engine.hot]
        cp.run(_only_steps(cp.flush_slice(self.engine, streams)))

    def reopen(self) -> Report:
        """Stop without a word and open again, as after kill -9."""
        self.disk = self.disk.survivor()
        self.engine, report = start(self.disk, now_ms=self.now_ms)
        return report


def random_step(world: World, rng: random.Random) -> Callable[[], object]:
    """Choose an operation that fits the world as it is."""
    space = world.engine.namespace
    usable = [
        key
        for key in space.by_key
        if isinstance(space.find(key, world.now_ms), Stream) and not space.by_key[key].damage
    ]
    open_ones = [key for key in usable if not space.by_key[key].closed]
    choices: list[tuple[int, Callable[[], object]]] = [
        (3, lambda: world.create(f"/s{rng.randrange(5)}", **_birth(rng))),
        (1, lambda: world.bucket(rng.choice(("logs", "docs")), exists=rng.random() < 0.7)),
        (2, lambda: world.create(f"logs/{rng.randrange(3)}", content_type="text/plain")),
        (2, world.checkpoint),
        (2, lambda: world.checkpoint_under_load(lambda: _meanwhile(world, rng))),
        (2, world.flush),
        (1, world.reopen),
    ]
    if open_ones:
        choices += [
            (8, lambda: _append(world, rng, open_ones)),
            (
                3,
                lambda: world.append_many(
                    [_one(world, rng, key) for key in _several(rng, open_ones)]
                ),
            ),
            (1, lambda: world.append(rng.choice(open_ones), closes=True)),
            (1, lambda: _append_last(world, rng, rng.choice(open_ones))),
        ]
    if usable:
        choices += [
            (2, lambda: world.delete(rng.choice(usable))),
            (2, lambda: _fork(world, rng, rng.choice(usable))),
            (1, lambda: _publish(world, rng, rng.choice(usable))),
            (1, lambda: _retain(world, rng, rng.choice(usable))),
            (1, lambda: world.upload_in_vain(rng.choice(usable), lambda: _meanwhile(world, rng))),
            (1, lambda: world.touch(rng.choice(usable))),
        ]
    weights = [weight for weight, _ in choices]
    return rng.choices([operation for _, operation in choices], weights)[0]


def _meanwhile(world: World, rng: random.Random) -> None:
    """Something small that may happen between two steps of a checkpoint; it may be refused."""
    if rng.random() < 0.5:
        return
    with suppress(WriteFailedError, ReadFailedError, OSError):
        _something(world, rng)


def _something(world: World, rng: random.Random) -> None:
    space = world.engine.namespace
    usable = [key for key in space.by_key if isinstance(space.find(key, world.now_ms), Stream)]
    open_ones = [key for key in usable if not space.by_key[key].closed]
    kind = rng.randrange(6)
    if kind == 0:
        world.create(f"/s{rng.randrange(5)}", **_birth(rng))
    elif kind == 1 and usable:
        world.delete(rng.choice(usable))
    elif kind == 2 and usable:
        _fork(world, rng, rng.choice(usable))
    elif kind == 3:
        world.bucket(rng.choice(("logs", "docs")), exists=rng.random() < 0.5)
    elif open_ones:
        _append(world, rng, open_ones)


def _birth(rng: random.Random) -> dict[str, object]:
    json = rng.random() < 0.3
    return {
        "content_type": "application/json" if json else "application/octet-stream",
        "payload": Payload(b"1,\n22,\n", 2) if json and rng.random() < 0.5 else None,
        "closes": rng.random() < 0.1,
        "ttl_ms": 60_000 if rng.random() < 0.2 else None,
    }


def _body(rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice((1, 7, 60, 300)))


def _several(rng: random.Random, keys: list[str]) -> list[str]:
    return rng.sample(keys, min(3, len(keys)))


def _one(
    world: World, rng: random.Random, key: str
) -> tuple[str, tuple[bytes, ...], Producer | None, bool, str | None]:
    stream = world.engine.namespace.by_key[key]
    bodies = (b'{"a":1},\n', b"[2],\n") if stream.json else (_body(rng), _body(rng))
    return key, bodies[: rng.randint(1, 2)], None, False, None


def _append(world: World, rng: random.Random, keys: list[str]) -> Outcome:
    key = rng.choice(keys)
    stream = world.engine.namespace.by_key[key]
    if world.engine.needs_loading(stream):
        stream.detail = world.engine.load_detail(stream)
    producer = None
    if rng.random() < 0.6:
        name = f"p{rng.randrange(3)}"
        epoch, seq = stream.loaded().producers.get(name, (0, -1))
        producer = (name, epoch, seq + 1) if rng.random() < 0.8 else (name, epoch + 1, 0)
    seq_header = f"{world.now_ms}" if rng.random() < 0.3 else None
    body = b"[3],\n" if stream.json else _body(rng)
    return world.append(key, body, producer=producer, seq=seq_header)


def _append_last(world: World, rng: random.Random, key: str) -> Outcome:
    body = b"[4],\n" if world.engine.namespace.by_key[key].json else _body(rng)
    return world.append(key, body, closes=True)


def _fork(world: World, rng: random.Random, source: str) -> object:
    stream = world.engine.namespace.by_key[source]
    ends = [end for _, end in world.engine.view(stream).messages(stream.floor)]
    return world.fork(f"/f{rng.randrange(4)}", source, rng.choice([stream.floor, *ends]))


def _publish(world: World, rng: random.Random, key: str) -> object:
    stream = world.engine.namespace.by_key[key]
    ends = [end for _, end in world.engine.view(stream).messages(stream.floor)]
    return world.publish(key, rng.choice([stream.floor, *ends]), b"folded")


def _retain(world: World, rng: random.Random, key: str) -> None:
    stream = world.engine.namespace.by_key[key]
    ends = [end for _, end in world.engine.view(stream).messages(stream.floor)]
    world.retain(key, rng.choice([stream.floor, *ends]), rng.choice((-1, 100)))

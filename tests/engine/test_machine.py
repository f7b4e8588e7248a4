"""The whole engine against a plain model: any history of commands, crashes included.

Between two rules nothing is in flight, so after a kill or a power cut the engine must be exactly
what the model is: nothing lost, nothing more.
"""

import random

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from durastreamd.model.draft import AppendCommand, Draft, Payload
from durastreamd.model.namespace import CreateCommand, ForkPoint
from durastreamd.model.records import Record
from durastreamd.model.stream_state import Stream, check_invariants
from durastreamd.protocol import content_type, outcomes as out
from durastreamd.protocol.offsets import Position
from tests.support.plain_model import Birth, Fork, PlainModel, PlainStream, Write
from tests.support.sim_disk import crash_images
from tests.support.world import TINY, World, start

# Few names, so that histories meet: forks of forks, names made anew, one stream many times.
NAMES = ["/a", "/b", "/c", "/d", "/e", "logs/x"]
# Mostly a name that fits what is to be done, see ``EngineMachine.taken`` and ``free``.
PICKS = st.integers(0, 19)
TYPES = st.sampled_from(
    [None, "application/json", "Application/JSON; charset=utf-8", "text/plain", "TEXT/plain"]
)
LIFETIMES = st.sampled_from(
    [(None, None), (None, None), (None, None), (5_000, None), (800, None), (None, 1)]
)
# A body of 220 bytes fills a segment, so that there is something to trim.
BODIES = st.lists(st.binary(min_size=1, max_size=90) | st.just(b"y" * 220), min_size=1, max_size=3)
BROKEN = out.Malformed("INVALID_JSON", "not JSON")
PRODUCER_MOVES = ["next", "next", "retry", "older", "stale", "gap", "session", "session_gap"]


def wire(bodies: list[bytes], kind: str | None) -> list[bytes]:
    """Return bodies as messages of a stream of this type."""
    if kind is not None and content_type.is_json(kind):
        return [b'"%s",\n' % body.hex().encode() for body in bodies]
    return [b"".join(bodies)]


def payload(messages: list[bytes]) -> Payload | None:
    return Payload(b"".join(messages), len(messages)) if messages else None


def producer_of(stream: PlainStream, name: str, move: str) -> tuple[str, int, int]:
    """Return a producer's request that is a certain move from where the stream knows it."""
    epoch, last = stream.producers.get(name, (1, -1))
    moves = {
        "next": (epoch, last + 1),
        "retry": (epoch, max(last, 0)),
        "older": (epoch, 0),
        "stale": (epoch - 1, last + 1),
        "gap": (epoch, last + 2),
        "session": (epoch + 1, 0),
        "session_gap": (epoch + 1, 1),
    }
    return (name, *moves[move])


def same_outcome(got: out.Outcome, expected: out.Outcome) -> bool:
    """Compare outcomes; the prose of refusals is the engine's own."""
    if isinstance(got, out.ForkRefused) and isinstance(expected, out.ForkRefused):
        return got.code == expected.code
    if isinstance(got, out.ConfigConflict):
        return isinstance(expected, out.ConfigConflict)
    return got == expected


class QuietWorld(World):
    """A world that does not look at its streams when it commits: looking loads what rests."""

    def commit(self, records: list[tuple[Record, bytes | memoryview]]) -> None:
        self.engine.commit(records)


class EngineMachine(RuleBasedStateMachine):
    """Does everything twice: to the engine, and to the model."""

    def __init__(self) -> None:
        super().__init__()
        self.world = QuietWorld()
        self.model = PlainModel()
        self.epoch_ms = self.world.now_ms

    @property
    def now(self) -> int:
        return self.world.now_ms

    def agree(self, got: out.Outcome, expected: out.Outcome) -> None:
        assert same_outcome(got, expected), f"engine {got}, model {expected}"

    def taken(self, pick: int) -> str:
        """Return a name that is mostly in use."""
        names = sorted(self.model.streams) if pick < 18 else NAMES
        return names[pick % len(names)] if names else NAMES[0]

    def free(self, pick: int) -> str:
        """Return a name that is mostly not in use."""
        found = [
            name for name in NAMES if isinstance(self.model.find(name, self.now), out.NotFound)
        ]
        return found[pick % len(found)] if found and pick < 18 else NAMES[pick % len(NAMES)]

    def lifetime(self, asked: tuple[int | None, int | None]) -> tuple[int | None, int | None]:
        """Return a lifetime whose absolute part is a round time not long from now."""
        sliding, rounds = asked
        if rounds is None:
            return asked
        passed = (self.now - self.epoch_ms) // 3_000
        return sliding, self.epoch_ms + (passed + rounds) * 3_000

    @initialize(kinds=st.lists(TYPES, min_size=2, max_size=2), bodies=BODIES)
    def begin(self, kinds: list[str | None], bodies: list[bytes]) -> None:
        """Make a bucket, two streams and a fork: histories of nothing are soon told."""
        self.bucket(exists=True)
        for name, kind in zip(("/a", "logs/x"), kinds, strict=True):
            self._create(name, Birth(kind, messages=wire(bodies, kind)))
        place = self.model.streams["/a"].ends()[-1]
        self._create("/b", Birth(fork=Fork("/a", place, place)))

    # --- names ---

    @rule(
        pick=PICKS,
        kind=TYPES,
        lifetime=LIFETIMES,
        closed=st.sampled_from([False] * 7 + [True]),
        bodies=st.none() | BODIES,
    )
    def create(
        self,
        pick: int,
        kind: str | None,
        lifetime: tuple[int | None, int | None],
        closed: bool,  # noqa: FBT001  # hypothesis calls by name
        bodies: list[bytes] | None,
    ) -> None:
        messages = wire(bodies, kind) if bodies else []
        self._create(self.free(pick), Birth(kind, self.lifetime(lifetime), closed, messages))

    @rule(pick=PICKS)
    def create_again(self, pick: int) -> None:
        """Ask for a stream as it was made; a retry, if nothing happened to it since."""
        key = self.taken(pick)
        made = self.model.streams.get(key)
        if made is not None:
            fork = None
            if made.parent is not None:
                place = made.anchor + made.sub
                fork = Fork(made.parent.name, place, made.anchor, made.sub)
            self._create(key, Birth(made.content_type, made.lifetime, made.closed, [], fork))

    @rule(
        pick=PICKS,
        source=PICKS,
        kind=st.sampled_from([None] * 6 + ["application/json", "text/plain"]),
        lifetime=LIFETIMES,
        place=st.integers(0, 40),
        inside=st.sampled_from([0, 0, 0, 1, 2]),
        bodies=st.none() | BODIES,
    )
    def fork(
        self,
        pick: int,
        source: int,
        kind: str | None,
        lifetime: tuple[int | None, int | None],
        place: int,
        inside: int,
        bodies: list[bytes] | None,
    ) -> None:
        """Fork at any boundary, past the end, or inside a message that is not JSON."""
        origin = self.taken(source)
        stream = self.model.streams.get(origin)
        ends = stream.ends() if stream else [0]
        anchor = [*ends, ends[-1] + 1][place % (len(ends) + 1)]
        whole = stream is None or content_type.is_json(stream.content_type)
        following = [end for end in ends if end > anchor]
        position = anchor
        if not whole and following and anchor + inside < following[0]:
            position += inside
        asked = Fork(origin, position, anchor, position - anchor)
        messages = wire(bodies, stream.content_type) if bodies and stream else []
        birth = Birth(kind, self.lifetime(lifetime), closed=False, messages=messages, fork=asked)
        self._create(self.free(pick), birth)

    def _create(self, key: str, birth: Birth) -> None:
        fork = None
        if birth.fork is not None:
            asked = birth.fork
            fork = ForkPoint(
                asked.source, asked.position, self._ordinal(asked), asked.anchor, asked.sub
            )
        sliding, absolute = birth.lifetime
        command = CreateCommand(
            key, birth.content_type, sliding, absolute, birth.closed, payload(birth.messages), fork
        )
        got, drafted = self.world.engine.namespace.decide_create(command, self.now)
        if drafted:
            self.world.commit([drafted])
        self.agree(got, self.model.create(key, birth, self.now))

    def _ordinal(self, fork: Fork) -> int:
        """Ask the view, as the service does; a message that is cut counts as one."""
        source = self.world.engine.namespace.find(fork.source, self.now)
        if not isinstance(source, Stream) or not source.floor <= fork.anchor <= source.tail:
            return 0
        return self.world.engine.view(source).ordinal_at(fork.anchor) + (fork.sub > 0)

    @rule(pick=PICKS)
    def delete(self, pick: int) -> None:
        key = self.taken(pick)
        self.agree(self.world.delete(key), self.model.delete(key, self.now))

    @rule(exists=st.booleans())
    def bucket(self, *, exists: bool) -> None:
        self.agree(
            self.world.bucket("logs", exists=exists), self.model.bucket("logs", exists=exists)
        )

    # --- appends ---

    @rule(
        pick=PICKS,
        count=st.integers(1, 3),
        bodies=BODIES,
        seq=st.none() | st.sampled_from(["0", "1", "10", "9", "a", "B"]),
        fault=st.sampled_from([""] * 8 + ["type", "json"]),
        closes=st.sampled_from([False] * 15 + [True]),
    )
    def append(
        self,
        pick: int,
        count: int,
        bodies: list[bytes],
        seq: str | None,
        fault: str,
        closes: bool,  # noqa: FBT001
    ) -> None:
        """Append a few times in one batch; each must see what the one before it did."""
        key = self.taken(pick)
        self._append(key, [self._write(key, bodies, seq, fault, closes=closes)] * count)

    @rule(
        pick=PICKS,
        name=st.sampled_from(["p", "q"]),
        moves=st.lists(st.sampled_from(PRODUCER_MOVES), min_size=1, max_size=3),
        bodies=BODIES,
        seq=st.none() | st.sampled_from(["5", "6", "7"]),
        fault=st.sampled_from([""] * 8 + ["type", "json"]),
        closes=st.sampled_from([False] * 15 + [True]),
    )
    def produce(
        self,
        pick: int,
        name: str,
        moves: list[str],
        bodies: list[bytes],
        seq: str | None,
        fault: str,
        closes: bool,  # noqa: FBT001
    ) -> None:
        key = self.taken(pick)
        writes = [self._write(key, bodies, seq, fault, closes=closes)] * len(moves)
        self._append(key, writes, name, moves)

    def _write(
        self, key: str, bodies: list[bytes], seq: str | None, fault: str, *, closes: bool
    ) -> Write:
        stream = self.model.streams.get(key)
        kind = stream.content_type if stream else "text/plain"
        write = Write(wire(bodies, kind), kind.upper(), closes, None, seq)
        if fault == "type":
            write.content_type = "image/png"
        elif fault == "json":
            write.messages, write.broken = [], BROKEN
        return write

    @rule(pick=PICKS, move=st.none() | st.sampled_from(PRODUCER_MOVES))
    def close(self, pick: int, move: str | None) -> None:
        self._append(self.taken(pick), [Write(closes=True)], "p", [move] if move else [])

    def _append(
        self, key: str, writes: list[Write], name: str = "", moves: list[str] | None = None
    ) -> None:
        engine = self.world.engine
        found = engine.namespace.find(key, self.now)
        if not isinstance(found, Stream):
            self.agree(found, self.model.append(key, writes[0], self.now))
            return
        if engine.needs_loading(found):
            found.detail = engine.load_detail(found)
        draft = Draft(found, TINY.producers_max)
        for number, write in enumerate(writes):
            if moves:
                write.producer = producer_of(self.model.streams[key], name, moves[number])
            body = write.broken or payload(write.messages)
            command = AppendCommand(
                body, write.content_type or None, write.closes, write.producer, write.seq
            )
            self.agree(draft.decide(command), self.model.append(key, write, self.now))
        if not draft.empty:
            self.world.commit([draft.record(self.now)])

    # --- snapshots and lifetimes ---

    @rule(pick=PICKS, place=st.integers(0, 40))
    def publish(self, pick: int, place: int) -> None:
        key = self.taken(pick)
        stream = self.model.streams.get(key)
        if stream is not None:
            positions = [*stream.ends(), stream.tail + 1]
            position = positions[place % len(positions)]
            got = self.world.publish(key, position, b"folded")
            self.agree(got, self.model.publish(key, position, self.now))

    @rule(ms=st.sampled_from([1, 10, 100, 100, 799, 2_500]))
    def advance_the_clock(self, ms: int) -> None:
        self.world.now_ms += ms

    @rule(pick=PICKS)
    def read(self, pick: int) -> None:
        """Renew a lifetime as a reader does: in memory at once, on disk now and then."""
        key = self.taken(pick)
        found = self.world.engine.namespace.find(key, self.now)
        if isinstance(found, Stream) and found.ttl_ms >= 0:
            model = self.model.streams[key]
            found.read_ms = model.read_ms = self.now
            if self.now - found.accessed_ms >= found.ttl_ms // TINY.touch_fraction:
                self.world.touch(key)
                model.accessed_ms = self.now

    @rule()
    def sweep(self) -> None:
        space = self.world.engine.namespace
        for key in list(space.by_key):
            stream = space.by_key.get(key)
            if stream is not None and stream.expired(self.now) and not stream.gone:
                self.world.commit([(space.removal(stream, self.now), b"")])
                self.model.end(self.model.streams[key])

    # --- files and crashes ---

    @rule()
    def flush(self) -> None:
        self.world.flush()

    @rule()
    def checkpoint(self) -> None:
        self.world.checkpoint()

    @rule()
    def kill(self) -> None:
        self.world.reopen()
        self.model.reopened(self.now, TINY.touch_fraction)

    @rule(pick=st.integers(0, 2**16))
    def cut_the_power(self, pick: int) -> None:
        rng = random.Random(pick)
        self.world.disk = rng.choice(list(crash_images(self.world.disk, rng, cap=4)))
        self.world.engine, _ = start(self.world.disk, now_ms=self.now)
        self.model.reopened(self.now, TINY.touch_fraction)

    # --- what must hold ---

    @invariant()
    def names_are_the_same(self) -> None:
        space = self.world.engine.namespace
        assert set(space.by_key) == set(self.model.streams)
        assert set(space.buckets) == self.model.buckets
        for key in self.model.streams:
            found, expected = space.find(key, self.now), self.model.find(key, self.now)
            if isinstance(expected, PlainStream):
                assert isinstance(found, Stream), f"{key}: {found}"
                self._compare(found, expected)
            else:
                assert found == expected, key

    def _compare(self, stream: Stream, model: PlainStream) -> None:
        engine = self.world.engine
        check_invariants(stream)
        assert not stream.damage
        detail = engine.load_detail(stream) if engine.needs_loading(stream) else stream.loaded()
        assert detail.producers == model.producers
        assert detail.seq == model.seq
        assert (stream.content_type, stream.closed) == (model.content_type, model.closed)
        assert (stream.tail, stream.floor) == (model.tail, model.floor)
        assert stream.messages == len(model.messages)
        shown = stream.snapshot.position if stream.snapshot else None
        assert shown == model.snapshot_at
        view = engine.view(stream)
        assert view.read(model.floor, model.tail) == model.data[model.floor :]
        assert list(view.messages(model.floor)) == model.retained()


def test_stream_at_rest_is_flushed_without_its_detail() -> None:
    world = QuietWorld()
    world.create("/a")
    world.append("/a", b"x", producer=("p", 0, 0))
    world.flush()
    assert world.engine.namespace.by_key["/a"].detail is None
    for _ in range(10):
        assert world.publish("/a", 1, b"folded") == out.SnapshotPublished(Position(1))
        world.flush()
    world.checkpoint()
    world.reopen()
    stream = world.engine.namespace.by_key["/a"]
    assert world.engine.load_detail(stream).producers == {"p": (0, 0)}


# So many histories are a few seconds; the soak profile asks for thousands.
_ASKED = settings().max_examples
TestEngineMachine = pytest.mark.slow(EngineMachine.TestCase)
TestEngineMachine.settings = settings(
    max_examples=max(150, _ASKED), stateful_step_count=50, deadline=None
)

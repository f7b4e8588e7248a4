"""Names: matching creates, forks and their lifetimes, deletion, what is in flight, listings."""

from itertools import count

import pytest
from hypothesis import given, strategies as st

from durastreamd.model.buckets import bucket_of
from durastreamd.model.draft import Payload
from durastreamd.model.namespace import CreateCommand, ForkPoint, Namespace
from durastreamd.model.records import Append, Create, Delete, Record, Snapshot
from durastreamd.model.stream_state import Stream
from durastreamd.protocol import outcomes as out
from durastreamd.protocol.offsets import Position

NOW = 1_000_000
TEXT = "text/plain"
JSON = "application/json"


class Space:
    """A namespace where every decision is applied at once."""

    def __init__(self) -> None:
        self.names = Namespace()
        self._lsn = count(1)
        self.ended: list[str] = []

    def apply(self, record: Record) -> None:
        ended = self.names.apply(record, next(self._lsn))
        self.ended += [stream.key for stream in ended]

    def create(self, key: str, now_ms: int = NOW, /, **options: object) -> out.Outcome:
        command = CreateCommand(key, **options)  # type: ignore[arg-type]
        outcome, drafted = self.names.decide_create(command, now_ms)
        assert (drafted is not None) is isinstance(outcome, out.Created)
        if drafted:
            self.apply(drafted[0])
        return outcome

    def decided(self, key: str, **options: object) -> Create:
        """Return the record of a create that is not applied yet."""
        command = CreateCommand(key, **options)  # type: ignore[arg-type]
        outcome, drafted = self.names.decide_create(command, NOW)
        assert drafted, outcome
        return drafted[0]

    def fork(self, key: str, source: str, position: int = 0, /, **options: object) -> out.Outcome:
        return self.create(key, fork=ForkPoint(source, position, 0, position), **options)

    def delete(self, key: str, now_ms: int = NOW) -> out.Outcome:
        outcome, record = self.names.decide_delete(key, now_ms)
        assert (record is not None) is isinstance(outcome, out.Deleted)
        if record:
            self.apply(record)
        return outcome

    def append(self, key: str, size: int, *, closes: bool = False) -> None:
        stream = self[key]
        lengths = [size] if size else []
        self.apply(Append(stream.id, stream.tail, size, NOW, 0, 1, lengths, closes))

    def publish(self, key: str, position: int) -> out.Outcome:
        blob = Snapshot(self[key].id, position, 1, TEXT, 1, 1)
        outcome, record = self.names.decide_publish(key, blob, NOW)
        if record:
            self.apply(record)
        return outcome

    def bucket(self, name: str, *, exists: bool = True) -> out.Outcome:
        outcome, record = self.names.decide_bucket(name, NOW, exists=exists)
        if record:
            self.apply(record)
        return outcome

    def __getitem__(self, key: str) -> Stream:
        stream = self.names.by_key[key]
        assert isinstance(stream, Stream)
        return stream

    def state(self, key: str, now_ms: int = NOW) -> str:
        return type(self.names.find(key, now_ms)).__name__


@pytest.fixture
def space() -> Space:
    return Space()


BIRTHS: list[dict[str, object]] = [
    {},
    {"content_type": TEXT},
    {"content_type": JSON},
    {"ttl_ms": 5000},
    {"ttl_ms": 6000},
    {"expires_ms": NOW + 5000},
    {"closes": True},
    {"content_type": TEXT, "ttl_ms": 5000, "closes": True},
]


@pytest.mark.parametrize("asked", BIRTHS)
@pytest.mark.parametrize("made", BIRTHS)
def test_create_matches_exactly_the_same_configuration(
    space: Space, made: dict[str, object], asked: dict[str, object]
) -> None:
    assert isinstance(space.create("/a", **made), out.Created)
    outcome = space.create("/a", **asked)
    assert isinstance(outcome, out.Exists if made == asked else out.ConfigConflict)


@pytest.mark.parametrize("again", ["TEXT/PLAIN", "text/plain;charset=utf-8", " Text/Plain ; a=b"])
def test_create_compares_media_types_and_shows_the_first_writing(space: Space, again: str) -> None:
    space.create("/a", content_type="text/Plain; x=1")
    expected = out.Exists("text/Plain; x=1", Position(0), closed=False)
    assert space.create("/a", content_type=again) == expected


def test_create_ignores_the_body_of_a_stream_that_exists(space: Space) -> None:
    assert space.create("/a", payload=Payload(b"abc")) == out.Created(
        "application/octet-stream", Position(3), closed=False
    )
    found = space.create("/a", payload=Payload(b"something else"))
    assert found == out.Exists("application/octet-stream", Position(3), closed=False)


def test_create_meets_the_closure_that_came_later(space: Space) -> None:
    space.create("/a")
    space.append("/a", 0, closes=True)
    assert isinstance(space.create("/a"), out.ConfigConflict)
    assert isinstance(space.create("/a", closes=True), out.Exists)


def test_body_that_is_not_json_makes_no_stream(space: Space) -> None:
    broken = out.Malformed("INVALID_JSON", "no")
    assert space.create("/a", content_type=JSON, payload=broken) == broken
    assert space.state("/a") == "NotFound"


def test_name_is_free_at_once_after_a_delete(space: Space) -> None:
    space.create("/a", content_type=TEXT, payload=Payload(b"old"))
    assert space.delete("/a") == out.Deleted()
    assert space.state("/a") == "NotFound"
    assert space.create("/a", content_type=JSON) == out.Created(JSON, Position(0), closed=False)


@pytest.mark.parametrize("lifetime", [{"ttl_ms": 50}, {"expires_ms": NOW + 50}])
def test_name_is_free_after_expiry_and_the_old_stream_ends(
    space: Space, lifetime: dict[str, object]
) -> None:
    space.create("/a", **lifetime)
    old = space["/a"]
    assert space.state("/a", NOW + 49) == "Stream"
    assert space.state("/a", NOW + 50) == "NotFound"
    assert isinstance(space.create("/a", NOW + 50, content_type=JSON), out.Created)
    assert space.ended == ["/a"]
    assert old.id not in space.names.by_id
    assert space["/a"].content_type == JSON


def test_expired_stream_is_not_there_to_delete_or_publish(space: Space) -> None:
    space.create("/a", ttl_ms=50)
    assert space.delete("/a", NOW + 50) == out.NotFound()
    blob = Snapshot(space["/a"].id, 0, 1, TEXT, 1, 1)
    assert space.names.decide_publish("/a", blob, NOW + 50) == (out.NotFound(), None)


# --- forks ---


def test_fork_begins_where_it_left_its_source(space: Space) -> None:
    space.create("/a", content_type="text/Plain", payload=Payload(b"0123456789"))
    space.append("/a", 5, closes=True)
    point = ForkPoint("/a", 12, 2, 10, 2)
    assert space.create("/f", fork=point, payload=Payload(b"xyz")) == out.Created(
        "text/Plain", Position(15), closed=False
    )
    fork = space["/f"]
    assert (fork.fork_position, fork.tail, fork.messages) == (12, 15, 3)
    assert (fork.anchor, fork.sub, fork.source) == (10, 2, space["/a"].id)
    assert fork.plain
    assert fork.loaded().producers == {}


@pytest.mark.parametrize(
    ("source", "asked", "expected"),
    [
        ({}, {}, (-1, -1)),
        ({"ttl_ms": 5000}, {}, (5000, -1)),
        ({"expires_ms": NOW + 5000}, {}, (-1, NOW + 5000)),
        ({"ttl_ms": 5000}, {"ttl_ms": 9}, (9, -1)),
        ({"ttl_ms": 5000}, {"ttl_ms": 999_999}, (999_999, -1)),
        ({"ttl_ms": 5000}, {"expires_ms": NOW + 7}, (-1, NOW + 7)),
        ({"expires_ms": NOW + 5000}, {"ttl_ms": 9}, (9, -1)),
        ({"expires_ms": NOW + 5000}, {"expires_ms": NOW + 90_000}, (-1, NOW + 90_000)),
        ({}, {"ttl_ms": 9}, (9, -1)),
    ],
)
def test_fork_inherits_a_lifetime_only_when_it_asks_for_none(
    space: Space,
    source: dict[str, object],
    asked: dict[str, object],
    expected: tuple[int, int],
) -> None:
    space.create("/a", **source)
    assert isinstance(space.fork("/f", "/a", **asked), out.Created)
    assert (space["/f"].ttl_ms, space["/f"].expires_ms) == expected


@pytest.mark.parametrize(
    ("position", "code"), [(-1, "INVALID"), (3, "EXPIRED"), (4, ""), (9, ""), (10, "INVALID")]
)
def test_fork_lies_between_the_floor_and_the_tail(space: Space, position: int, code: str) -> None:
    space.create("/a", payload=Payload(b"123456789"))
    assert space.publish("/a", 4) == out.SnapshotPublished(Position(4))
    outcome = space.fork("/f", "/a", position)
    assert getattr(outcome, "code", "") == code
    if not code:
        assert (space["/f"].floor, space["/f"].snapshot) == (4, space["/a"].snapshot)


def test_fork_needs_a_source_of_its_own_type(space: Space) -> None:
    space.create("/a", content_type=TEXT)
    outcome = space.fork("/f", "/a", content_type=JSON)
    assert isinstance(outcome, out.ForkRefused)
    assert outcome.code == "MISMATCH"
    assert isinstance(space.fork("/f", "/a", content_type="TEXT/plain; x=1"), out.Created)
    assert space["/f"].content_type == "TEXT/plain; x=1"


@pytest.mark.parametrize(
    ("state", "code"), [("", "NOT_FOUND"), ("gone", "GONE"), ("bad", "DAMAGED")]
)
def test_fork_of_what_cannot_be_read_is_refused(space: Space, state: str, code: str) -> None:
    if state:
        space.create("/a")
        space.fork("/keeper", "/a")
    if state == "gone":
        space.delete("/a")
    elif state == "bad":
        space["/a"].damage = "rotten"
    outcome = space.fork("/f", "/a")
    assert isinstance(outcome, out.ForkRefused)
    assert outcome.code == code


def test_refused_fork_holds_nothing(space: Space) -> None:
    space.create("/a", content_type=TEXT)
    space.fork("/f", "/a", 99)
    space.fork("/f", "/a", content_type=JSON)
    assert space.delete("/a") == out.Deleted()
    assert space.state("/a") == "NotFound"


def test_same_fork_asked_for_again_is_there(space: Space) -> None:
    space.create("/a", content_type=TEXT, ttl_ms=5000, payload=Payload(b"12345"))
    space.create("/b", content_type=TEXT)
    tail = ForkPoint("/a", 5, 1)
    assert isinstance(space.create("/f", fork=tail), out.Created)
    space.append("/a", 5)
    # The offset was left out both times: it is not resolved anew.
    assert isinstance(space.create("/f", fork=ForkPoint("/a", 10, 2)), out.Exists)
    assert isinstance(space.create("/f", fork=tail, ttl_ms=5000, content_type=TEXT), out.Exists)
    for fork in (ForkPoint("/a", 5, 1, 5), ForkPoint("/b", 0, 0), ForkPoint("/a", 5, 1, -1, 1)):
        assert isinstance(space.create("/f", fork=fork), out.ConfigConflict)
    assert isinstance(space.create("/f", fork=tail, ttl_ms=6000), out.ConfigConflict)
    assert isinstance(space.create("/f", content_type=TEXT, ttl_ms=5000), out.ConfigConflict)
    assert isinstance(space.create("/a", fork=tail), out.ConfigConflict)


def test_same_fork_is_found_though_its_source_was_deleted(space: Space) -> None:
    space.create("/a")
    space.fork("/f", "/a")
    space.delete("/a")
    assert isinstance(space.fork("/f", "/a"), out.Exists)


def test_deleted_source_is_gone_while_a_fork_lives(space: Space) -> None:
    space.create("/a")
    space.fork("/f", "/a")
    space.fork("/g", "/a")
    assert space.delete("/a") == out.Deleted()
    assert space.state("/a") == "Gone"
    assert space.delete("/a") == out.Gone()
    assert isinstance(space.create("/a"), out.ConfigConflict)
    space.delete("/f")
    assert space.state("/a") == "Gone"
    space.delete("/g")
    assert space.state("/a") == "NotFound"
    assert space.ended == ["/f", "/g", "/a"]
    assert isinstance(space.create("/a"), out.Created)


def test_source_that_was_not_deleted_survives_its_forks(space: Space) -> None:
    space.create("/a")
    space.fork("/f", "/a")
    space.delete("/f")
    assert space.state("/a") == "Stream"
    space.delete("/a")
    assert space.state("/a") == "NotFound"


@pytest.mark.parametrize("order", [("/a", "/b", "/c"), ("/c", "/b", "/a"), ("/b", "/a", "/c")])
def test_last_fork_takes_three_levels_with_it(space: Space, order: tuple[str, ...]) -> None:
    space.create("/a")
    for key, source in (("/b", "/a"), ("/c", "/b"), ("/d", "/c")):
        space.fork(key, source)
    for key in order:
        space.delete(key)
    assert [space.state(key) for key in order] == ["Gone"] * 3
    space.delete("/d")
    assert space.ended == ["/d", "/c", "/b", "/a"]
    assert not space.names.by_id
    assert not space.names.by_key


def test_cascade_stops_at_a_level_that_is_still_used(space: Space) -> None:
    space.create("/a")
    space.fork("/b", "/a")
    space.fork("/c", "/b")
    space.delete("/b")
    space.delete("/c")
    assert space.ended == ["/c", "/b"]
    assert space.state("/a") == "Stream"


def test_expired_source_is_gone_with_forks_and_absent_without(space: Space) -> None:
    space.create("/a", ttl_ms=50)
    space.create("/b", ttl_ms=50)
    space.fork("/f", "/a", ttl_ms=9000)
    assert (space.state("/a", NOW + 50), space.state("/b", NOW + 50)) == ("Gone", "NotFound")
    assert space.state("/f", NOW + 50) == "Stream"
    assert isinstance(space.create("/a", NOW + 50), out.ConfigConflict)
    outcome = space.create("/g", NOW + 50, fork=ForkPoint("/a", 0, 0))
    assert isinstance(outcome, out.ForkRefused)
    assert outcome.code == "GONE"


# --- in flight ---


def test_fork_in_flight_makes_a_delete_soft(space: Space) -> None:
    space.create("/a")
    record = space.decided("/f", fork=ForkPoint("/a", 0, 0))
    space.names.hold(record)
    _, deletion = space.names.decide_delete("/a", NOW)
    assert isinstance(deletion, Delete)
    assert deletion.soft
    space.names.release(record)
    space.apply(record)
    space.apply(deletion)
    assert (space.state("/a"), space.state("/f")) == ("Gone", "Stream")


def test_fork_that_failed_leaves_its_source_abandoned(space: Space) -> None:
    space.create("/a")
    record = space.decided("/f", fork=ForkPoint("/a", 0, 0))
    space.names.hold(record)
    space.delete("/a")
    assert not space.names.abandoned(space["/a"])
    space.names.release(record)
    assert space.names.abandoned(space["/a"])
    space.apply(space.names.removal(space["/a"], NOW))
    assert space.state("/a") == "NotFound"


def test_expired_source_of_a_fork_in_flight_keeps_its_name(space: Space) -> None:
    space.create("/a", ttl_ms=50)
    record = space.decided("/f", fork=ForkPoint("/a", 0, 0))
    space.names.hold(record)
    assert isinstance(space.create("/a", NOW + 50), out.ConfigConflict)
    space.names.release(record)
    assert isinstance(space.create("/a", NOW + 50), out.Created)


def test_nobody_forks_a_stream_whose_delete_is_in_flight(space: Space) -> None:
    space.create("/a")
    _, deletion = space.names.decide_delete("/a", NOW)
    assert isinstance(deletion, Delete)
    assert not deletion.soft
    space.names.hold(deletion)
    outcome = space.fork("/f", "/a")
    assert isinstance(outcome, out.ForkRefused)
    assert outcome.code == "GONE"
    space.names.release(deletion)
    assert isinstance(space.fork("/f", "/a"), out.Created)


def test_stream_in_flight_keeps_its_bucket(space: Space) -> None:
    space.bucket("b")
    record = space.decided("b/x")
    space.names.hold(record)
    assert space.bucket("b", exists=False) == out.BucketNotEmpty(1)
    space.names.release(record)
    assert space.bucket("b", exists=False) == out.BucketDeleted()


def test_nothing_is_made_in_a_bucket_whose_end_is_in_flight(space: Space) -> None:
    space.bucket("b")
    _, record = space.names.decide_bucket("b", NOW, exists=False)
    assert record is not None
    space.names.hold(record)
    assert space.create("b/x") == out.BucketMissing()
    assert isinstance(space.create("/b/x"), out.Created)
    space.names.release(record)
    assert isinstance(space.create("b/x"), out.Created)


def test_bucket_is_made_once_and_ends_when_it_is_empty(space: Space) -> None:
    assert space.create("b/x") == out.BucketMissing()
    assert space.bucket("b", exists=False) == out.BucketMissing()
    assert (space.bucket("b"), space.bucket("b")) == (out.BucketCreated(), out.BucketExists())
    space.create("b/x")
    space.fork("/f", "b/x")
    space.delete("b/x")
    assert space.bucket("b", exists=False) == out.BucketNotEmpty(1, 1)  # kept for its fork
    space.delete("/f")
    assert space.bucket("b", exists=False) == out.BucketDeleted()
    assert space.create("b/x") == out.BucketMissing()


def test_streams_of_a_bucket_are_counted_once_when_made_anew(space: Space) -> None:
    space.bucket("b")
    space.create("b/x", ttl_ms=5)
    space.create("b/x", NOW + 5)
    assert space.names.buckets["b"].streams == 1


def test_bucket_is_what_stands_before_the_first_slash() -> None:
    assert [bucket_of(key) for key in ("b/x", "b/x/y", "/b/x", "/")] == ["b", "b", "", ""]


NAMES = st.text("ab/-", min_size=1, max_size=4)


@given(
    st.sets(NAMES, max_size=12), st.text("ab/", max_size=2), st.just("") | NAMES, st.integers(0, 6)
)
def test_listing_is_the_sorted_names_past_the_cursor(
    names: set[str], prefix: str, after: str, limit: int
) -> None:
    space = Space()
    for bucket in ("a", "b", "ba", "c"):
        space.bucket(bucket)
        for name in names:
            space.create(f"{bucket}/{name}")
    expected = sorted(name for name in names if name.startswith(prefix) and name > after)
    found = [stream.key for stream in space.names.listing(f"b/{prefix}", f"b/{after}", limit)]
    assert found == [f"b/{name}" for name in expected[:limit]]


def test_snapshot_lies_between_the_floor_and_the_tail(space: Space) -> None:
    space.create("/a", payload=Payload(b"0123456789"))
    assert space.publish("/a", 11) == out.SnapshotPastTail(Position(10))
    assert space.publish("/a", 6) == out.SnapshotPublished(Position(6))
    assert space.publish("/a", 5) == out.SnapshotTooOld(Position(6))
    assert space.publish("/a", 6) == out.SnapshotPublished(Position(6))
    stale = Snapshot(99, 8, 1, TEXT, 1, 1)
    assert space.names.decide_publish("/a", stale, NOW) == (out.NotFound(), None)


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 9), st.integers(0, 9), st.booleans()),
        max_size=6,
    )
)
def test_retained_is_everything_that_anybody_still_reads(
    shape: list[tuple[int, int, int, bool]],
) -> None:
    space = Space()
    space.create("/0", payload=Payload(b"0123456789"))
    for number, (source, position, floor, _) in enumerate(shape, 1):
        parent = space[f"/{source % number}"]
        at = parent.floor + position % (parent.tail - parent.floor + 1)
        space.fork(f"/{number}", parent.key, at, payload=Payload(b"12345"))
        made = space[f"/{number}"]
        space.publish(made.key, made.floor + floor % (made.tail - made.floor + 1))
    for number, (*_, dies) in enumerate(shape):
        if dies:
            space.delete(f"/{number}")
    for stream in space.names.by_id.values():
        read: set[int] = set()
        for reader in space.names.by_id.values():
            level, high = reader, reader.tail
            while level is not stream and level.source:
                high = min(high, level.fork_position)
                level = space.names.by_id[level.source]
            if level is stream and not reader.gone:
                read |= set(range(max(reader.floor, stream.fork_position), high))
        assert space.names.retained_from(stream) <= min(read, default=stream.tail)


def test_fork_that_reads_nothing_of_its_source_keeps_nothing_of_it(space: Space) -> None:
    space.create("/a", payload=Payload(b"0123456789"))
    space.fork("/empty", "/a", 0)
    space.fork("/folded", "/a", 5, payload=Payload(b"xyz"))
    space.publish("/folded", 8)
    space.publish("/a", 9)
    assert space.names.retained_from(space["/a"]) == 9

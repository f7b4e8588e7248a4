"""All subscriptions, against a plain model; and what must hold of them whatever happens (W1-W6)."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings, strategies as st

from durastreamd.model import subscriptions
from durastreamd.model.globs import Pattern
from durastreamd.model.stream_state import Stream
from durastreamd.model.subscription import Ack, Link, Refused, Subscription, SubscriptionState
from durastreamd.model.subscription_records import (
    EXPLICIT,
    GLOB,
    PULL_WAKE,
    SubscriptionChange,
    SubscriptionConfig,
)
from tests.support.subscribed import change, link, subscribe, unsubscribe
from tests.support.world import World, start

IDLE, WAKING, LIVE = SubscriptionState
TTL = 1000
PATHS = ("a", "b", "x/a", "x/b", "wakes")
PATTERNS = ("", "*", "**", "x/*")


def pulling(pattern: str, *streams: str) -> SubscriptionConfig:
    return SubscriptionConfig(PULL_WAKE, pattern, streams, "", "wakes", TTL)


@dataclass
class PlainSubscription:
    """What one subscription should be: said as the requirements say it."""

    pattern: str
    named: set[str]
    generation: int
    cursors: dict[str, int] = field(default_factory=dict)
    holder: str = ""
    until: int = 0
    waking: bool = False


class Plain:
    """Streams are lengths, subscriptions tables; links are worked out from names each time."""

    def __init__(self) -> None:
        self.tails: dict[str, int] = {}
        self.subs: dict[str, PlainSubscription] = {}
        self.last: dict[str, int] = {}

    def links(self, each: PlainSubscription) -> dict[str, str]:
        found = dict.fromkeys(each.named, "explicit")
        for path in self.tails:
            if each.pattern and Pattern(each.pattern).matches(path) and path != "wakes":
                found.setdefault(path, "glob")
        return found

    def pending(self, each: PlainSubscription) -> set[str]:
        links = self.links(each)
        return {p for p in links if p in self.tails and self.tails[p] > each.cursors.get(p, 0)}


NAMES = (
    *("make", "append", "append", "drop", "put", "end", "add", "remove", "wake", "claim", "claim"),
    *("ack", "ack", "done", "release", "late", "restart", "checkpoint"),
)
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(NAMES),
        st.integers(0, 4),
        st.integers(0, 3),
    ),
    max_size=40,
)


class Both:
    """The real one and the plain one, driven together."""

    def __init__(self) -> None:
        self.world, self.plain = World(), Plain()
        self.lots = 0

    def lot(self) -> str:
        self.lots += 1
        return f"{self.lots}"

    def do(self, operation: str, path: str, number: int) -> None:
        world, plain = self.world, self.plain
        world.now_ms += 100
        name = f"w{number % 2}"
        held, each = world.engine.subscriptions.find("", name), plain.subs.get(name)
        if operation == "make" and path not in plain.tails:
            world.create(f"/{path}", content_type="text/plain")
            plain.tails[path] = 0
            for other in plain.subs.values():
                other.cursors[path] = 0
        elif operation == "append" and path in plain.tails:
            world.append(f"/{path}", b"12345")
            plain.tails[path] += 5
        elif operation == "drop" and path in plain.tails:
            world.delete(f"/{path}")
            del plain.tails[path]
            for other in plain.subs.values():
                other.cursors.pop(path, None)
        elif operation == "put" and held is None:
            config = pulling(PATTERNS[number], *([path] if path != "wakes" else ["a"]))
            subscribe(world, name, config)
            cursors = dict(plain.tails)
            named = set(config.streams)
            generation = plain.last.get(name, 0)
            plain.subs[name] = PlainSubscription(config.pattern, named, generation, cursors)
        elif operation == "restart":
            world.reopen()
        elif operation == "checkpoint":
            world.checkpoint()
        elif held is not None and each is not None:
            self.concerning(operation, path, held, each)

    def concerning(
        self, operation: str, path: str, held: Subscription, each: PlainSubscription
    ) -> None:
        world, plain, now = self.world, self.plain, self.world.now_ms
        over = bool(each.holder) and now >= each.until
        if operation == "end":
            unsubscribe(world, held)
            plain.last[held.id] = each.generation
            del plain.subs[held.id]
        elif operation in ("add", "remove") and path != "wakes":
            known = path in plain.links(each)
            link(world, held, path, there=operation == "add")
            (each.named.add if operation == "add" else each.named.discard)(path)
            if not known or path not in plain.links(each):
                each.cursors[path] = plain.tails.get(path, 0)
        elif operation == "wake":
            if change(world, held.lapse(now, self.lot())):
                each.holder, each.waking = "", bool(plain.pending(each))
                each.generation += each.waking
            elif change(world, held.wake(now, self.lot())):
                each.waking, each.generation = True, each.generation + 1
        elif operation == "claim":
            decided = held.claim("me", now, self.lot())
            free = bool(plain.pending(each)) and (not each.holder or over)
            assert isinstance(decided, SubscriptionChange) is free
            if change(world, decided):
                each.generation += not each.waking
                each.holder, each.until, each.waking = "me", now + TTL, False
        elif operation in ("ack", "done", "release", "late"):
            self.holding(operation, path, held, each)

    def holding(
        self, operation: str, path: str, held: Subscription, each: PlainSubscription
    ) -> None:
        world, plain, now = self.world, self.plain, self.world.now_ms
        before = each.generation - (operation == "late")
        refused = held.fence(before, before, held.head.wake_id, now)
        mine = bool(each.holder) and now < each.until and operation != "late"
        assert (refused is None) is mine
        if not mine:
            return
        position = plain.tails.get(path, 0)
        cursors = held.cursors([Ack(path, position)] if operation != "release" else [])
        linked = operation == "release" or path in plain.links(each)
        shown = any(path == one[0] for one in held.head.snapshot)
        assert isinstance(cursors, Refused) is not (linked or shown)
        if isinstance(cursors, Refused):
            return
        if operation != "release" and linked and path in plain.tails:
            each.cursors[path] = position
        if operation == "ack":
            change(world, held.hold(cursors, now))
            each.until = now + TTL
        else:
            change(world, held.finish(cursors, now, self.lot()))
            each.holder, each.waking = "", bool(plain.pending(each))
            each.generation += each.waking

    def compare(self) -> None:
        held = self.world.engine.subscriptions
        assert {name for _, name in held.by_id} == set(self.plain.subs)
        for name, each in self.plain.subs.items():
            found = held.by_id["", name]
            found.check()
            links = self.plain.links(each)
            assert {p: one.kind for p, one in found.links.items()} == links
            there = {p: each.cursors.get(p, 0) for p in links if p in self.plain.tails}
            assert {p: o.cursor for p, o in found.links.items() if p in there} == there
            assert set(found.pending) == self.plain.pending(each)
            state = LIVE if each.holder else WAKING if each.waking else IDLE
            assert (found.state, found.head.generation) == (state, each.generation)


@pytest.mark.slow
@given(OPERATIONS)
@settings(max_examples=150, deadline=None)
def test_whatever_is_done_the_plain_model_says_the_same(
    operations: list[tuple[str, int, int]],
) -> None:
    both = Both()
    for operation, path, number in operations:
        both.do(operation, PATHS[path], number)
        both.compare()


@pytest.fixture
def world() -> World:
    found = World()
    found.create("/a", content_type="text/plain")
    found.append("/a", b"12345")
    return found


def wanted_by(stream: Stream) -> dict[int, Link]:
    return stream.links or {}


def test_an_append_looks_at_one_attribute_unless_somebody_wants_its_stream(world: World) -> None:
    """B11: the reference asks every subscription at every append."""
    for number in range(50):
        subscribe(world, f"w{number}", pulling("", f"other-{number}"))
    stream = world.engine.namespace.by_key["/a"]
    assert stream.links is None
    subscribe(world, "mine", pulling("", "a"))
    assert len(wanted_by(stream)) == 1
    unsubscribe(world, world.engine.subscriptions.by_id["", "mine"])
    assert stream.links is None


def test_a_deleted_id_goes_on_above_its_last_generation(world: World) -> None:
    """B13: the reference begins at 0 again, where an old token fits."""
    subscribe(world, "w", pulling("", "a"))
    world.append("/a", b"6")
    change(world, world.engine.subscriptions.by_id["", "w"].wake(world.now_ms, "x"))
    unsubscribe(world, world.engine.subscriptions.by_id["", "w"])
    world.checkpoint()
    world.reopen()
    subscribe(world, "w", pulling("", "a"))
    assert world.engine.subscriptions.by_id["", "w"].head.generation == 1
    assert world.engine.subscriptions.tombstones == {}


def test_so_many_ended_ones_are_remembered_and_the_highest_of_the_rest(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "TOMBSTONES_MAX", 3)
    for number in range(5):
        subscribe(world, f"w{number}", pulling("", "a"))
        world.append("/a", b"6")
        change(world, world.engine.subscriptions.by_id["", f"w{number}"].wake(world.now_ms, "x"))
        unsubscribe(world, world.engine.subscriptions.by_id["", f"w{number}"])
    world.checkpoint()
    world.reopen()
    held = world.engine.subscriptions
    assert (len(held.tombstones), held.floor) == (3, 1)
    assert held.next_generation("", "never seen") == 1


def test_what_was_named_stays_linked_when_its_stream_goes(world: World) -> None:
    """B10: the reference unsubscribes without a word."""
    subscribe(world, "w", pulling("*", "a"))
    world.create("/b", content_type="text/plain")
    world.delete("/a")
    world.delete("/b")
    each = world.engine.subscriptions.by_id["", "w"]
    assert {path: (one.marks, one.cursor) for path, one in each.links.items()} == {
        "a": (EXPLICIT, 0)
    }
    world.create("/a", content_type="text/plain")
    assert each.links["a"].marks == EXPLICIT | GLOB
    assert not each.pending
    world.append("/a", b"1")
    assert list(each.pending) == ["a"]


def test_no_pattern_links_a_stream_from_which_somebody_is_woken(world: World) -> None:
    """B6: the reference's wake events wake it again, for ever."""
    world.create("/wakes", content_type="application/json")
    subscribe(world, "all", SubscriptionConfig("webhook", "**", (), "https://r/", "", TTL))
    assert set(world.engine.subscriptions.by_id["", "all"].links) == {"a", "wakes"}
    subscribe(world, "w", pulling("**"))
    for each in world.engine.subscriptions.by_id.values():
        assert set(each.links) == {"a"}
    world.delete("/wakes")
    world.create("/wakes", content_type="application/json")
    for each in world.engine.subscriptions.by_id.values():
        assert set(each.links) == {"a"}


def test_a_stream_made_while_a_subscription_was_on_its_way_is_linked_from_its_beginning(
    world: World,
) -> None:
    held = world.engine.subscriptions
    config = pulling("**")
    pattern = Pattern("**")
    held.expect(7, "", pattern)
    matching, _ = held.scan("", pattern, "", 100)
    record = subscriptions.put_of(held, ("", "w"), config, 7, matching, 1, "http://h")
    world.create("/late", content_type="text/plain")
    world.append("/late", b"unseen")
    world.engine.extend("subscriptions")
    world.commit([(record, b"")])
    expected = {"a": 5, "late": 0}
    for _ in range(2):
        each = world.engine.subscriptions.by_id["", "w"]
        assert {path: one.cursor for path, one in each.links.items()} == expected
        assert list(each.pending) == ["late"]
        world.reopen()  # a replay finds the same


def test_buckets_are_roots_of_their_own(world: World) -> None:
    world.bucket("logs", exists=True)
    world.create("logs/a", content_type="text/plain")
    subscribe(world, "w", pulling("**"), "logs")
    subscribe(world, "w", pulling("**"))
    held = world.engine.subscriptions
    assert set(held.by_id) == {("logs", "w"), ("", "w")}
    world.append("logs/a", b"1")
    assert list(held.by_id["logs", "w"].pending) == ["a"]
    assert not held.by_id["", "w"].pending


def test_a_fork_is_linked_from_where_it_leaves_its_source(world: World) -> None:
    subscribe(world, "w", pulling("**"))
    world.fork("/f", "/a", 5)
    each = world.engine.subscriptions.by_id["", "w"]
    assert each.links["f"].cursor == 5
    assert "f" not in each.pending


def test_a_cursor_told_of_a_stream_that_was_replaced_does_not_count(world: World) -> None:
    subscribe(world, "w", pulling("", "a"))
    world.append("/a", b"6789")
    each = world.engine.subscriptions.by_id["", "w"]
    change(world, each.claim("me", world.now_ms, "x"))
    late = each.finish((("a", 9, each.links["a"].stream.id),), world.now_ms, "y")  # type: ignore[union-attr]
    world.delete("/a")
    world.create("/a", content_type="text/plain")
    world.commit([(late, b"")])
    assert each.links["a"].cursor == 0
    engine, _ = start(world.disk.survivor())
    assert engine.subscriptions.by_id["", "w"].links["a"].cursor == 0

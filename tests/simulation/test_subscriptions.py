"""Subscriptions through every crash: W1-W6 hold, and a bug in each guard is seen."""

from collections.abc import Callable

import pytest

from durastreamd.engine import checkpoint as cp
from durastreamd.engine.engine import Engine
from durastreamd.model import subscription_records as records
from durastreamd.model.subscription import Refused, Subscription
from durastreamd.model.subscriptions import Subscriptions
from tests.support import subscribed
from tests.support.crashes import ViolationError, hunt
from tests.support.subscribed import subscribed_step
from tests.support.world import World

Patch = pytest.MonkeyPatch
SEEDS = 12


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_what_is_known_of_subscriptions_survives_every_crash(seed: int) -> None:
    tally = hunt(seed, steps=40, cap=2, deep=0.05, choose=subscribed_step)
    assert tally.states > 500


def a_wake_is_shown_before_it_is_durable(patch: Patch) -> None:
    original = subscribed.change

    def change(world: World, record: records.SubscriptionChange | Refused | None) -> bool:
        if isinstance(record, records.SubscriptionChange) and record.new_wake:
            each = world.engine.subscriptions.by_incarnation[record.incarnation]
            before, each.head = each.head, record.head
            subscribed.show(world, each)
            each.head = before
        return original(world, record)

    patch.setattr(subscribed, "change", change)


def a_generation_falls(patch: Patch) -> None:
    """Ended subscriptions are not remembered over a restart."""
    original = Subscriptions.facts

    def facts(self: Subscriptions) -> list[tuple[str, list[object] | None]]:
        return [fact for fact in original(self) if not fact[0].startswith("tomb")]

    patch.setattr(Subscriptions, "facts", facts)


def a_fenced_holder_moves_a_cursor(patch: Patch) -> None:
    patch.setattr(Subscription, "fence", lambda *_: None)


def a_pending_one_sleeps_after_a_restart(patch: Patch) -> None:
    original = Subscriptions.settle

    def settle(self: Subscriptions) -> None:
        original(self)
        self.stirred.clear()

    patch.setattr(Subscriptions, "settle", settle)


def a_cursor_is_not_in_the_frame(patch: Patch) -> None:
    original = records.SubscriptionChange.header

    def header(self: records.SubscriptionChange) -> bytes:
        bare = records.SubscriptionChange(
            self.incarnation, self.head, (), self.new_wake, self.time_ms
        )
        return original(bare)

    patch.setattr(records.SubscriptionChange, "header", header)


def an_end_is_not_in_the_catalogue(patch: Patch) -> None:
    original = Subscriptions.facts

    def facts(self: Subscriptions) -> list[tuple[str, list[object] | None]]:
        return [fact for fact in original(self) if fact[1] is not None]

    patch.setattr(Subscriptions, "facts", facts)


def rows_are_taken_late(patch: Patch) -> None:
    """What a checkpoint says of subscriptions is taken when it ends: a replay adds to it."""
    original = cp._begin

    def begin(engine: Engine) -> cp._Cut:
        dirty = dict(engine.subscriptions.dirty)
        cut = original(engine)
        engine.subscriptions.dirty.update(dirty)
        return cut._replace(facts=[])

    patch.setattr(cp, "_begin", begin)


def the_extension_is_not_named(patch: Patch) -> None:
    patch.setattr(Engine, "declare", lambda _: None)


def links_of_new_streams_are_forgotten(patch: Patch) -> None:
    """A link that follows from a stream's creation is in no row."""
    original = Subscriptions._link_matching

    def link_matching(self: Subscriptions, root: str, path: str) -> None:
        dirty = dict(self.dirty)
        original(self, root, path)
        self.dirty = dirty

    patch.setattr(Subscriptions, "_link_matching", link_matching)


MUTANTS: list[Callable[[Patch], None]] = [
    a_wake_is_shown_before_it_is_durable,
    a_generation_falls,
    a_fenced_holder_moves_a_cursor,
    a_pending_one_sleeps_after_a_restart,
    a_cursor_is_not_in_the_frame,
    an_end_is_not_in_the_catalogue,
    rows_are_taken_late,
    the_extension_is_not_named,
    links_of_new_streams_are_forgotten,
]


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_seeded_bug_is_seen(mutant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutant(monkeypatch)
    with pytest.raises((ViolationError, AssertionError)):
        for seed in range(SEEDS):
            hunt(seed, steps=40, cap=2, deep=0.05, choose=subscribed_step)

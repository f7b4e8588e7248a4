"""Subscriptions in a directory without a server: verified, and carried through a repair."""

import pytest

from durastreamd.engine.opening import open_engine
from durastreamd.model.subscription_records import SubscriptionConfig
from durastreamd.offline.repair.apply import Repair
from durastreamd.offline.repair.plan import make_plan
from durastreamd.offline.verify.subscribed import RAISED
from durastreamd.offline.verify.verification import Scope, examine, in_turn
from durastreamd.storage import datadir, format as fmt
from durastreamd.storage.extensions import SUBSCRIPTIONS
from tests.support.damage import UUID
from tests.support.moving_disk import MovingDisk, moving
from tests.support.subscribed import change, link, subscribe, unsubscribe
from tests.support.world import NOW, TINY, World, dump

CONFIG = SubscriptionConfig("pull-wake", "**", (), "", "wakes", 1000)


@pytest.fixture
def world() -> World:
    """A directory with subscriptions in its catalogue and in its journal."""
    found = World()
    found.create("/a", content_type="text/plain")
    subscribe(found, "w", CONFIG)
    subscribe(found, "ended", CONFIG)
    unsubscribe(found, found.engine.subscriptions.by_id["", "ended"])
    found.checkpoint()
    found.append("/a", b"12345")
    each = found.engine.subscriptions.by_id["", "w"]
    link(found, each, "later", there=True)
    found.create("/b", content_type="text/plain")
    change(found, each.wake(found.now_ms, "x"))
    return found


def repaired(disk: MovingDisk) -> None:
    plan = make_plan(disk, examine(disk, Scope(deep=True), in_turn(disk)), make_uuid=UUID)
    with Repair(disk) as repair:
        repair.apply(plan)


def test_a_directory_with_subscriptions_verifies(world: World) -> None:
    disk = moving(world.disk)
    assert examine(disk, Scope(deep=True), in_turn(disk)).findings == []


def test_a_cursor_past_the_end_of_its_stream_is_told(world: World) -> None:
    each = world.engine.subscriptions.by_id["", "w"]
    each.links["a"].cursor = 99
    world.engine.subscriptions.dirty[f"link {each.incarnation} a"] = None
    world.checkpoint()
    disk = moving(world.disk)
    found = examine(disk, Scope(), in_turn(disk)).findings
    assert [finding.kind for finding in found] == ["cursor"]
    assert "past the end at 5" in found[0].detail


def test_a_repair_keeps_every_subscription_as_it_was(world: World) -> None:
    before = dump(world.engine)
    disk = moving(world.disk)
    disk.unlink(fmt.IDENTITY_FILE)
    repaired(disk)
    assert datadir.read_identity(disk).extensions >= {SUBSCRIPTIONS}
    engine, _ = open_engine(disk, TINY, lambda: UUID, NOW)
    after = dump(engine)
    kept = {key: value for key, value in before.items() if not key.startswith("/")}
    assert {key: value for key, value in after.items() if not key.startswith("/")} == kept


def test_where_records_are_lost_no_token_from_before_fits(world: World) -> None:
    disk = moving(world.disk)
    disk.unlink(max(path for path in disk.files() if path.endswith(".jnl")))
    repaired(disk)
    engine, _ = open_engine(disk, TINY, lambda: UUID, NOW)
    held = engine.subscriptions
    assert held.by_id["", "w"].head.generation >= RAISED
    assert held.by_id["", "w"].head.wake_id == ""
    assert held.tombstones["", "ended"] >= RAISED

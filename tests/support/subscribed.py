"""Subscriptions in the world of the crash simulation: what clients, workers and timers do to them.

``show`` is where something leaves the server (a webhook, an answer to a claim): whatever it shows
must be found again after the worst power cut at that very moment (W5).
"""

import random
from collections.abc import Callable

from durastreamd.model.globs import Pattern
from durastreamd.model.subscription import Ack, Refused, Subscription, SubscriptionState
from durastreamd.model.subscription_records import (
    EXPLICIT,
    PULL_WAKE,
    WEBHOOK,
    SubscriptionChange,
    SubscriptionConfig,
    SubscriptionEnd,
    SubscriptionLinks,
)
from durastreamd.model.subscriptions import put_of
from durastreamd.storage.extensions import SUBSCRIPTIONS
from tests.support.sim_disk import crash_images
from tests.support.world import World, random_step, start

IDLE, WAKING, LIVE = SubscriptionState
PATTERNS = ("", "*", "**", "s1", "nothing/*")


def subscribe(world: World, name: str, config: SubscriptionConfig, root: str = "") -> None:
    held = world.engine.subscriptions
    if held.find(root, name) is not None:
        return
    pattern = Pattern(config.pattern) if config.pattern else None
    matching = held.scan(root, pattern, "", 10_000)[0] if pattern else []
    incarnation = world.now_ms * 10 + len(held.by_id)
    record = put_of(held, (root, name), config, incarnation, matching, world.now_ms, "http://h")
    world.engine.extend(SUBSCRIPTIONS)
    world.commit([(record, b"")])


def unsubscribe(world: World, each: Subscription) -> None:
    world.commit([(SubscriptionEnd(each.root, each.id, world.now_ms), b"")])


def link(world: World, each: Subscription, path: str, *, there: bool) -> None:
    held = world.engine.subscriptions
    fields = held.link_at_tail(each.root, path, EXPLICIT if there else 0)
    if path != each.config.wake_stream:
        world.commit([(SubscriptionLinks(each.incarnation, (fields,), world.now_ms), b"")])


def change(world: World, record: SubscriptionChange | Refused | None) -> bool:
    if not isinstance(record, SubscriptionChange):
        return False
    before = world.engine.subscriptions.by_incarnation[record.incarnation].head
    assert record.head.generation >= before.generation, "a generation fell (W1)"
    world.commit([(record, b"")])
    return True


def show(world: World, each: Subscription) -> None:
    """Let the world outside see the current wake."""
    head = each.head
    cut = next(iter(crash_images(world.disk, random.Random(0), cap=1)))
    engine, _ = start(cut, now_ms=world.now_ms)
    found = engine.subscriptions.by_incarnation.get(each.incarnation)
    assert found is not None, "a subscription was shown that a crash forgets (W5)"
    shown, kept = (head.generation, head.wake_id), (found.head.generation, found.head.wake_id)
    assert shown == kept, f"a wake was shown that a crash forgets: {shown}, {kept} (W5)"


def turn(world: World, each: Subscription, rng: random.Random) -> None:
    """Do what may happen to a subscription as it is."""
    now, lot = world.now_ms, f"{rng.getrandbits(96):024x}"
    world.engine.subscriptions.stirred.pop(each, None)
    if each.state is IDLE and not each.pending:
        return
    if change(world, each.lapse(now, lot)):
        return
    if each.state is IDLE and (each.webhook or rng.random() < 0.5):
        change(world, each.wake(now, lot))
        return
    if each.webhook:
        show(world, each)
        if each.head.lease_ms:
            _held(world, each, rng, lot)
        elif rng.random() < 0.4:
            change(world, each.failed("refused", now))
        else:
            change(world, each.taken(now, lot, done=rng.random() < 0.5))
    elif each.state is LIVE:
        _held(world, each, rng, lot)
    elif each.state is WAKING and rng.random() < 0.4:
        change(world, each.announced(now))
    elif change(world, each.claim("worker", now, lot)):
        show(world, each)


def _held(world: World, each: Subscription, rng: random.Random, lot: str) -> None:
    """A holder acts, or one that was fenced tries to."""
    head, now = each.head, world.now_ms
    stale = rng.random() < 0.3
    generation = head.generation - stale
    refused = each.fence(generation, generation, head.wake_id, now)
    assert (refused is not None) is (stale or now >= head.lease_ms), refused
    if refused is not None:
        return
    links = [link for link in each.links.values() if link.stream is not None]
    acks = [Ack(link.path, link.tail) for link in links if rng.random() < 0.7]
    cursors = each.cursors(acks)
    assert not isinstance(cursors, Refused), cursors
    if rng.random() < 0.5:
        change(world, each.hold(cursors, now))
    else:
        change(world, each.finish(cursors, now, lot))


def _config(rng: random.Random) -> SubscriptionConfig:
    webhook = rng.random() < 0.5
    pattern = rng.choice(PATTERNS)
    streams = () if pattern and rng.random() < 0.5 else ("s0", "s2")
    url, wake_stream = ("https://r/", "") if webhook else ("", "wakes")
    kind = WEBHOOK if webhook else PULL_WAKE
    return SubscriptionConfig(kind, pattern, streams, url, wake_stream, 1000)


def subscribed_step(world: World, rng: random.Random) -> Callable[[], object]:
    """Choose an operation: two in three concern subscriptions."""
    held = list(world.engine.subscriptions.by_id.values())
    world.now_ms += rng.choice((0, 0, 0, 900))
    if rng.random() < 0.4 or (not held and rng.random() < 0.3):
        return random_step(world, rng)
    if len(held) < 2 or rng.random() < 0.1:
        return lambda: subscribe(world, f"w{rng.randrange(3)}", _config(rng))
    each = rng.choice(held)
    choices: list[tuple[int, Callable[[], object]]] = [
        (12, lambda: turn(world, each, rng)),
        (2, lambda: link(world, each, f"s{rng.randrange(5)}", there=rng.random() < 0.6)),
        (1, lambda: unsubscribe(world, each)),
    ]
    return rng.choices([do for _, do in choices], [weight for weight, _ in choices])[0]

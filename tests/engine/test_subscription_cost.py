"""What an append pays for subscriptions: counted in instructions of the interpreter, in one run."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from durastreamd.model.draft import AppendCommand, Draft, Payload
from durastreamd.model.globs import Pattern
from durastreamd.model.records import Record
from durastreamd.model.subscription_records import SubscriptionConfig
from durastreamd.model.subscriptions import put_of
from durastreamd.storage.extensions import SUBSCRIPTIONS
from tests.support.world import World

OTHERS = 10_000


def instructions(job: Callable[[], object]) -> int:
    """Return how many instructions of the interpreter a job takes."""
    count = 0

    def trace(frame: FrameType, event: str, _argument: Any) -> Callable[..., Any]:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    sys.settrace(trace)
    try:
        job()
    finally:
        sys.settrace(None)
    return count


def cost(world: World) -> int:
    """Return what it takes to fold one append of a stream in."""
    stream = world.engine.namespace.by_key["/mine"]
    draft = Draft(stream, 10)
    draft.decide(AppendCommand(Payload(b"x"), "text/plain"))
    record, payload = draft.record(world.now_ms)
    lsn = world.engine.journal.next_lsn
    frame = world.engine.stage(record, payload, lsn)
    world.engine.journal.commit([frame], world.engine.journal.encode([frame]))
    return instructions(lambda: world.engine.applied(record, frame))


def subscribe(world: World, wanted: list[tuple[str, str]]) -> None:
    """Make subscriptions without looking at the world after each."""
    held = world.engine.subscriptions
    world.engine.extend(SUBSCRIPTIONS)
    first = len(held.by_id)
    puts: list[tuple[Record, bytes | memoryview]] = []
    for number, (name, pattern) in enumerate(wanted, first):
        config = SubscriptionConfig("pull-wake", pattern, (), "", "wakes", 1000)
        matching, _ = held.scan("", Pattern(pattern), "", 10)
        puts.append((put_of(held, ("", name), config, number, matching, 1, "http://h"), b""))
    for at in range(0, len(puts), 500):
        world.engine.commit(puts[at : at + 500])


def test_an_append_pays_for_those_who_want_its_stream_and_for_nobody_else() -> None:
    world = World()
    world.create("/mine", content_type="text/plain")
    cost(world)
    none = cost(world)
    subscribe(world, [(f"s{number}", f"tenant-{number}/**") for number in range(OTHERS)])
    others = cost(world)
    subscribe(world, [("mine", "mine")])
    one = cost(world)
    figures = f"{none} instructions, {others} with {OTHERS} others, {one} with one that wants it"
    assert others == none, figures
    assert none < one < 2 * none, figures

"""What ``engine.hot_bytes_max`` bounds is memory, not bytes of clients: tiny records count, too."""

import tracemalloc
from typing import Any

import pytest

from durastreamd.engine import checkpoint as cp
from durastreamd.engine.engine import Engine
from durastreamd.model.draft import AppendCommand, Draft, Payload
from tests.support.world import World

RECORDS = 2000
BINARY = "application/octet-stream"


def append(engine: Engine, body: bytes, **options: Any) -> None:
    draft = Draft(engine.namespace.by_key["/a"], 10)
    draft.decide(AppendCommand(Payload(body), BINARY, **options))
    engine.commit([draft.record(1_700_000_000_000)])


@pytest.fixture
def engine() -> Engine:
    world = World()
    world.create("/a", content_type=BINARY)
    return world.engine


@pytest.mark.parametrize("named", ["", "producer"])
def test_tiny_records_count_what_they_take(named: str, engine: Engine) -> None:
    """A record of one byte takes hundreds; the sum of their bytes says nothing of the memory."""
    before = engine.hot_bytes
    tracemalloc.start()
    try:
        for number in range(RECORDS):
            options = {"producer": (named, 0, number)} if named else {}
            append(engine, b"%d" % (number % 10), **options)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    taken -= 2 * engine.journal.length  # the simulated disk has the journal in memory, and synced
    counted = engine.hot_bytes - before
    assert taken < 1.3 * counted
    assert counted > 100 * RECORDS


def test_a_flush_for_memory_comes_by_the_number_of_records_as_well(engine: Engine) -> None:
    records = 0
    while engine.hot_bytes <= engine.options.hot_bytes_max:
        append(engine, b"x")
        records += 1
    assert records < 20
    cp.run(cp.flush(engine))
    assert engine.hot_bytes == 0

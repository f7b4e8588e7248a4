"""What is exported and imported again is the same, to the byte; what is damaged is refused."""

import argparse
import io
import random
from collections.abc import Callable

import cbor2
import pytest
from hypothesis import given, settings, strategies as st

from durastreamd.admin.command import CommandError
from durastreamd.admin.exporting import export_everything
from durastreamd.admin.importing import bring_in
from durastreamd.admin.items import ITEM, SELF_DESCRIBED
from durastreamd.engine.engine import Engine
from durastreamd.errors import DurastreamError
from durastreamd.model.draft import AppendCommand, Draft, Payload
from durastreamd.model.stream_state import Stream
from durastreamd.protocol.outcomes import Duplicate, StaleEpoch
from durastreamd.storage.verify import verify_files
from tests.support.fault_disk import FAULTS, FaultDisk
from tests.support.sim_disk import SimDisk
from tests.support.world import NOW, TINY, Dump, World, dump, random_step, start

CBOR = argparse.Namespace(format="cbor")


def exported(engine: Engine, streams: list[Stream] | None = None) -> bytes:
    out = io.BytesIO()
    chosen = list(engine.namespace.by_id.values()) if streams is None else streams
    chosen.sort(key=lambda stream: stream.id)
    export_everything(engine, chosen, out, NOW, whole=streams is None)
    return out.getvalue()


def imported(
    engine: Engine, data: bytes, args: argparse.Namespace = CBOR, **renames: str
) -> None:
    bring_in(engine, args, (io.BytesIO(data), "export.cbor"), renames)


def without_ids(found: Dump) -> Dump:
    """Leave out what an import may choose anew: ids, and the blob's name and sum with them."""
    left: Dump = {}
    for key, (first, *rest) in found.items():
        if key.startswith("bucket "):
            left[key] = (first, *rest)
            continue
        blob = rest[9]
        rest[9] = blob and (blob.position, blob.serial, blob.content_type, blob.size)  # type: ignore[attr-defined]
        left[key] = tuple(rest)
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
    for stream in engine.namespace.by_id.values():
        assert list(verify_files(engine.disk, stream.id, engine.placements[stream.id])) == []


def random_world(seed: int, steps: int) -> World:
    rng = random.Random(seed)
    world = World()
    for _ in range(steps):
        world.step(random_step(world, rng), keep=False)
    world.reopen()
    return world


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 60))
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

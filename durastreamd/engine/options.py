"""The engine's numbers, each with its reason."""

from dataclasses import dataclass
from typing import Annotated

import msgspec

MIB = 1024 * 1024
POSITIVE = msgspec.Meta(gt=0)


@dataclass(frozen=True)
class EngineOptions:
    """Limits and sizes; the configuration fills them in."""

    journal_bytes_max: Annotated[int, "bounds what a start after a crash replays", POSITIVE] = (
        64 * MIB
    )
    segment_bytes_max: Annotated[
        int, "the unit of reclamation; small enough to copy, few per GB", POSITIVE
    ] = 64 * MIB
    hot_bytes_max: Annotated[
        int, "committed bytes kept in memory before they are flushed", POSITIVE
    ] = 64 * MIB
    state_every_bytes: Annotated[int, "of index: bounds what opening a stream reads", POSITIVE] = (
        32 * 1024
    )
    handles_max: Annotated[
        int, "open segment files; a quarter of the usual soft limit", POSITIVE
    ] = 512
    proof_bytes_max: Annotated[
        int, "sums of verified blocks: of 100 GB, or of 40,000 small streams", POSITIVE
    ] = 16 * MIB
    syncs_max: Annotated[
        int, "dirty files beyond which one sync of the file system is cheaper", POSITIVE
    ] = 32
    slice_streams: Annotated[
        int, "streams a checkpoint prepares at once: about a millisecond", POSITIVE
    ] = 64
    producers_max: Annotated[
        int, "per stream: some 600 KiB of state, and a bound at all", POSITIVE
    ] = 10_000
    fork_depth_max: Annotated[
        int, "forks of forks: a read of the last goes through as many files", POSITIVE
    ] = 1000
    touch_fraction: Annotated[
        int, "a read renews a lifetime on disk when 1/8 of it has passed", POSITIVE
    ] = 8

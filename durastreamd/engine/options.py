"""The engine's numbers, each with its reason."""

from dataclasses import dataclass
from typing import Annotated

import msgspec

MIB = 1024 * 1024
POSITIVE = msgspec.Meta(gt=0)


@dataclass(frozen=True)
class EngineOptions:
    """What is kept in files and in memory: how large, how many."""

    journal_bytes_max: Annotated[
        int, "of one journal file; a start after a crash reads about so much", POSITIVE
    ] = 64 * MIB
    segment_bytes_max: Annotated[
        int, "of one segment file; room is given back a file at a time", POSITIVE
    ] = 64 * MIB
    hot_bytes_max: Annotated[
        int, "committed records kept in memory before they are flushed", POSITIVE
    ] = 64 * MIB
    state_every_bytes: Annotated[
        int, "of an index between two states; opening a stream reads so much", POSITIVE
    ] = 32 * 1024
    handles_max: Annotated[
        int, "segment files kept open; a quarter of the usual limit", POSITIVE
    ] = 512
    proof_bytes_max: Annotated[
        int, "memory of what was verified: 100 GB, or 40,000 small streams", POSITIVE
    ] = 16 * MIB
    syncs_max: Annotated[
        int, "with more changed files the whole file system is synced at once", POSITIVE
    ] = 32
    slice_streams: Annotated[
        int, "streams a checkpoint takes at a time: about a millisecond", POSITIVE
    ] = 64
    producers_max: Annotated[
        int, "producers known to one stream: about 600 KiB of memory", POSITIVE
    ] = 10_000
    fork_depth_max: Annotated[
        int, "forks of forks: a read of the last goes through as many files", POSITIVE
    ] = 1000
    touch_fraction: Annotated[
        int, "a read renews a lifetime on disk when 1/8 of it has passed", POSITIVE
    ] = 8

"""The engine's numbers, each with its reason."""

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True)
class EngineOptions:
    """Limits and sizes; the configuration fills them in."""

    journal_bytes_max: int = 64 * MIB  # bounds what a start after a crash replays
    segment_bytes_max: int = 64 * MIB  # the unit of reclamation; small enough to copy, few per GB
    hot_bytes_max: int = 64 * MIB  # committed bytes kept in memory before they are flushed
    state_every_bytes: int = 32 * 1024  # of index: bounds what opening a stream reads
    handles_max: int = 512  # open segment files; a quarter of the usual soft limit
    syncs_max: int = 32  # dirty files beyond which one sync of the file system is cheaper
    slice_streams: int = 64  # streams a checkpoint prepares at once: about a millisecond
    producers_max: int = 10_000  # per stream: some 600 KiB of state, and a bound at all
    touch_fraction: int = 8  # a read renews a lifetime on disk when 1/8 of it has passed

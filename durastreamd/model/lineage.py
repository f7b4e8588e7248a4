"""Whose bytes a fork shows: its own, its source's below the fork, its source's source's below that.

A chain of forks may be as long as clients make it (``fork_depth_max`` bounds it, and directories
from before there was a bound are opened all the same), so nothing here recurses, and nobody walks a
chain to find that most of it holds nothing: for each fork it is known which ancestor holds the next
bytes below it. A fork of a fork of a stream at the stream's end has one step to go, not two.

What is known of a fork never changes while it lives: its source and its position are fixed, and a
stream that has forks does not go before them.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from durastreamd.model.stream_state import Stream


class Part(NamedTuple):
    """The part of a stream's bytes that one stream holds."""

    holder: Stream
    low: int
    high: int


class Lineage:
    """The ancestors of the streams in a table, which belongs to somebody else."""

    def __init__(self, streams: Mapping[int, Stream]) -> None:
        self._streams = streams
        # Of forks alone, filled when asked: how many generations, and who holds the bytes below.
        self._depths: dict[int, int] = {}
        self._holders: dict[int, int] = {}

    def depth(self, stream: Stream) -> int:
        """Return how many generations of forks led to a stream; 0 for one that is no fork."""
        if not stream.source:
            return 0
        self._learn(stream)
        return self._depths[stream.id]

    def parts(self, stream: Stream) -> Iterator[Part]:
        """Yield who holds a stream's bytes, from its tail down, its own (even if empty) first."""
        high = stream.tail
        holder: Stream | None = stream
        while holder is not None:
            yield Part(holder, holder.fork_position, high)
            high = holder.fork_position
            holder = self._below(holder)

    def forget(self, stream: Stream) -> None:
        """Drop what is known of a stream that ceased to exist."""
        self._depths.pop(stream.id, None)
        self._holders.pop(stream.id, None)

    def _below(self, stream: Stream) -> Stream | None:
        """Return the nearest ancestor that holds bytes below a fork's own."""
        if not stream.source:
            return None
        self._learn(stream)
        return self._streams.get(self._holders[stream.id])

    def _learn(self, stream: Stream) -> None:
        """Learn about a fork, and first about those of its ancestors that are not known yet."""
        unknown: dict[int, Stream] = {}
        level: Stream | None = stream
        # In a damaged directory a chain might close to a circle; then it begins here.
        while level is not None and level.source:
            if level.id in self._depths or level.id in unknown:
                break
            unknown[level.id] = level
            level = self._streams.get(level.source)
        for fork in reversed(unknown.values()):
            self._depths[fork.id] = self._depths.get(fork.source, 0) + 1
            holder = self._streams.get(fork.source)
            while holder is not None and holder.fork_position >= fork.fork_position:
                holder = self._streams.get(self._holders.get(holder.id, 0))
            self._holders[fork.id] = holder.id if holder is not None else 0

"""What a lost range means for the stream that lost it, and for its forks.

A hole is never served. What lies after the loss is kept: the floor rises to the end of it, so that
every offset keeps its meaning, a reader from below is told 410, and the tail stands. If nothing
follows the loss the tail is cut back to the last byte that survives; if nothing precedes it either,
the stream is empty at its old tail. With ``keep="older"`` what lies before the first loss is kept
instead, and the tail is cut back to it.

A snapshot goes with a raised floor: what it was folded from no longer joins what follows.
"""

from typing import NamedTuple

from durastreamd.model.lineage import Lineage
from durastreamd.model.stream_state import Stream
from durastreamd.offline.verify.census import Ranges, joined, without


class Verdict(NamedTuple):
    """A stream's new extent, and what is lost: destroyed, or whole but served no longer."""

    floor: int
    tail: int
    destroyed: Ranges
    hidden: Ranges


def lost_of(lineage: Lineage, covered: dict[int, Ranges], stream: Stream) -> Ranges:
    """Return what is lost of all a stream shows, its own bytes and those it inherited."""
    lost: Ranges = []
    reached = stream.tail
    for holder, begin, high in lineage.parts(stream):
        if high <= stream.floor:
            break
        low = max(begin, stream.floor)
        if low < high:
            lost += without([(low, high)], covered[holder.id])
        reached = low
    if reached > stream.floor:  # nobody holds the rest: a source is gone
        lost.append((stream.floor, reached))
    return joined(lost)


def judge(stream: Stream, lost: Ranges, keep: str) -> Verdict:
    """Decide what a stream is served as."""
    floor, tail = stream.floor, stream.tail
    own = max(floor, stream.fork_position)
    if not lost:
        return Verdict(floor, tail, [], [])
    served: tuple[int, int]
    before = [high for _, high in lost[:-1]]
    if keep == "older" and lost[0][0] > own:
        served = (floor, lost[0][0])
    elif lost[-1][1] < tail:
        served = (lost[-1][1], tail)
    elif lost[-1][0] > max([own, *before]):
        served = (max([floor, *before]), lost[-1][0])
    else:
        served = (tail, tail)
    hidden = without([(floor, tail)], [*lost, served])
    return Verdict(served[0], served[1], lost, hidden)

"""What a lost range means for the stream that lost it, and for its forks.

A hole is never served, so of the runs of bytes that losses leave of a stream one is kept. Which one
is the operator's choice, for all streams or for one:

    larger   the longest run (the default). Where two are of one length, the one that joins the
             snapshot, else the newest
    older    the first run: the stream begins as it did, and its tail is cut back to the loss
    newer    the last run: the floor rises to the end of the loss, every offset keeps its meaning

Bytes that are at hand without any proof (their checksums are lost) are no loss and no part of a run
either, until the operator has said what becomes of them, for all streams or for one: ``take`` has
them served, ``drop`` leaves them in quarantine and treats their range as lost. There is no default:
one may serve wrong bytes, the other may give up good ones.

Readers from below a raised floor are told 410, reason ``DATA_LOST``. Where no run is left the
stream is empty at its old tail, or at its snapshot.

A snapshot whose blob verifies stays. It counts as the beginning of the older run, even where
nothing else is left of that. If another run is kept the snapshot lies below the floor: it can be
read by itself, and bootstrap, which would join the two, is refused (see ``Stream.lost_from``).

A fork shows bytes of its source, so sources are settled first, and a fork loses what its source was
cut back by. Kept up to a place below its fork position, it becomes a fork at that place.
"""

from collections.abc import Mapping
from typing import NamedTuple

from durastreamd.model.lineage import Lineage
from durastreamd.model.stream_state import Stream
from durastreamd.offline.verify.census import Ranges, joined, without

SIDES = ("larger", "older", "newer")
TAKE, DROP = PROOFLESS = ("take", "drop")
Run = tuple[int, int]


class Keep(NamedTuple):
    """Which side of a loss is kept: of every stream, and of those the operator named.

    And in the same way what becomes of bytes without proof; "" where nothing was said.
    """

    side: str = "larger"
    named: Mapping[str, str] = {}
    unproven: str = ""
    unproven_named: Mapping[str, str] = {}


class Verdict(NamedTuple):
    """A stream's new extent, what goes, and what the other choices would keep."""

    served: Run
    given_up: Ranges  # whole, but served no longer
    instead: dict[str, Run]


def lost_of(lineage: Lineage, covered: Mapping[int, Ranges], stream: Stream) -> Ranges:
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


def judge(stream: Stream, lost: Ranges, unserved: Ranges, side: str) -> Verdict:
    """Decide what a stream is served as that has lost something.

    ``unserved`` is what goes for another reason than that it stands on the wrong side.
    """
    choices = _choices(stream, lost)
    served = choices[side]
    given_up = without([(stream.floor, stream.tail)], [*unserved, served])
    instead = {name: run for name, run in choices.items() if run != served and run[0] < run[1]}
    return Verdict(served, given_up, instead)


def kept_of(stream: Stream, lost: Ranges, side: str) -> Run:
    """Return what a stream would be served as."""
    return _choices(stream, lost)[side] if lost else (stream.floor, stream.tail)


def _choices(stream: Stream, lost: Ranges) -> dict[str, Run]:
    floor, tail = stream.floor, stream.tail
    runs: list[Run] = without([(floor, tail)], lost)
    folded = stream.snapshot is not None and stream.lost_from() is None
    if folded and lost[0][0] == floor:
        runs.insert(0, (floor, floor))
    if not runs:
        runs = [(tail, tail)]
    # The first of equals is taken.
    ranked = [*runs[:1], *runs[:0:-1]] if folded else runs[::-1]
    largest = max(ranked, key=lambda run: run[1] - run[0])
    return {"larger": largest, "older": runs[0], "newer": runs[-1]}

"""What the service counts: plain numbers, changed in place where it happens, read by the metrics.

Counting an append costs less than a microsecond; how long appends took is looked at now and then.
"""

from collections import defaultdict
from time import perf_counter

from durastreamd.protocol import outcomes as oc
from durastreamd.streams.histogram import Histogram

CATCH_UP, LONG_POLL, SSE = "catchup", "longpoll", "sse"
APPEND_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
SAMPLED = 16  # one append in so many is timed

RESULTS: dict[type, str] = {
    oc.Appended: "new",
    oc.Duplicate: "duplicate",
    oc.AlreadyClosed: "already_closed",
    oc.StreamClosed: "closed",
    oc.StaleEpoch: "stale_epoch",
    oc.EpochNotAtZero: "epoch_not_at_zero",
    oc.SequenceGap: "sequence_gap",
    oc.SeqRegression: "sequence_conflict",
    oc.ContentTypeMismatch: "content_type_mismatch",
    oc.TooManyProducers: "too_many_producers",
    oc.Malformed: "malformed",
    oc.NotFound: "not_found",
    oc.Gone: "gone",
}


class Counts:
    """The numbers of one server."""

    def __init__(self) -> None:
        self.appends: defaultdict[type, int] = defaultdict(int, dict.fromkeys(RESULTS, 0))
        self._number = 0
        self.append_s = Histogram(APPEND_S)
        self.reads = {CATCH_UP: 0, LONG_POLL: 0, SSE: 0}
        self.read_bytes = {CATCH_UP: 0, LONG_POLL: 0, SSE: 0}
        self.live = {LONG_POLL: 0, SSE: 0}
        self.closed_pauses = 0

    def begin_append(self) -> float:
        """Note that an append has come; return when, if it is one that is timed, else 0."""
        self._number += 1
        return 0.0 if self._number % SAMPLED else perf_counter()

    def end_append(self, outcome: oc.Outcome, begun: float) -> None:
        """Note what became of an append."""
        self.appends[type(outcome)] += 1
        if begun:
            self.append_s.add(perf_counter() - begun)

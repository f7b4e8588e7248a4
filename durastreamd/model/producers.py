"""Idempotent producers: the epoch and sequence rules (the protocol's 5.2.1), and nothing else.

| known state      | the request            | answer                            |
|------------------|------------------------|-----------------------------------|
| none             | seq 0, any epoch       | accept                            |
| none             | seq > 0                | gap, 0 was expected               |
| epoch E, last L  | epoch < E              | stale: fenced by E                |
| epoch E, last L  | epoch > E, seq 0       | accept: a new session             |
| epoch E, last L  | epoch > E, seq > 0     | refused: a new epoch starts at 0  |
| epoch E, last L  | epoch E, seq <= L      | duplicate                         |
| epoch E, last L  | epoch E, seq L + 1     | accept                            |
| epoch E, last L  | epoch E, seq > L + 1   | gap, L + 1 was expected           |

A producer that asks for it (``Producer-Strict``) has the sums of its appends kept, so that a repeat
can be told from other bytes under the same number. They are kept as runs of consecutive numbers of
one epoch; an append that did not ask for it leaves them as they are, and the next one that does
begins a new run.
"""

from enum import Enum, auto
from typing import NamedTuple

NUMBER_MAX = 2**53 - 1  # what a JavaScript client can count to

SUM_CHARACTERS = 16  # of one sum, in hex: text, since no header of a record may hold a magic
SUMS_MAX = 1024  # of one producer: so many appends of one epoch can be told from other bytes
STREAM_SUMS_MAX = 8192  # of all producers of a stream: 128 KiB in each of its states


class SumRun(NamedTuple):
    """The sums of appends with consecutive numbers of one epoch, up to number ``last``."""

    epoch: int
    last: int
    sums: str

    @property
    def appends(self) -> int:
        """Return of how many appends they are."""
        return len(self.sums) // SUM_CHARACTERS

    def of(self, epoch: int, seq: int) -> str | None:
        """Return the sum of one append, None if it is not among them."""
        back = self.last - seq
        if epoch != self.epoch or not 0 <= back < self.appends:
            return None
        end = len(self.sums) - back * SUM_CHARACTERS
        return self.sums[end - SUM_CHARACTERS : end]

    def then(self, later: "SumRun") -> "SumRun":
        """Return what is known once a later run has come: both, if they join."""
        if later.epoch != self.epoch or later.last - later.appends != self.last:
            return later
        return later._replace(sums=(self.sums + later.sums)[-SUMS_MAX * SUM_CHARACTERS :])


class ProducerVerdict(Enum):
    """What the rules say of one request."""

    ACCEPT = auto()
    DUPLICATE = auto()
    STALE = auto()
    GAP = auto()
    NOT_AT_ZERO = auto()


def judge(known: tuple[int, int] | None, epoch: int, seq: int) -> ProducerVerdict:
    """Apply the table above to ``known`` (epoch, last seq) and a request."""
    if known is None:
        return ProducerVerdict.ACCEPT if seq == 0 else ProducerVerdict.GAP
    current, last = known
    if epoch < current:
        return ProducerVerdict.STALE
    if epoch > current:
        return ProducerVerdict.ACCEPT if seq == 0 else ProducerVerdict.NOT_AT_ZERO
    if seq <= last:
        return ProducerVerdict.DUPLICATE
    return ProducerVerdict.ACCEPT if seq == last + 1 else ProducerVerdict.GAP

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
"""

from enum import Enum, auto

NUMBER_MAX = 2**53 - 1  # what a JavaScript client can count to


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

"""Every operation of the disk as a crash point: the invariants of ARCHITECTURE.md hold after each.

The states are counted; CI looks at more than 200,000 (``STATES_MIN`` per shard, ``SHARDS`` shards).
A failure prints its seed: ``hunt(seed, ...)`` replays it exactly.
"""

import pytest

from tests.support.crashes import hunt

SHARDS = 24
STATES_MIN = 8_500


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SHARDS))
def test_no_crash_loses_or_doubles_what_was_acknowledged(shard: int) -> None:
    states = points = 0
    seed = shard * 1000
    while states < STATES_MIN:
        tally = hunt(seed, steps=30, cap=6)
        states += tally.states
        points += tally.points
        seed += 1
    assert states >= STATES_MIN
    assert points > 0


def test_tally_covers_what_the_readme_claims() -> None:
    assert SHARDS * STATES_MIN >= 200_000

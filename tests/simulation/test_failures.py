"""The disk fails now and then while several streams are written, with crashes between.

A failure prints its seed: ``hunt_failures(seed, ...)`` replays it exactly.
"""

import pytest

from tests.support.failures import hunt_failures

SHARDS = 4
STATES_MIN = 3_000


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SHARDS))
def test_no_failure_loses_or_hides_what_was_acknowledged(shard: int) -> None:
    states = failures = 0
    seed = shard * 1000
    while states < STATES_MIN:
        tally = hunt_failures(seed, steps=40)
        states += tally.states
        failures += tally.points
        seed += 1
    assert failures > STATES_MIN // 20

"""For all tests: hypothesis profiles, patience, and that nothing is left behind.

Profiles are quick for a developer (dev), repeatable in CI (ci) and long on request (soak).
"""

import logging
import os
import signal
from collections.abc import Generator, Iterator

import httpx
import pytest
from hypothesis import HealthCheck, settings

from tests.support.leftovers import Held, left_since
from tests.support.patience import PATIENCE_S

_SLOW_MACHINE = [HealthCheck.too_slow]
settings.register_profile("dev", deadline=None, suppress_health_check=_SLOW_MACHINE)
settings.register_profile(
    "ci", deadline=None, derandomize=True, suppress_health_check=_SLOW_MACHINE, print_blob=True
)
settings.register_profile(
    "soak", deadline=None, max_examples=5000, suppress_health_check=_SLOW_MACHINE
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if "CI" in os.environ else "dev"))

# httpx gives up after five seconds if it is told nothing, and a busy machine can take longer.
for _what in ("connect", "read", "write", "pool"):
    setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, _what, PATIENCE_S)

# A shell without job control starts what runs behind it with interrupts ignored, and whatever is
# started from there inherits it: programs under test are to end by an interrupt all the same.
signal.signal(signal.SIGINT, signal.default_int_handler)

_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember that a test failed: what it holds then is held by its traceback."""
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
    return report


@pytest.fixture(autouse=True)
def _nothing_is_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves descriptors, threads or processes behind.

    It comes first of a test's own fixtures, so it ends last, and what fixtures of a wider scope
    hold is there before it.
    """
    before = Held.now()
    yield
    if not request.node.stash.get(_FAILED, False):
        left = left_since(before, request.fixturenames)
        assert not left, "left behind: " + "; ".join(left)


@pytest.fixture(autouse=True)
def _the_log_as_it_was() -> Iterator[None]:
    """Tests that recover thousands of times silence the log; the next one may want to hear it."""
    logger = logging.getLogger("durastreamd")
    before = logger.level
    yield
    logger.setLevel(before)

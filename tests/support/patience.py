"""How long a test waits for something that has to come: so long that only a hang reaches it.

No test judges by a clock, because the machine may have other things to do; what is about speed is
in ``tools/bench``. A wait in a test has this end, so that a fault shows as a failure and not as a
run that never ends. Where the clock is trio's mock clock the end costs nothing at all.
"""

import time
from collections.abc import Callable

PATIENCE_S = 240.0
LOOK_S = 0.02  # between two looks at something that has no event of its own


def wait_until(true: Callable[[], object], why: str) -> None:
    """Look again and again until it is true; fail with ``why`` if it never is."""
    until = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < until, why
        time.sleep(LOOK_S)

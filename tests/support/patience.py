"""How long a test waits for something that has to come: so long that only a hang reaches it.

No test judges by a clock, because the machine may have other things to do; what is about speed is
in ``tools/bench``. A wait in a test has this end, so that a fault shows as a failure and not as a
run that never ends. Where the clock is trio's mock clock the end costs nothing at all.
"""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE_S = 240.0
LOOK_S = 0.02  # between two looks at something that has no event of its own


def wait_until(look: Callable[[], T | None], why: str | Callable[[], str]) -> T:
    """Look again and again until there is something true, and return it; else fail with ``why``."""
    until = time.monotonic() + PATIENCE_S
    while not (found := look()):
        if time.monotonic() > until:
            raise AssertionError(why if isinstance(why, str) else why())
        time.sleep(LOOK_S)
    return found

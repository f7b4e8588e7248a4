"""When a request is worth another try, and for how long."""

import random
import socket
import ssl
import time

from durastreamd.client.address import split
from durastreamd.client.errors import ServerRefusedError, UnreachableError
from durastreamd.client.settings import ClientSettings
from durastreamd.protocol import problems

WAIT_S_MAX = 10.0  # between two tries; a server that asks for more gets it, up to the next bound
RETRY_AFTER_S_MAX = 60.0

# What a server says that will do better later.
PASSING = {
    problems.RATE_LIMITED.code,
    problems.UNAVAILABLE.code,
    problems.REQUEST_TIMEOUT.code,
}
# The server does not know whether it stored it; what takes effect once may be sent again.
UNKNOWN = {problems.OUTCOME_UNKNOWN_REPEAT.reason}
# Called a limit of rates, but waiting does not make a producer known.
_LASTING = {problems.TOO_MANY_PRODUCERS.reason}
# Of answers without a problem document: 502 and 504 come from what stands between.
_PASSING_STATUSES = (429, 502, 503, 504)


def is_passing(refused: ServerRefusedError) -> bool:
    """Tell whether the same request may do better later; none of these was carried out."""
    if "code" in refused.problem:
        return refused.code in PASSING and refused.reason not in UNKNOWN | _LASTING
    return refused.status in _PASSING_STATUSES


def is_unsure(refused: ServerRefusedError) -> bool:
    """Tell whether it may have been carried out all the same.

    What stands between a client and a server answers 502 and 504 for what it has passed on.
    """
    return refused.reason in UNKNOWN or ("code" not in refused.problem and refused.status > 500)


class Tries:
    """How long one request is tried; ``repeatable``: also where nobody knows if it arrived.

    It says how long to wait and leaves the waiting to its caller, who may block or may not.
    """

    def __init__(self, settings: ClientSettings, *, repeatable: bool = True) -> None:
        self._until = time.monotonic() + settings.retry_s
        self._wait_s = settings.retry_interval_s
        self._repeatable = repeatable
        self._tries = 0

    def wait_after_failure(self, method: str, url: str, exc: Exception) -> float:
        """Return how long to wait after a broken connection, or raise what the user is told."""
        final = isinstance(exc, ssl.SSLCertVerificationError | socket.gaierror)
        wait_s = None if final or not self._repeatable else self._next(0.0)
        if wait_s is None:
            reason = str(exc) or type(exc).__name__
            tried = "once" if self._tries < 2 else f"{self._tries} times"
            message = f"{method} {url}: no answer from {split(url)[0]} (tried {tried}): {reason}"
            raise UnreachableError(message) from exc
        return wait_s

    def wait_after_refusal(self, refused: ServerRefusedError) -> float:
        """Return how long to wait as the server asks, or raise what it said."""
        text = refused.headers.get("retry-after", "")
        asked_s = float(text) if text.isascii() and text.isdigit() else 0.0
        passing = is_passing(refused)
        if self._repeatable:
            passing = passing or refused.reason in UNKNOWN
        else:
            passing = passing and not is_unsure(refused)
        wait_s = self._next(min(asked_s, RETRY_AFTER_S_MAX)) if passing else None
        if wait_s is None:
            raise refused
        return wait_s

    def _next(self, asked_s: float) -> float | None:
        self._tries += 1
        # Half of it is random: executors that failed together do not come back together.
        wait_s = max(asked_s, self._wait_s * random.uniform(0.5, 1.0))
        self._wait_s = min(self._wait_s * 2, WAIT_S_MAX)
        return None if time.monotonic() + wait_s > self._until else wait_s


class Patience(Tries):
    """The same, and it waits itself."""

    def after_failure(self, method: str, url: str, exc: Exception) -> None:
        """Wait after a broken connection, or raise what the user is told."""
        time.sleep(self.wait_after_failure(method, url, exc))

    def after_refusal(self, refused: ServerRefusedError) -> None:
        """Wait as the server asks, or raise what it said."""
        time.sleep(self.wait_after_refusal(refused))

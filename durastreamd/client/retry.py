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
# Of answers without a problem document: 502 and 504 come from what stands between.
_PASSING_STATUSES = (429, 502, 503, 504)


def is_passing(refused: ServerRefusedError) -> bool:
    """Tell whether the same request may do better later; none of these was carried out."""
    if "code" in refused.problem:
        carried_out = refused.reason == problems.OUTCOME_UNKNOWN_REPEAT.reason  # perhaps
        return refused.code in PASSING and not carried_out
    return refused.status in _PASSING_STATUSES


class Patience:
    """How long one request is tried; ``repeatable``: also where nobody knows if it arrived."""

    def __init__(self, settings: ClientSettings, *, repeatable: bool = True) -> None:
        self._until = time.monotonic() + settings.retry_s
        self._wait_s = settings.retry_interval_s
        self._repeatable = repeatable
        self._tries = 0

    def after_failure(self, method: str, url: str, exc: Exception) -> None:
        """Wait after a broken connection, or raise what the user is told."""
        final = isinstance(exc, ssl.SSLCertVerificationError | socket.gaierror)
        if final or not self._repeatable or not self._wait(0.0):
            reason = str(exc) or type(exc).__name__
            tried = "once" if self._tries < 2 else f"{self._tries} times"
            message = f"{method} {url}: no answer from {split(url)[0]} (tried {tried}): {reason}"
            raise UnreachableError(message) from exc

    def after_refusal(self, refused: ServerRefusedError) -> None:
        """Wait as the server asks, or raise what it said."""
        text = refused.headers.get("retry-after", "")
        asked_s = float(text) if text.isascii() and text.isdigit() else 0.0
        if not is_passing(refused) or not self._wait(min(asked_s, RETRY_AFTER_S_MAX)):
            raise refused

    def _wait(self, asked_s: float) -> bool:
        self._tries += 1
        # Half of it is random: executors that failed together do not come back together.
        wait_s = max(asked_s, self._wait_s * random.uniform(0.5, 1.0))
        self._wait_s = min(self._wait_s * 2, WAIT_S_MAX)
        if time.monotonic() + wait_s > self._until:
            return False
        time.sleep(wait_s)
        return True

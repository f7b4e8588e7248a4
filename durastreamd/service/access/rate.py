"""Token buckets: how often one caller may ask. Bounded, however many callers there are."""

import ipaddress
import math
from functools import lru_cache

from durastreamd.service.access.grants import Rate

CALLERS_MAX = 16_384  # some 3 MB
_IPV6_BITS = 64  # what one customer gets; a bucket for each address would be none at all


@lru_cache(maxsize=4096)
def caller_of(peer: str) -> str:
    """Return whom the address of a connection stands for; "" for a unix socket."""
    host = peer.rpartition(":")[0]
    if not host.startswith("["):
        return host
    address = ipaddress.IPv6Address(host.strip("[]").partition("%")[0])
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, _IPV6_BITS), strict=False))


class Limiter:
    """A bucket per caller; a full one need not be kept."""

    def __init__(self, callers_max: int = CALLERS_MAX) -> None:
        self._callers_max = callers_max
        # What was left, and when: the caller that asked last stands last.
        self._buckets: dict[str, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, caller: str, rate: Rate, now_s: float) -> float:
        """Take one request from a caller's bucket; return how long to wait if it is empty."""
        left, since_s = self._buckets.pop(caller, (rate.burst, now_s))
        left = min(rate.burst, left + (now_s - since_s) * rate.per_s)
        wait_s = 0.0
        if left >= 1:
            left -= 1
        else:
            wait_s = (1 - left) / rate.per_s
        self._buckets[caller] = (left, now_s)
        if len(self._buckets) > self._callers_max:
            # The one that has not asked for longest is the likeliest to be full again.
            del self._buckets[next(iter(self._buckets))]
        return wait_s


def whole_seconds(wait_s: float) -> int:
    """Return what Retry-After says: never too early, never 0."""
    return max(1, math.ceil(wait_s))

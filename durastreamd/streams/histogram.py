"""A histogram for the metrics page: plain numbers, counted in place."""

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """How many values were at most as large as each bound."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)  # the last one: above every bound
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def cumulated(self) -> list[tuple[str, int]]:
        """Return the buckets as Prometheus has them: each with all below it."""
        found, total = [], 0
        names = [*(repr(float(bound)) for bound in self.bounds), "+Inf"]
        for name, count in zip(names, self.counts, strict=True):
            total += count
            found.append((name, total))
        return found

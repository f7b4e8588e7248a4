"""Prometheus text: parsed, and made into rates and quantiles between two looks."""

import math
import re
from collections.abc import Iterable
from typing import NamedTuple

_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')

Labels = tuple[tuple[str, str], ...]


class Sample(NamedTuple):
    """One line of a metrics page."""

    name: str
    labels: Labels
    value: float

    def label(self, name: str) -> str:
        """Return a label's value, "" without it."""
        return dict(self.labels).get(name, "")


def parse(text: str) -> list[Sample]:
    """Return the samples of a page; lines that are none are passed over."""
    found = []
    for line in text.splitlines():
        match = _SAMPLE.fullmatch(line)
        if match is None or line.startswith("#"):
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        found.append(Sample(match[1], tuple(_LABEL.findall(match[2] or "")), value))
    return found


class Look:
    """The metrics of one moment."""

    def __init__(self, samples: Iterable[Sample], at_s: float) -> None:
        self.at_s = at_s
        self._by_name: dict[str, list[Sample]] = {}
        for sample in samples:
            self._by_name.setdefault(sample.name, []).append(sample)

    def total(self, *names: str) -> float | None:
        """Return the sum of a metric over its labels, by the first of the names that is there."""
        for name in names:
            if name in self._by_name:
                return sum(sample.value for sample in self._by_name[name])
        return None

    def by_label(self, name: str, label: str) -> dict[str, float]:
        """Return a metric by one of its labels."""
        found: dict[str, float] = {}
        for sample in self._by_name.get(name, ()):
            value = sample.label(label)
            found[value] = found.get(value, 0.0) + sample.value
        return found

    def buckets(self, name: str) -> dict[float, float]:
        """Return a histogram's cumulative counts by their upper bounds."""
        found: dict[float, float] = {}
        for sample in self._by_name.get(f"{name}_bucket", ()):
            try:
                bound = float(sample.label("le"))
            except ValueError:
                continue
            found[bound] = found.get(bound, 0.0) + sample.value
        return dict(sorted(found.items()))


def rate(before: Look | None, now: Look, *names: str) -> float | None:
    """Return how much a counter grew per second; None where it is absent or began anew.

    One that was absent before began at nothing: labels appear with their first event.
    """
    value = now.total(*names)
    if value is None or before is None or now.at_s <= before.at_s:
        return None
    earlier = before.total(*names) or 0.0
    return (value - earlier) / (now.at_s - before.at_s) if value >= earlier else None


def quantile(before: Look | None, now: Look, name: str, share: float) -> float | None:
    """Return a quantile of what a histogram saw since the look before, or ever without one."""
    counts = now.buckets(name)
    if before is not None:
        earlier = before.buckets(name)
        since = {bound: count - earlier.get(bound, 0.0) for bound, count in counts.items()}
        if since and min(since.values()) >= 0 and max(since.values()) > 0:
            counts = since
    total = max(counts.values(), default=0.0)
    if total <= 0:
        return None
    low, below = 0.0, 0.0
    for bound, count in counts.items():
        if count >= share * total:
            if math.isinf(bound):
                return low  # beyond the last bound: at least that much
            inside = count - below
            return low + (bound - low) * ((share * total - below) / inside if inside else 1.0)
        low, below = bound, count
    return low

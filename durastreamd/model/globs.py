"""Patterns over the names of streams.

A pattern is split at slashes, as a name is. ``*`` alone stands for exactly one segment, ``**``
alone for any number of them, also none; every other segment stands for itself, asterisks inside it
included. Matching goes over the pattern once for each segment of the name and keeps the set of
places it could be at, so no pattern makes it slow: segments of the one times those of the other.
"""

from durastreamd.errors import PatternError

PATTERN_BYTES_MAX = 1024  # as long as names may be, about
PATTERN_SEGMENTS_MAX = 64  # with the segments of a name, what bounds the work of one match
ANY, ONE = "**", "*"


class Pattern:
    """A pattern, ready to match."""

    __slots__ = ("_last", "_segments", "prefix", "text")

    def __init__(self, text: str) -> None:
        if len(text.encode()) > PATTERN_BYTES_MAX:
            message = f"a pattern has at most {PATTERN_BYTES_MAX} bytes"
            raise PatternError(message)
        segments: list[str] = []
        for segment in text.split("/"):
            if segment != ANY or segments[-1:] != [ANY]:  # a run of ** is one
                segments.append(segment)
        if len(segments) > PATTERN_SEGMENTS_MAX:
            message = f"a pattern has at most {PATTERN_SEGMENTS_MAX} segments"
            raise PatternError(message)
        self.text = text
        self._segments = segments
        self._last = len(segments)
        literal = next((at for at, one in enumerate(segments) if one in (ANY, ONE)), len(segments))
        self.prefix = tuple(segments[:literal])  # the segments that every match begins with

    def matches(self, name: str) -> bool:
        """Tell whether a name fits the whole pattern."""
        places = self._beyond({0})
        for segment in name.split("/"):
            places = self._beyond(self._after(places, segment))
            if not places:
                return False
        return self._last in places

    def _after(self, places: set[int], segment: str) -> set[int]:
        """Return where one more segment leads."""
        found: set[int] = set()
        for place in places:
            if place == self._last:
                continue
            expected = self._segments[place]
            if expected == ANY:
                found.add(place)
            elif expected in (ONE, segment):
                found.add(place + 1)
        return found

    def _beyond(self, places: set[int]) -> set[int]:
        """Add the places that are reached when a ``**`` stands for nothing; no two follow."""
        for place in list(places):
            if place < self._last and self._segments[place] == ANY:
                places.add(place + 1)
        return places


class PatternIndex:
    """Many patterns, found by the literal segments they begin with."""

    def __init__(self) -> None:
        self._by_prefix: dict[tuple[str, ...], dict[int, Pattern]] = {}
        self._depths: dict[int, int] = {}  # how many prefixes have so many segments

    def __bool__(self) -> bool:
        return bool(self._by_prefix)

    def add(self, number: int, pattern: Pattern) -> None:
        """Enter a pattern under a number of the caller's."""
        if pattern.prefix not in self._by_prefix:
            self._by_prefix[pattern.prefix] = {}
            depth = len(pattern.prefix)
            self._depths[depth] = self._depths.get(depth, 0) + 1
        self._by_prefix[pattern.prefix][number] = pattern

    def remove(self, number: int, pattern: Pattern) -> None:
        """Take a pattern out."""
        held = self._by_prefix[pattern.prefix]
        del held[number]
        if not held:
            del self._by_prefix[pattern.prefix]
            depth = len(pattern.prefix)
            self._depths[depth] -= 1
            if not self._depths[depth]:
                del self._depths[depth]

    def matching(self, name: str) -> list[int]:
        """Return the numbers of the patterns that a name fits."""
        segments = tuple(name.split("/"))
        found: list[int] = []
        for depth in self._depths:
            held = self._by_prefix.get(segments[:depth]) if depth <= len(segments) else None
            if held:
                found += [number for number, pattern in held.items() if pattern.matches(name)]
        return found

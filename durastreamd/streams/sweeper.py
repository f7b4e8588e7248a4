"""Which streams' lifetimes are over: a heap of deadlines, looked at once in a while.

A deadline in the heap is a lower bound: reads and writes push the real one further, which is
found out when the entry comes up and is put back with the new one. So nothing is done on access.
"""

import heapq

from durastreamd.model.namespace import Namespace
from durastreamd.model.stream_state import Stream


class Sweeper:
    """Watches every stream that has a lifetime."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._heap: list[tuple[int, int]] = []
        for stream in namespace.by_id.values():
            self.watch(stream)

    def watch(self, stream: Stream | None) -> None:
        """Take a stream into view; those that live for ever are let go."""
        if stream is None:
            return
        deadline = stream.deadline_ms()
        if self._namespace.abandoned(stream):
            heapq.heappush(self._heap, (0, stream.id))
        elif deadline is not None and not stream.gone:
            heapq.heappush(self._heap, (deadline, stream.id))

    def due(self, now_ms: int) -> list[str]:
        """Return the streams to be removed now; they are out of view until watched again."""
        found: dict[str, None] = {}
        later: list[Stream] = []
        while self._heap and self._heap[0][0] <= now_ms:
            _, stream_id = heapq.heappop(self._heap)
            stream = self._namespace.by_id.get(stream_id)
            if stream is None:
                continue
            if self._namespace.abandoned(stream) or (stream.expired(now_ms) and not stream.gone):
                found[stream.key] = None
            else:
                later.append(stream)
        for stream in later:
            self.watch(stream)
        return list(found)

"""Which streams have a policy of retention, and how far it moves the floor of one."""

from durastreamd.engine.view import View
from durastreamd.model.namespace import Namespace
from durastreamd.model.retention import limited
from durastreamd.model.stream_state import Stream


class Keeper:
    """Watches every stream that has a policy."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._watched: dict[int, None] = {}
        for stream in namespace.by_id.values():
            self.watch(stream)

    def watch(self, stream: Stream | None) -> None:
        """Take a stream into view if it has a policy; others are let go when they come up."""
        if stream is not None and limited(stream):
            self._watched[stream.id] = None

    def streams(self) -> list[Stream]:
        """Return all that are to be looked at, and let go of those that need it no more."""
        found = [self._namespace.by_id.get(each) for each in self._watched]
        kept = [stream for stream in found if stream is not None and limited(stream)]
        self._watched = {stream.id: None for stream in kept}
        return kept


def floor_by_policy(view: View, stream: Stream, now_ms: int) -> int:
    """Return from where on a stream's policy keeps it: at least as much as each part says.

    It may look into files.
    """
    age_ms, size, messages = stream.policy
    floor = view.floor
    if age_ms >= 0:
        floor = max(floor, view.position_at(now_ms - age_ms))
    if size >= 0 and view.tail - size > view.floor:
        end = view.page_end(view.floor, view.tail - size - view.floor)
        # A page has one message at least, also if that is longer.
        floor = max(floor, end if end <= view.tail - size else view.floor)
    if messages >= 0:
        floor = max(floor, view.position_of_message(max(stream.messages - messages, 0)))
    return floor

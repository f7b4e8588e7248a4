"""Retention: how far back a stream is kept, by its floor and by a policy that moves it.

A floor only rises. A policy says what is to be kept; whatever of it is exceeded moves the floor, so
the strictest part counts, and no part of it ever gives up more than it says.
"""

from typing import NamedTuple

from durastreamd.model.records import NO_POLICY, Policy, Retain
from durastreamd.model.stream_state import Stream


class Change(NamedTuple):
    """What is asked for: a new floor, parts of the policy; None leaves things as they are."""

    floor: int | None = None
    age_ms: int | None = None  # -1: without a limit; so for the other two
    size: int | None = None
    messages: int | None = None

    def policy(self, known: Policy) -> Policy:
        """Return a policy with what is asked for in it."""
        asked = (self.age_ms, self.size, self.messages)
        age_ms, size, messages = (
            old if new is None else new for old, new in zip(known, asked, strict=True)
        )
        return (age_ms, size, messages)


def decide(stream: Stream, change: Change, now_ms: int) -> Retain | None:
    """Return the record of a change, None where nothing changes. The place was looked at before."""
    floor = max(stream.floor, min(change.floor or 0, stream.tail))
    policy = change.policy(stream.policy)
    if (floor, policy) == (stream.floor, stream.policy):
        return None
    time_ms = max(now_ms, stream.accessed_ms)
    return Retain(stream.id, stream.tail, time_ms, stream.messages, floor, policy)


def limited(stream: Stream) -> bool:
    """Tell whether a policy may move the floor of a stream."""
    return stream.policy != NO_POLICY and not stream.gone

"""One caller's command, and the place where its outcome appears."""

import trio

from durastreamd.model.draft import AppendCommand
from durastreamd.model.namespace import CreateCommand
from durastreamd.model.records import Snapshot
from durastreamd.protocol.outcomes import Outcome


class DeleteCommand:
    """Delete the stream; ``sweep`` only if its lifetime is over or its last fork is gone."""

    __slots__ = ("sweep",)

    def __init__(self, *, sweep: bool = False) -> None:
        self.sweep = sweep


class PublishCommand:
    """Show a snapshot whose blob is durable."""

    __slots__ = ("snapshot",)

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot


class BucketCommand:
    """Make or end a bucket."""

    __slots__ = ("exists",)

    def __init__(self, *, exists: bool) -> None:
        self.exists = exists


class TouchCommand:
    """Put a renewed lifetime on disk."""

    __slots__ = ()


Command = (
    AppendCommand | CreateCommand | DeleteCommand | PublishCommand | BucketCommand | TouchCommand
)


class Ticket:
    """What a caller waits on. The commit goes on without it if the caller goes away."""

    __slots__ = ("_done", "_result", "command")

    def __init__(self, command: Command) -> None:
        self.command = command
        self._done = trio.Event()
        self._result: Outcome | Exception | None = None

    @property
    def settled(self) -> bool:
        """Tell whether the outcome is there."""
        return self._result is not None

    def settle(self, result: Outcome | Exception) -> None:
        """Give the outcome; the first one counts."""
        if self._result is None:
            self._result = result
            self._done.set()

    async def outcome(self) -> Outcome:
        """Wait for the outcome; raise if the stream could not give one."""
        await self._done.wait()
        assert self._result is not None
        if isinstance(self._result, Exception):
            raise self._result
        return self._result

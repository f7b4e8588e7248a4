"""One caller's command, and the place where its outcome appears."""

from collections.abc import Callable

import trio

from durastreamd.model.draft import AppendCommand
from durastreamd.model.namespace import CreateCommand
from durastreamd.model.records import Snapshot
from durastreamd.model.retention import Change
from durastreamd.protocol.outcomes import Outcome


class DeleteCommand:
    """Delete the stream; ``sweep`` only if its lifetime is over or its last fork is gone.

    With a ``life`` only if it is the stream of this id.
    """

    __slots__ = ("life", "sweep")

    def __init__(self, *, sweep: bool = False, life: int | None = None) -> None:
        self.sweep = sweep
        self.life = life


class PublishCommand:
    """Show a snapshot whose blob is durable."""

    __slots__ = ("snapshot",)

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot


class RetainCommand:
    """Change how far back the stream of this id is kept."""

    __slots__ = ("change", "stream")

    def __init__(self, stream: int, change: Change) -> None:
        self.stream = stream
        self.change = change


class BucketCommand:
    """Make or end a bucket."""

    __slots__ = ("exists",)

    def __init__(self, *, exists: bool) -> None:
        self.exists = exists


class TouchCommand:
    """Put a renewed lifetime on disk."""

    __slots__ = ()


Command = (
    AppendCommand
    | CreateCommand
    | DeleteCommand
    | PublishCommand
    | RetainCommand
    | BucketCommand
    | TouchCommand
)


def _stay(_raise_cancel: object) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED


class Ticket:
    """What a caller waits on. The commit goes on without it if the caller goes away.

    One task waits, once, so it is parked here without an event in between.
    """

    __slots__ = ("_result", "_told", "_waiter", "command")

    def __init__(self, command: Command) -> None:
        self.command = command
        self._waiter: trio.lowlevel.Task | None = None
        self._told: Callable[[Outcome | Exception], None] | None = None
        self._result: Outcome | Exception | None = None

    @property
    def settled(self) -> bool:
        """Tell whether the outcome is there."""
        return self._result is not None

    def settle(self, result: Outcome | Exception) -> None:
        """Give the outcome; the first one counts."""
        if self._result is None:
            self._result = result
            if self._told is not None:
                self._told(result)
            elif self._waiter is not None:
                trio.lowlevel.reschedule(self._waiter)
                self._waiter = None

    def tell(self, told: Callable[[Outcome | Exception], None]) -> None:
        """Call with the outcome as soon as it is there, instead of having a task wait for it."""
        if self._result is not None:
            told(self._result)
        else:
            self._told = told

    def _give_up(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._waiter = None
        return trio.lowlevel.Abort.SUCCEEDED

    async def outcome(self, *, stays: bool = False) -> Outcome:
        """Wait for the outcome; raise if the stream could not give one.

        Who ``stays`` is not called away before it is there: a cancellation takes hold afterwards.
        """
        if self._result is None:
            assert self._waiter is None, "a ticket has one waiter"
            self._waiter = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(_stay if stays else self._give_up)
        elif not stays:
            await trio.lowlevel.checkpoint_if_cancelled()
        assert self._result is not None
        if isinstance(self._result, Exception):
            raise self._result
        return self._result

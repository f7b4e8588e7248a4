"""Where batches are written and synced: one thread for the life of the server.

If it dies, for a failed sync or a bug, its exception ends ``run`` and with it the server: nothing
is acknowledged any more, and recovery finds out what is on the disk.
"""

import queue
from collections.abc import Callable

import trio

from durastreamd.errors import WriteFailedError

Work = Callable[[], None]
Report = Callable[[WriteFailedError | None], None]


class ThreadWriter:
    """Runs one piece of work after another in a thread and reports back to the event loop."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[Work, Report] | None] = queue.SimpleQueue()
        self._token: trio.lowlevel.TrioToken | None = None

    def put(self, work: Work, report: Report) -> None:
        """Have ``work`` done; ``report`` is called in the event loop."""
        self._queue.put((work, report))

    async def run(self) -> None:
        """Be the thread's host until cancelled; raises what the thread raised."""
        self._token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, self._work)
            try:
                await trio.sleep_forever()
            finally:
                # The thread cannot be cancelled, only told: it ends after what was put before.
                self._queue.put(None)

    def _work(self) -> None:
        token = self._token
        assert token is not None
        while (item := self._queue.get()) is not None:
            work, report = item
            try:
                work()
            except WriteFailedError as exc:
                token.run_sync_soon(report, exc)
            else:
                token.run_sync_soon(report, None)


class InlineWriter:
    """Does the work at once: no thread, so a seed replays everything."""

    def put(self, work: Work, report: Report) -> None:
        """See ThreadWriter."""
        token = trio.lowlevel.current_trio_token()
        try:
            work()
        except WriteFailedError as exc:
            token.run_sync_soon(report, exc)
        else:
            token.run_sync_soon(report, None)

    async def run(self) -> None:
        """Nothing to host."""
        await trio.sleep_forever()

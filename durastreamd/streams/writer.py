"""Where batches are written and synced: one thread for the life of the server.

If it dies, for a failed sync or a bug, its exception ends ``run`` and with it the server: nothing
is acknowledged any more, and recovery finds out what is on the disk.
"""

import queue
from typing import Protocol

import trio

from durastreamd.errors import WriteFailedError


class Errand(Protocol):
    """Something to be done in the journal's thread."""

    def work(self) -> None:
        """Do it, there; what this raises but a WriteFailedError is the thread's end."""

    def report(self, error: WriteFailedError | None) -> None:
        """Go on in the event loop: it is done, or could not be."""


class ThreadWriter:
    """Runs one errand after another in a thread and reports back to the event loop."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Errand | None] = queue.SimpleQueue()
        self._token: trio.lowlevel.TrioToken | None = None

    def put(self, errand: Errand) -> None:
        """Have it done after all that was put before."""
        self._queue.put(errand)

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
        while (errand := self._queue.get()) is not None:
            _do(errand, token)


class InlineWriter:
    """Does the work at once: no thread, so a seed replays everything."""

    def put(self, errand: Errand) -> None:
        """See ThreadWriter."""
        _do(errand, trio.lowlevel.current_trio_token())

    async def run(self) -> None:
        """Nothing to host."""
        await trio.sleep_forever()


def _do(errand: Errand, token: trio.lowlevel.TrioToken) -> None:
    try:
        errand.work()
    except WriteFailedError as exc:
        token.run_sync_soon(errand.report, exc)
    else:
        token.run_sync_soon(errand.report, None)

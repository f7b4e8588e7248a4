"""The scrub: every file at rest is read and verified, round after round, at a polite pace.

Readers verify what they read; rot in what nobody reads would stay unknown until it is the only
copy. A round takes one stream after the other, a piece at a time in a thread, and sleeps as long as
the pace asks for. While the server has much to do it waits, though not for ever. What it finds is
marked as any reader's finding is (``Engine.note_damage``).

A fault may lie between the disk and us and go away: streams that were met damaged while they were
served are verified again now and then, and those that verify, every file of theirs that anybody
may need, are served again. What recovery marked is not looked at: records may be set aside for it.

A round holds the files of the stream it is at as a reader does, so one that is deleted or cut under
it is left on disk until then, and missing files are damage. Rounds begin at a random stream: a
server that is restarted more often than a round takes still comes by everywhere.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

import trio

from durastreamd.errors import CorruptDataError, ReadFailedError
from durastreamd.model.stream_state import Stream
from durastreamd.storage import scrub
from durastreamd.streams.limits import ScrubOptions
from durastreamd.streams.registry import Streams

logger = logging.getLogger(__name__)
MIB = 1024 * 1024

BUSY_PER_S = 200  # requests and batches; below it an idle core is to be had
LOOK_S = 1.0  # how often a busy server is looked at again
PAUSE_MAX_S = 10.0  # a server that is always busy is scrubbed a piece at a time, so often


def in_turn(ids: list[int], first: int) -> Iterator[int]:
    """Yield every id once, beginning with the one at ``first``, round to where it began."""
    at = first % len(ids) if ids else 0
    yield from ids[at:]
    yield from ids[:at]


class Scrubber:
    """Runs rounds; its numbers are for the metrics."""

    def __init__(
        self,
        streams: Streams,
        options: ScrubOptions,
        activity: Callable[[], int],
        first: Callable[[], int],
    ) -> None:
        self._streams = streams
        self.options = options
        self._changed = trio.Event()
        self._activity = activity  # a number that grows while there is work
        self._first = first  # where a round begins, as good as random
        self._before = 0
        self._looked_s = 0.0
        self.bytes_total = 0
        self.rounds_total = 0
        self.findings_total = 0
        self.taken_back_total = 0
        self.round_streams = 0
        self.round_checked = 0
        # Nothing is older than this: when the last whole round began, before it the server.
        self._oldest_ms = streams.clock()

    def oldest_s(self) -> float:
        """Return how long ago the data that was not checked for longest was checked, at most."""
        return max(self._streams.clock() - self._oldest_ms, 0) / 1000

    async def run(self) -> None:
        """Scrub until cancelled."""
        await trio.sleep(self.options.start_s)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._go_round)
            nursery.start_soon(self._look_again)

    async def _go_round(self) -> None:
        while True:
            begun_s = trio.current_time()
            if self.options.bytes_per_s:
                await self.round()
            # Other options count at once: this does not sleep for a week on the old ones.
            while trio.current_time() < begun_s + self.options.period_s:
                was_on = self.options.bytes_per_s
                with trio.move_on_at(begun_s + self.options.period_s):
                    await self._changed.wait()
                if self.options.bytes_per_s and not was_on:
                    break

    async def _look_again(self) -> None:
        while True:
            if self.options.bytes_per_s:
                await self.recheck()
            with trio.move_on_after(self.options.recheck_s):
                await self._changed.wait()

    def reconfigure(self, options: ScrubOptions) -> None:
        """Go on by these options."""
        self.options = options
        self._changed.set()
        self._changed = trio.Event()

    async def round(self) -> None:
        """Check every stream that there is, unless that is turned off meanwhile."""
        begun_ms = self._streams.clock()
        ids = list(self._streams.engine.namespace.by_id)
        self.round_streams, self.round_checked = len(ids), 0
        findings = self.findings_total
        for stream_id in in_turn(ids, self._first()):
            if not self.options.bytes_per_s:
                return
            stream = self._streams.engine.namespace.by_id.get(stream_id)
            if stream is not None and not stream.damage:
                await self._check(stream)
            self.round_checked += 1
        self.rounds_total += 1
        self._oldest_ms = begun_ms
        found = self.findings_total - findings
        logger.info("scrubbed %d streams, %d of them damaged", len(ids), found)

    async def _check(self, stream: Stream) -> None:
        try:
            await self._verify(stream)
        except CorruptDataError:
            self.findings_total += 1
        except (ReadFailedError, OSError) as exc:
            logger.warning("the scrub of stream %016x is left to the next: %s", stream.id, exc)

    async def recheck(self) -> None:
        """Serve those streams again that were met damaged and verify by now."""
        engine = self._streams.engine
        for stream_id in list(engine.damaged):
            stream = engine.namespace.by_id.get(stream_id)
            if stream is None or not stream.provisional:
                continue
            try:
                await self._verify(stream)
                await self._streams.blocking(partial(engine.load_detail, stream))
            except (CorruptDataError, ReadFailedError, OSError):
                continue  # as before
            if engine.namespace.by_id.get(stream_id) is stream and stream.provisional:
                engine.take_back_damage(stream)
                self.taken_back_total += 1

    async def _verify(self, stream: Stream) -> None:
        """Have a stream's files verified; what is amiss is marked, and raised."""
        engine = self._streams.engine
        checks = engine.check(stream)
        with engine.holding([stream.id]), closing(checks):
            await self._drive(checks, stream)

    async def _drive(self, checks: scrub.Check, stream: Stream) -> None:
        """Have the check done piece by piece, as long as the stream is there."""
        engine = self._streams.engine
        while engine.namespace.by_id.get(stream.id) is stream:
            await self._let_others_go_first()
            cost = await self._streams.blocking(lambda: _some(checks))
            self.bytes_total += cost
            if self.options.bytes_per_s:
                await trio.sleep(cost / self.options.bytes_per_s)
            if cost < scrub.PIECE_BYTES:
                return

    async def _let_others_go_first(self) -> None:
        """Wait while the server is busy, a while at most."""
        until_s = trio.current_time() + PAUSE_MAX_S
        while self._busy() and trio.current_time() < until_s:
            await trio.sleep(LOOK_S)

    def _busy(self) -> bool:
        """Tell whether much was done since the last look."""
        done, now_s = self._activity(), trio.current_time()
        fresh, passed_s = done - self._before, now_s - self._looked_s
        self._before, self._looked_s = done, now_s
        return fresh > BUSY_PER_S * max(passed_s, 0.01)


def _some(checks: scrub.Check) -> int:
    """Go on with a check by a piece or more; less than a piece only at its end."""
    cost = 0
    for each in checks:
        cost += each
        if cost >= scrub.PIECE_BYTES:
            break
    return cost

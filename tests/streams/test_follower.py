"""Followers: woken by commits, never by less; one slot each; encoded once for all."""

from itertools import pairwise

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from durastreamd.errors import WriteFailedError
from durastreamd.model.records import Record
from durastreamd.model.stream_state import Stream
from durastreamd.storage.format import StoredFrame
from durastreamd.streams.follower import Follower, Following
from durastreamd.streams.limits import StreamLimits
from durastreamd.streams.ticket import DeleteCommand, TouchCommand
from tests.support.held_writer import Bench, append, serving
from tests.support.patience import PATIENCE_S

Clock = MockClock


def waiting(follower: Follower) -> int:
    """Return how many wake-ups wait."""
    return follower._receive.statistics().current_buffer_used


async def test_follower_is_woken_by_the_commit_and_not_before(autojump_clock: Clock) -> None:
    async with serving("/s") as bench:
        with bench.streams.follow(bench.stream("/s")) as follower:
            await bench.hold()
            bench.streams.post("/s", append(b"x"))
            await wait_all_tasks_blocked()
            assert waiting(follower) == 0
            await bench.commit_one()
            assert waiting(follower) == 1
            with trio.fail_after(PATIENCE_S):
                await follower.changed()
            assert bench.content("/s") == b"x"


async def test_follower_is_not_woken_by_a_failed_commit(autojump_clock: Clock) -> None:
    async with serving("/s") as bench:
        with bench.streams.follow(bench.stream("/s")) as follower:
            bench.disk.full = "journal"
            with pytest.raises(WriteFailedError):
                await bench.streams.ask("/s", append(b"x"))
            bench.disk.full = ""
            assert waiting(follower) == 0


async def test_wake_ups_coalesce_in_one_slot(autojump_clock: Clock) -> None:
    async with serving("/s") as bench:
        with bench.streams.follow(bench.stream("/s")) as follower:
            for _ in range(50):
                await bench.add("/s", b"x")
            assert follower._receive.statistics().max_buffer_size == 1
            assert waiting(follower) == 1
            await follower.changed()
            with trio.move_on_after(1) as scope:
                await follower.changed()
            assert scope.cancelled_caught, "fifty commits were one wake-up"


async def test_no_follower_sees_an_uncommitted_tail(autojump_clock: Clock) -> None:
    committed: set[int] = {0}
    seen: list[bytes] = [b""]
    async with serving("/s") as bench:
        stream = bench.stream("/s")

        async def read() -> None:
            with bench.streams.follow(stream) as follower:
                while len(seen[-1]) < 200:
                    await follower.changed()
                    assert stream.tail in committed
                    seen.append(bench.content("/s"))

        async def look() -> None:
            while len(seen[-1]) < 200:
                assert stream.tail in committed
                assert bench.engine.view(stream).tail == stream.tail
                await trio.lowlevel.checkpoint()

        applied = bench.engine.applied

        def note(record: Record, frame: StoredFrame) -> list[Stream]:
            # The journal's next lsn moves after the sync: everything applied is synced.
            ended = applied(record, frame)
            assert bench.engine.applied_lsn < bench.engine.journal.next_lsn
            committed.add(stream.tail)
            return ended

        bench.engine.applied = note  # type: ignore[method-assign]
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read)
                nursery.start_soon(look)
                for number in range(100):
                    nursery.start_soon(bench.streams.ask, "/s", append(b"%02d" % (number % 100)))
                    if number % 9 == 0:
                        await trio.lowlevel.checkpoint()
        assert all(later.startswith(earlier) for earlier, later in pairwise(seen))


async def test_follower_is_woken_by_closure_and_by_deletion(autojump_clock: Clock) -> None:
    async with serving("/s") as bench:
        with bench.streams.follow(bench.stream("/s")) as follower:
            for command in (append(None, closes=True), DeleteCommand()):
                await bench.streams.ask("/s", command)
                with trio.fail_after(PATIENCE_S):
                    await follower.changed()
        assert not isinstance(bench.streams.find("/s"), Stream)


async def test_follower_is_not_woken_by_renewed_lifetimes_or_other_streams(
    autojump_clock: Clock,
) -> None:
    bench = Bench()
    async with bench.running():
        await bench.make("/s", ttl_ms=60_000)
        await bench.make("/t")
        with bench.streams.follow(bench.stream("/s")) as follower:
            await bench.add("/t", b"x")
            await bench.streams.ask("/s", TouchCommand())
            assert waiting(follower) == 0


async def test_follower_of_an_expired_stream_is_woken_when_its_name_is_taken(
    autojump_clock: Clock,
) -> None:
    bench = Bench(limits=StreamLimits(sweep_s=1000))
    async with bench.running():
        await bench.make("/s", ttl_ms=1000)
        with bench.streams.follow(bench.stream("/s")) as follower:
            await trio.sleep(2)
            await bench.make("/s")
            assert waiting(follower) == 1


async def test_released_followers_leave_nothing_behind(autojump_clock: Clock) -> None:
    async with serving("/s") as bench:
        stream = bench.stream("/s")
        with bench.streams.follow(stream), bench.streams.follow(stream):
            assert bench.streams.follower_count() == 2
        assert bench.streams.follower_count() == 0
        assert not bench.streams._following


async def test_cancelled_follower_leaves_nothing_behind(autojump_clock: Clock) -> None:
    async with serving("/s") as bench:
        with trio.move_on_after(1), bench.streams.follow(bench.stream("/s")) as follower:
            await follower.changed()
        assert not bench.streams._following


def test_what_followers_share_is_encoded_once() -> None:
    following = Following()
    made: list[int] = []

    def make(number: int) -> bytes:
        made.append(number)
        return b"%d" % number

    for _ in range(1000):
        assert following.shared((0, 5), lambda: make(1)) == b"1"
    assert made == [1]
    for number in range(2, 20):
        following.shared((number, 5), lambda number=number: make(number))  # type: ignore[misc]
    assert len(following._shared) <= 4, "what is kept has a bound"
    assert following.shared((0, 5), lambda: make(1)) == b"1"

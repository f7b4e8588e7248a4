"""Who waits on a ticket, and what becomes of it when it is called away."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from durastreamd.protocol.offsets import Position
from durastreamd.protocol.outcomes import AlreadyClosed
from durastreamd.streams.ticket import DeleteCommand, Ticket

DONE = AlreadyClosed(Position(1))


@pytest.mark.parametrize("stays", [False, True])
@pytest.mark.parametrize("first", ["cancelled", "settled"])
async def test_who_stays_has_the_outcome_before_it_is_called_away(
    first: str, *, stays: bool
) -> None:
    ticket = Ticket(DeleteCommand())
    found: list[object] = []

    async def wait() -> None:
        found.append(await ticket.outcome(stays=stays))
        await trio.lowlevel.checkpoint()
        found.append("went on")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        if first == "settled":
            ticket.settle(DONE)
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await wait_all_tasks_blocked()
        assert len(nursery.child_tasks) == (stays and first == "cancelled")
        ticket.settle(DONE)
    assert found == ([DONE] if stays or first == "settled" else [])


async def test_who_stays_for_what_is_there_already_gets_it() -> None:
    ticket = Ticket(DeleteCommand())
    ticket.settle(DONE)
    with trio.CancelScope() as scope:
        scope.cancel()
        assert await ticket.outcome(stays=True) is DONE
    with trio.CancelScope() as scope:
        scope.cancel()
        await ticket.outcome()
    assert scope.cancelled_caught

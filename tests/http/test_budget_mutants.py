"""Seeded bugs in the counting of bytes, and the tests that see them."""

from collections.abc import Awaitable, Callable

import pytest
from trio.testing import MockClock

from durastreamd.http.budget import Budget, Claim
from durastreamd.http.h1.exchange import H1Exchange
from durastreamd.http.h2.exchange import H2Exchange
from tests.http import test_budget, test_counted
from tests.support.mutants import change

Patch = pytest.MonkeyPatch
Mutant = Callable[[Patch], None]
Test = Callable[[MockClock], Awaitable[None]]

PIECE = "await self.claim.wait(unclaimed)"


def chunks_claim_nothing(patch: Patch) -> None:
    change(patch, H1Exchange, "body", PIECE, f"self._decoder or {PIECE}")


def bodies_by_length_claim_nothing(patch: Patch) -> None:
    change(patch, H1Exchange, "body", PIECE, f"self._decoder and {PIECE}")


def bodies_that_came_with_the_head_claim_nothing(patch: Patch) -> None:
    change(patch, H1Exchange, "body", "await self.claim.wait(left)", "pass")


def declared_length_claimed_at_once(patch: Patch) -> None:
    original = H1Exchange.body

    async def body(self: H1Exchange, bytes_max: int) -> bytes | memoryview:
        await self.claim.wait(self._body_left)
        return await original(self, bytes_max)

    patch.setattr(H1Exchange, "body", body)


def h2_claims_nothing(patch: Patch) -> None:
    change(
        patch,
        H2Exchange,
        "_count_body",
        "if self._uncounted or not self._body_claim.take(size):",
        "if False:",
    )


def h2_reads_on_without_room(patch: Patch) -> None:
    patch.setattr(H2Exchange, "short", False)


def claims_outlive_their_exchange(patch: Patch) -> None:
    patch.setattr(H1Exchange, "release", lambda self: None)


def no_reserve(patch: Patch) -> None:
    change(patch, Budget, "adjust", "min(limits.small_bytes, self.small.size // 2)", "0")


def no_shares(patch: Patch) -> None:
    change(
        patch,
        type(Budget().large),
        "fits",
        "share.used + size <= self.size - self.used",
        "size <= self.size - self.used",
    )


def nobody_is_told_of_room(patch: Patch) -> None:
    patch.setattr(type(Budget().large), "grant", lambda self: None)


def waits_for_ever(patch: Patch) -> None:
    patch.setattr(type(Budget().large), "stuck", lambda self, share: None)


def reload_forgets_what_is_held(patch: Patch) -> None:
    change(patch, Budget, "adjust", "self.wait_s_max =", "self.large.used = 0; self.wait_s_max =")


def guests_count_against_others(patch: Patch) -> None:
    change(patch, Claim, "_be_guest", "pool.remove(self._share, self.held)", "pass")


def arrives(form: str) -> Test:
    async def run(clock: MockClock) -> None:
        await test_counted.test_what_has_arrived_is_counted_not_what_was_declared(clock, form)

    return run


def no_room(form: str) -> Test:
    async def run(clock: MockClock) -> None:
        await test_counted.test_who_finds_no_room_in_time_is_told_to_come_back(clock, form)

    return run


async def deadlock(clock: MockClock) -> None:
    await test_budget.test_half_done_uploads_do_not_wait_for_each_other_for_ever(clock, 1)


def plain(test: Callable[[], None]) -> Test:
    async def run(_clock: MockClock) -> None:
        test()

    return run


MUTANTS: list[tuple[Mutant, Test]] = [
    (chunks_claim_nothing, arrives("chunked")),
    (bodies_by_length_claim_nothing, arrives("length")),
    (
        bodies_that_came_with_the_head_claim_nothing,
        test_counted.test_a_body_that_came_with_its_head_is_counted,
    ),
    (declared_length_claimed_at_once, arrives("length")),
    (h2_claims_nothing, arrives("h2")),
    (h2_reads_on_without_room, no_room("h2")),
    (claims_outlive_their_exchange, arrives("length")),
    (no_reserve, plain(test_budget.test_large_claims_never_refuse_a_small_one)),
    (no_shares, plain(test_budget.test_one_client_gets_half_and_leaves_half)),
    (nobody_is_told_of_room, test_budget.test_who_does_not_fit_waits_for_others),
    (waits_for_ever, deadlock),
    (reload_forgets_what_is_held, plain(test_budget.test_a_reload_keeps_what_is_held)),
    (guests_count_against_others, plain(test_budget.test_a_guest_does_not_count_against_others)),
]


@pytest.mark.parametrize(("mutant", "test"), MUTANTS, ids=[each[0].__name__ for each in MUTANTS])
async def test_a_test_sees_it(
    autojump_clock: MockClock, monkeypatch: Patch, mutant: Mutant, test: Test
) -> None:
    mutant(monkeypatch)
    with pytest.RaisesGroup(
        pytest.RaisesExc((AssertionError, KeyError)), allow_unwrapped=True, flatten_subgroups=True
    ):
        await test(autojump_clock)

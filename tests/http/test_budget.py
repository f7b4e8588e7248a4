"""One budget for bytes in memory: shares, the reserve, waiting, and no waiting for ever."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import trio
from hypothesis import settings, strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule
from trio.testing import MockClock, wait_all_tasks_blocked

from durastreamd.errors import OverloadedError
from durastreamd.http.budget import Budget, Claim, client_of
from durastreamd.http.limits import BudgetLimits

KIB = 1024
SMALL = 64
LIMITS = BudgetLimits(bytes_max=4000, small_bytes=SMALL, wait_s_max=5.0)
LARGE = 3000  # what is left for large claims: a fourth is for the small ones


class Grown:
    """Claims of a client that took what they could get, in steps.

    There are two of them, because the only claim in the house could go on for ever.
    """

    def __init__(self, budget: Budget, client: str) -> None:
        self.claims = [budget.claim(client), budget.claim(client)]
        assert all(claim.take(SMALL + 1) for claim in self.claims)
        while self.claims[1].take(SMALL + 1):
            pass

    @property
    def held(self) -> int:
        return sum(claim.held for claim in self.claims)

    def close(self) -> None:
        for claim in self.claims:
            claim.close()


@contextmanager
def grown(budget: Budget, client: str) -> Iterator[Grown]:
    made = Grown(budget, client)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("peer", "client"),
    [
        ("192.0.2.1:80", "192.0.2.1"),
        ("[2001:db8::1]:80", "2001:db8::/64"),
        ("[2001:db8::ffff:1]:81", "2001:db8::/64"),
        ("[2001:db8:0:1::1]:80", "2001:db8:0:1::/64"),
        ("[::ffff:192.0.2.1]:80", "192.0.2.1"),
        ("[fe80::1%eth0]:80", "fe80::/64"),
        ("unix", "unix"),
        ("", ""),
        ("[odd]:1", "[odd]"),
    ],
)
def test_a_client_is_a_host(peer: str, client: str) -> None:
    assert client_of(peer) == client


def test_what_is_taken_is_given_back_at_the_end() -> None:
    budget = Budget(LIMITS)
    with budget.claim("a") as claim:
        assert claim.take(10)
        assert claim.take(500)
        claim.give(200)
        assert (claim.held, budget.used) == (310, 310)
    assert budget.used == 0
    assert not budget._clients


def test_one_client_gets_half_and_leaves_half() -> None:
    budget = Budget(LIMITS)
    with grown(budget, "a") as first:
        assert abs(first.held - LARGE // 2) <= SMALL
        with budget.claim("a") as another:
            assert not another.take(LARGE // 4), "the share is the client's, not the claim's"
        with budget.claim("b") as other:
            assert other.take(LARGE // 4)


def test_there_is_always_something_left_for_the_next_client() -> None:
    budget = Budget(LIMITS._replace(bytes_max=4000 * KIB))
    claims = [Grown(budget, f"client {number}") for number in range(6)]
    assert all(claim.held for claim in claims)
    with budget.claim("another") as other:
        assert other.take(10 * SMALL)
    for claim in claims:
        claim.close()
    assert budget.used == 0


def test_large_claims_never_refuse_a_small_one() -> None:
    budget = Budget(LIMITS)
    for number in range(20):
        claim = budget.claim(f"client {number}")
        while number and claim.take(SMALL + 1):
            pass
        assert number or claim.take(LARGE // 2)
    with budget.claim("client 0") as small:
        assert small.take(SMALL)
    assert LARGE - 10 * SMALL < budget.used <= LARGE


def test_small_claims_of_one_client_leave_room_for_another() -> None:
    budget = Budget(LIMITS)
    claims = [budget.claim("a") for _ in range(100)]
    taken = [claim for claim in claims if claim.take(SMALL)]
    assert abs(len(taken) * SMALL - (4000 - LARGE) // 2) < SMALL
    with budget.claim("b") as other:
        assert other.take(SMALL)


@pytest.mark.parametrize("size", [2, SMALL, SMALL + 1, 10_000])
def test_the_only_claim_always_fits(size: int) -> None:
    budget = Budget(LIMITS._replace(bytes_max=1))
    with budget.claim("a") as claim:
        assert claim.take(size)
        assert claim.take(size)
        assert budget.used == 2 * size
        with budget.claim("b") as other:
            assert not other.take(size)
    with budget.claim("b") as other:
        assert other.take(size)


def test_a_guest_does_not_count_against_others() -> None:
    """Or one request that is larger than the budget would keep everybody out."""
    budget = Budget(LIMITS)
    with budget.claim("a") as guest:
        while guest.held < 2 * LARGE:
            assert guest.take(500)
        with grown(budget, "b") as others, budget.claim("c") as another:
            assert abs(others.held - LARGE // 2) <= SMALL
            assert another.take(LARGE // 4)
            assert budget.used == guest.held + others.held + another.held
            assert guest.take(1)
        guest.give(guest.held)
        with budget.claim("b") as next_one:
            assert next_one.take(2 * LARGE)
    assert budget.used == 0


def test_nothing_always_fits() -> None:
    budget = Budget(LIMITS)
    with grown(budget, "a") as full:
        assert all(claim.take(0) for claim in full.claims)
        budget.adjust(LIMITS._replace(bytes_max=1))
        assert all(claim.take(0) for claim in full.claims)


def test_a_claim_that_grows_takes_what_it_held_along() -> None:
    budget = Budget(LIMITS)
    with budget.claim("a") as claim:
        assert claim.take(SMALL)
        assert (budget.small.used, budget.large.used) == (SMALL, 0)
        assert claim.take(1)
        assert (budget.small.used, budget.large.used) == (0, SMALL + 1)
        claim.give(SMALL + 1)
        assert claim.take(1)
        assert (budget.small.used, budget.large.used) == (1, 0)


def test_a_reload_keeps_what_is_held() -> None:
    budget = Budget(LIMITS)
    with budget.claim("a") as claim, budget.claim("b") as other:
        assert claim.take(1000)
        budget.adjust(LIMITS._replace(bytes_max=2000))
        assert budget.used == 1000
        assert not other.take(600)
        budget.adjust(LIMITS)
        assert other.take(600)
    assert budget.used == 0


# --- waiting ---


async def test_who_does_not_fit_waits_for_others(autojump_clock: MockClock) -> None:
    budget = Budget(LIMITS)
    first = Grown(budget, "a")
    with budget.claim("a") as claim:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(claim.wait, 1000)
            await wait_all_tasks_blocked(0.01)
            assert claim.held == 0
            first.close()
            await wait_all_tasks_blocked(0.01)
            assert claim.held == 1000
    assert budget.used == 0


async def test_waiting_has_an_end(autojump_clock: MockClock) -> None:
    budget = Budget(LIMITS)
    with grown(budget, "a") as first, budget.claim("a") as claim:
        begun = trio.current_time()
        with pytest.raises(OverloadedError):
            await claim.wait(1000)
        assert trio.current_time() - begun == LIMITS.wait_s_max
        assert budget.used == first.held


async def test_a_cancelled_wait_leaves_nothing_behind(autojump_clock: MockClock) -> None:
    budget = Budget(LIMITS)
    with grown(budget, "a"), budget.claim("a") as claim:
        with trio.move_on_after(1):
            await claim.wait(1000)
        assert claim.held == 0
    assert budget.used == 0
    assert not budget.large._queue


async def test_closing_a_claim_refuses_who_waits_for_it(autojump_clock: MockClock) -> None:
    budget = Budget(LIMITS)
    with grown(budget, "a"):
        claim = budget.claim("a")
        refused: list[float] = []

        async def wait() -> None:
            with pytest.raises(OverloadedError):
                await claim.wait(1000)
            refused.append(trio.current_time())

        begun = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await wait_all_tasks_blocked(0.01)
            claim.close()
        assert refused[0] - begun < LIMITS.wait_s_max
    assert budget.used == 0


async def upload(claim: Claim, size: int, step: int, ended: Callable[[], None]) -> None:
    """Take a body piece by piece, as it would arrive, and hold it for a while."""
    with claim:
        while claim.held < size:
            await claim.wait(min(step, size - claim.held))
            await trio.lowlevel.checkpoint()
        await trio.sleep(1)
        ended()


@pytest.mark.parametrize("clients", [1, 3, 30])
async def test_half_done_uploads_do_not_wait_for_each_other_for_ever(
    autojump_clock: MockClock, clients: int
) -> None:
    """Each would fit, all together do not; refusing them one by one lets the oldest finish."""
    budget = Budget(LIMITS._replace(bytes_max=4000 * KIB))
    done: list[int] = []
    refused: list[int] = []
    used_max = 0

    async def one(number: int, claim: Claim) -> None:
        nonlocal used_max
        try:
            await upload(claim, 900 * KIB, 10 * KIB, lambda: done.append(number))
        except OverloadedError:
            refused.append(number)
        used_max = max(used_max, budget.used)

    async with trio.open_nursery() as nursery:
        for number in range(30):
            nursery.start_soon(one, number, budget.claim(f"client {number % clients}"))
    assert sorted(done + refused) == list(range(30))
    assert 0 in done, "the oldest of all goes on"
    assert len(done) >= min(clients, 2), "as many as fit at one time"
    assert used_max <= 3000 * KIB
    assert budget.used == 0


async def test_the_oldest_of_a_client_is_served_first(autojump_clock: MockClock) -> None:
    budget = Budget(LIMITS)
    older, younger, holder = budget.claim("a"), budget.claim("a"), Grown(budget, "a")
    served: list[str] = []

    async def wait(name: str, claim: Claim) -> None:
        with claim:
            await claim.wait(LARGE // 2)
            served.append(name)
            await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, "younger", younger)
        await wait_all_tasks_blocked(0.01)
        nursery.start_soon(wait, "older", older)
        await wait_all_tasks_blocked(0.01)
        holder.close()
    assert served == ["older", "younger"]


async def test_a_reload_lets_in_who_fits_now(autojump_clock: MockClock) -> None:
    budget = Budget(LIMITS)
    with grown(budget, "a"), budget.claim("a") as small, budget.claim("a") as claim:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(claim.wait, 1000)
            await wait_all_tasks_blocked(0.01)
            budget.adjust(LIMITS._replace(bytes_max=8000, small_bytes=10))
            await wait_all_tasks_blocked(0.01)
            assert claim.held == 1000
        assert small.take(11)
        assert budget.small.used == 0
    assert budget.used == 0


# --- any order of anything ---


class Machine(RuleBasedStateMachine):
    """Takes and gives in any order; after each step the books are right."""

    claims: Bundle[Claim] = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.budget = Budget(LIMITS)
        self.open: list[Claim] = []

    @rule(target=claims, client=st.sampled_from("abc"))
    def begin(self, client: str) -> Claim:
        claim = self.budget.claim(client)
        self.open.append(claim)
        return claim

    @rule(claim=claims, size=st.sampled_from([1, 30, SMALL, 400, 1400, 5000]))
    def take(self, claim: Claim, size: int) -> None:
        if claim in self.open:
            before, alone = claim.held, self.budget.used == claim.held
            took = claim.take(size)
            assert claim.held == before + size * took
            assert took or not alone

    @rule(claim=claims, part=st.floats(0, 1))
    def give(self, claim: Claim, part: float) -> None:
        if claim in self.open:
            claim.give(int(claim.held * part))

    @rule(claim=claims)
    def end(self, claim: Claim) -> None:
        if claim in self.open:
            self.open.remove(claim)
            claim.close()

    @rule(bytes_max=st.sampled_from([1, 1000, 4000, 9000]), small=st.sampled_from([0, SMALL]))
    def reload(self, bytes_max: int, small: int) -> None:
        self.budget.adjust(LIMITS._replace(bytes_max=bytes_max, small_bytes=small))

    @invariant()
    def books_are_right(self) -> None:
        assert self.budget.used == sum(claim.held for claim in self.open)
        for pool in (self.budget.small, self.budget.large):
            there = [claim for claim in self.open if claim._pool is pool]
            assert pool.used == sum(claim.held for claim in there if claim is not pool.guest)
            assert pool.guest is None or pool.guest in there
        for claim in self.open:
            mine = [each for each in self.open if each._share is claim._share]
            held = sum(each.held for each in mine if each is not self.budget.large.guest)
            assert claim._share.used == held
        assert {claim._client.name for claim in self.open} == set(self.budget._clients)


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)

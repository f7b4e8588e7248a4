"""One subscription: the machine of its wakes."""

import pytest
from sortedcontainers import SortedDict

from durastreamd.model import subscription
from durastreamd.model.records import Append, Create
from durastreamd.model.stream_state import Stream, apply
from durastreamd.model.subscription import (
    AGAIN_MS,
    AGAIN_MS_MAX,
    RETRY_MS_MAX,
    STALL_MS,
    STALL_MS_MAX,
    TRANSITIONS,
    WAKE_STREAMS_MAX,
    Ack,
    Refused,
    Subscription,
    SubscriptionState,
    retry_ms,
)
from durastreamd.model.subscription_records import (
    PULL_WAKE,
    WEBHOOK,
    SubscriptionChange,
    SubscriptionConfig,
)
from durastreamd.model.subscriptions import Subscriptions, put_of
from tests.support.machines import assert_drawn

IDLE, WAKING, LIVE = SubscriptionState
TTL = 1000


class Place:
    """Streams and one subscription, without a journal: what is decided is applied."""

    def __init__(self, kind: str, *paths: str, pattern: str = "") -> None:
        self.streams = SortedDict()
        self.held = Subscriptions(self.streams)
        wake = "wakes" if kind == PULL_WAKE else ""
        url = "https://r/" if kind == WEBHOOK else ""
        config = SubscriptionConfig(kind, pattern, paths, url, wake, TTL)
        self.held.apply(put_of(self.held, ("", "id"), config, 1, (), 0, "http://h"))
        self.each = self.held.by_incarnation[1]

    def append(self, path: str, size: int = 10) -> Stream:
        stream = self.streams.get(f"/{path}")
        if stream is None:
            number = len(self.streams) + 1
            stream = Stream(Create(number, 0, size, 0, 0, 1, [size], f"/{path}", "text/plain"))
            self.streams[stream.key] = stream
            self.held.created(stream)
        else:
            record = Append(stream.id, stream.tail, size, 0, stream.messages, 1, [size])
            apply(stream, record, stream.lsn + 1)
            if stream.links is not None:
                self.held.appended(stream)
        return stream  # type: ignore[no-any-return]  # sortedcontainers is untyped

    def do(self, record: SubscriptionChange | Refused | None) -> None:
        assert isinstance(record, SubscriptionChange), record
        self.held.apply(record)
        self.each.check()


@pytest.fixture
def hook() -> Place:
    place = Place(WEBHOOK, "a")
    place.append("a")
    place.do(place.each.wake(1, "one"))
    return place


@pytest.fixture
def pull() -> Place:
    place = Place(PULL_WAKE, "a")
    place.append("a")
    place.do(place.each.wake(1, "one"))
    return place


def fenced(each: Subscription, generation: int, wake_id: str, now: int = 1) -> bool:
    return each.fence(generation, generation, wake_id, now) is not None


def test_the_text_draws_the_table() -> None:
    assert_drawn(subscription.__doc__, TRANSITIONS)


def test_a_wake_shows_what_was_pending_and_no_more(hook: Place) -> None:
    hook.append("a")
    head = hook.each.head
    assert (head.state, head.generation, head.wake_id, head.trigger) == (WAKING, 1, "w_one", "a")
    assert [shown[:4] for shown in head.snapshot] == [("a", 1, 0, 10)]
    hook.do(hook.each.taken(1, "two", done=True))
    assert hook.each.links["a"].cursor == 10
    assert (hook.each.head.generation, hook.each.state) == (2, WAKING)  # the rest wakes again


def test_a_wake_ends_and_the_next_begins_in_one_record(hook: Place) -> None:
    hook.append("a")
    record = hook.each.taken(1, "two", done=True)
    assert record.head.state == WAKING
    assert record.cursors == (("a", 10, 1),)


def test_a_failed_delivery_waits_longer_each_time_and_no_lease_runs(hook: Place) -> None:
    waits = []
    for now in range(8):
        hook.do(hook.each.failed("refused", now))
        assert hook.each.head.lease_ms == 0
        assert hook.each.head.generation == 1  # B2: however much is appended
        hook.append("a")
        waits.append(hook.each.head.due_ms - now)
    assert waits == [1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000]
    assert retry_ms(10_000) == RETRY_MS_MAX
    hook.do(hook.each.taken(9, "x", done=False))
    assert (hook.each.head.failures, hook.each.head.lease_ms) == (0, 9 + TTL)


def test_a_lease_that_is_over_fences_at_once_and_ends_the_wake(hook: Place) -> None:
    hook.do(hook.each.taken(1, "x", done=False))
    assert not fenced(hook.each, 1, "w_one", TTL)
    assert fenced(hook.each, 1, "w_one", TTL + 1)
    assert hook.each.lapse(TTL, "two") is None
    hook.do(hook.each.lapse(TTL + 1, "two"))
    assert (hook.each.head.generation, hook.each.head.wake_id) == (2, "w_two")


def test_a_finished_wake_is_nobodys(hook: Place) -> None:
    """B8: the reference compares with null and lets a finished wake's token in."""
    hook.do(hook.each.taken(1, "x", done=True))
    assert hook.each.state is IDLE
    assert fenced(hook.each, 1, "w_one")
    assert fenced(hook.each, 1, "")
    assert fenced(hook.each, 0, "")


def test_a_claim_keeps_an_announced_wake_and_replaces_a_lapsed_one(pull: Place) -> None:
    assert fenced(pull.each, 1, "w_one")  # nobody has it yet
    pull.do(pull.each.announced(0))
    pull.append("a")
    pull.do(pull.each.claim("one", 5, "unused"))
    head = pull.each.head
    assert (head.generation, head.wake_id, head.holder, head.lease_ms) == (1, "w_one", "one", 1005)
    assert head.snapshot[0][3] == 20  # what came since the announcement, too
    refused = pull.each.claim("one", 1004, "x")
    assert isinstance(refused, Refused)
    assert (refused.code, refused.holder, refused.generation) == ("ALREADY_CLAIMED", "one", 1)
    pull.do(pull.each.claim("two", 1005, "two"))
    assert (pull.each.head.generation, pull.each.head.holder) == (2, "two")


def test_nothing_pending_is_nothing_to_claim(pull: Place) -> None:
    pull.do(pull.each.claim("one", 0, "x"))
    pull.do(pull.each.finish((("a", 10, 1),), 1, "y"))
    refused = pull.each.claim("one", 2, "z")
    assert isinstance(refused, Refused)
    assert refused.code == "NO_PENDING_WORK"


def test_an_unclaimed_wake_is_announced_again_later_each_time(pull: Place) -> None:
    waits = []
    for _ in range(8):
        pull.do(pull.each.announced(0))
        waits.append(pull.each.head.due_ms)
    assert waits[:4] == [AGAIN_MS, 2 * AGAIN_MS, 4 * AGAIN_MS, 8 * AGAIN_MS]
    assert waits[-1] == AGAIN_MS_MAX
    assert pull.each.head.announced == 8


def test_a_wake_that_moves_nothing_is_followed_by_a_pause(pull: Place) -> None:
    pauses = []
    for now in range(9):
        pull.do(pull.each.claim("one", now, "x"))
        pull.do(pull.each.finish((), now, "y"))
        pauses.append(pull.each.head.due_ms - now)
    assert pauses[:3] == [STALL_MS, 2 * STALL_MS, 4 * STALL_MS]
    assert pauses[-1] == STALL_MS_MAX
    pull.append("a")
    pull.do(pull.each.claim("one", 9, "x"))
    pull.do(pull.each.finish((("a", 10, 1),), 9, "y"))
    assert pull.each.head.due_ms == 9


@pytest.mark.parametrize(
    ("ack", "why"),
    [(("b", 0), "not linked"), (("a", 4), "before the cursor"), (("a", 21), "past the end")],
)
def test_an_ack_that_does_not_fit_moves_nothing(
    pull: Place, ack: tuple[str, int], why: str
) -> None:
    pull.do(pull.each.claim("one", 0, "x"))
    pull.do(pull.each.hold((("a", 5, 1),), 0))
    pull.append("a")
    refused = pull.each.cursors([Ack("a", 20), Ack(*ack)])
    assert isinstance(refused, Refused)
    assert refused.code == "INVALID_OFFSET"
    assert why in refused.detail


def test_a_wake_has_at_most_so_many_streams_and_the_rest_wakes_again() -> None:
    place = Place(WEBHOOK, pattern="*")
    for number in range(WAKE_STREAMS_MAX + 5):
        place.append(f"s{number}")
    place.do(place.each.wake(1, "one"))
    assert len(place.each.head.snapshot) == WAKE_STREAMS_MAX
    place.do(place.each.taken(1, "two", done=True))
    assert len(place.each.head.snapshot) == 5


def test_a_clock_that_was_set_back_holds_nobody_up(hook: Place) -> None:
    hook.do(hook.each.taken(10**9, "x", done=False))
    assert hook.each.clamped(0).lease_ms == TTL
    hook.do(hook.each.failed("no", 10**9))
    assert hook.each.clamped(0).due_ms == 2 * RETRY_MS_MAX
    assert hook.each.clamped(10**9) == hook.each.head

"""The small parts on their own: limits, heads, alarms, budgets."""

import itertools
import math

import pytest
import trio
import trio.testing
from hypothesis import given, strategies as st

from durastreamd.http import render
from durastreamd.http.errors import ResponseError
from durastreamd.http.h2.flood import Allowance, FloodError, FrameMeter, ResetBudget
from durastreamd.http.limits import HttpLimits
from durastreamd.http.loop.alarm import Alarm, AlarmClock


def test_limits_must_be_positive_and_consistent() -> None:
    HttpLimits()
    with pytest.raises(ValueError, match="idle_s_max"):
        HttpLimits(idle_s_max=0)
    with pytest.raises(ValueError, match="target_bytes_max"):
        HttpLimits(target_bytes_max=100, head_bytes_max=100)


@given(st.lists(st.tuples(st.binary(max_size=9), st.binary(max_size=9)), max_size=4))
def test_no_header_can_split_a_head(headers: list[tuple[bytes, bytes]]) -> None:
    joined = b"".join(name + value for name, value in headers)
    try:
        block = render.field_block(headers)
    except ResponseError:
        assert any(byte in joined for byte in b"\r\n\0")
        return
    assert not any(byte in joined for byte in b"\r\n\0")
    assert block.split(b"\r\n") == [*(name + b": " + value for name, value in headers), b""]


def test_heads_have_a_date_and_a_status_line() -> None:
    head = render.head(431, ((b"A", b"b"),), b"Content-Length: 0\r\n", keep_alive=False)
    assert head.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\nDate: ")
    assert head.endswith(b" GMT\r\nA: b\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    assert render.status_line(299) == b"HTTP/1.1 299 \r\n"
    with pytest.raises(ResponseError):
        render.status_line(1000)


def started(nursery: trio.Nursery) -> tuple[AlarmClock, Alarm, float]:
    """Return a clock that runs, an alarm that is due in 100 s, and the time."""
    clock = AlarmClock()
    nursery.start_soon(clock.run)
    begun = trio.current_time()
    alarm = clock.new_alarm()
    alarm.set(begun + 100)
    return clock, alarm, begun


async def test_alarm_goes_off_when_due_and_not_before(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    clock, alarm, begun = started(nursery)
    with alarm.scope:
        await trio.sleep(50)
        alarm.set(begun + 200)  # Later: costs nothing.
        await trio.sleep(100)
        alarm.due = math.inf
        await trio.sleep(1000)
        alarm.set(trio.current_time() + 500)
        alarm.set(trio.current_time() + 10)  # Earlier.
        await trio.sleep_forever()
    assert trio.current_time() - begun == pytest.approx(1160)
    clock.discard(alarm)
    nursery.cancel_scope.cancel()


async def test_alarm_that_moved_later_still_goes_off(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    _clock, alarm, begun = started(nursery)
    with trio.move_on_after(1000), alarm.scope:
        await trio.sleep(50)
        alarm.set(begun + 120)
        await trio.sleep_forever()
    assert trio.current_time() - begun == pytest.approx(120)
    nursery.cancel_scope.cancel()


async def test_alarms_of_ended_connections_do_not_pile_up() -> None:
    clock = AlarmClock()
    kept = clock.new_alarm()
    kept.set(trio.current_time() + 5)
    for _ in range(20_000):
        alarm = clock.new_alarm()
        alarm.set(trio.current_time() + 75)
        clock.discard(alarm)
    assert len(clock._heap) < 2000
    assert any(note[2] is kept for note in clock._heap)


def test_bucket_refills_with_time_and_work_up_to_its_burst() -> None:
    bucket = Allowance(burst=3, per_s=2.0, now=0.0)
    for _ in range(3):
        bucket.spend()
    with pytest.raises(FloodError):
        bucket.spend()
    bucket.refill(1.0)
    bucket.earn(0.5)
    bucket.spend()
    bucket.spend()
    with pytest.raises(FloodError):
        bucket.spend()
    bucket.refill(1000.0)
    for _ in range(3):
        bucket.spend()
    with pytest.raises(FloodError):
        bucket.spend()


def test_reset_budget_grows_with_completed_exchanges() -> None:
    budget = ResetBudget(HttpLimits(h2_resets_max=2, h2_resets_per_completed=0.1))
    for _ in range(20):
        budget.completed()
    for _ in range(4):
        budget.reset()
    with pytest.raises(FloodError):
        budget.reset()


_kinds = st.sampled_from([0, 1, 4, 6, 7, 8, 9, 77])


@given(
    st.lists(
        st.tuples(_kinds, st.sampled_from([0, 4]), st.sampled_from([0, 1]), st.binary(max_size=20)),
        max_size=12,
    ),
    st.lists(st.integers(0, 400), max_size=10),
)
def test_meter_passes_everything_but_goodbyes_however_it_is_cut(
    parts: list[tuple[int, int, int, bytes]], cuts: list[int]
) -> None:
    raw, expected, head_open = b"P" * 24, b"P" * 24, False
    for kind, flags, stream, payload in parts:
        frame = len(payload).to_bytes(3, "big") + bytes((kind, flags, 0, 0, 0, stream)) + payload
        raw += frame
        if kind in (1, 9):
            head_open = not flags & 4
        # One that names an exchange is no goodbye but an error of its own.
        if kind != 7 or stream or head_open:
            expected += frame
    meter = FrameMeter(Allowance(1000, 1.0, 0.0), 24)
    edges = sorted({0, len(raw), *(min(cut, len(raw)) for cut in cuts)})
    passed = b"".join(meter.pass_on(raw[begin:end]) for begin, end in itertools.pairwise(edges))
    assert passed == expected
    assert meter.head_open == head_open

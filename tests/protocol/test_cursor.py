"""Cursors of live reads: numbers of intervals that never let one client ask the same twice."""

from hypothesis import given, strategies as st

from durastreamd.protocol import cursor

NOW = cursor.EPOCH_S * 1000 + 1_000_000_000
moments = st.integers(0, 4_000_000_000_000)


@given(moments, moments)
def test_later_moments_have_no_smaller_intervals(one: int, other: int) -> None:
    early, late = sorted((one, other))
    first, second = cursor.interval_at(early), cursor.interval_at(late)
    assert 0 <= first <= second
    if early >= cursor.EPOCH_S * 1000:
        assert second - first <= (late - early) // (cursor.INTERVAL_S * 1000) + 1


def test_an_interval_lasts_as_long_as_it_says() -> None:
    begin = cursor.EPOCH_S * 1000
    step = cursor.INTERVAL_S * 1000
    assert [cursor.interval_at(begin + each) for each in (0, step - 1, step)] == [0, 0, 1]


@given(st.integers(0, 10**cursor.ECHO_DIGITS_MAX - 1), moments)
def test_an_echo_is_answered_with_a_later_cursor(echoed: int, now_ms: int) -> None:
    found = cursor.after(str(echoed), now_ms)
    assert found > echoed
    assert found >= cursor.interval_at(now_ms)
    assert found in (echoed + 1, cursor.interval_at(now_ms))


@given(st.text(max_size=30))
def test_nonsense_is_answered_like_no_echo(text: str) -> None:
    digits = text.isascii() and text.isdigit() and len(text) <= cursor.ECHO_DIGITS_MAX
    if not digits:
        assert cursor.after(text, NOW) == cursor.after(None, NOW) == cursor.interval_at(NOW)


def test_endless_digits_are_not_read() -> None:
    assert cursor.after("9" * 100_000, NOW) == cursor.interval_at(NOW)

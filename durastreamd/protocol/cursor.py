"""The cursor of live reads: lets caches collapse waiting clients without looping for ever.

A cursor is the number of a fixed interval of time. A client echoes it; if it is not behind the
present interval already, it gets a later one, so no two requests of one client look the same to a
cache (section 8.1 of the protocol).
"""

INTERVAL_S = 20
EPOCH_S = 1_728_432_000  # 2024-10-09T00:00:00Z, as the reference counts
ECHO_DIGITS_MAX = 15  # far above any interval; int() of endless digits is costly


def interval_at(now_ms: int) -> int:
    """Return the number of the interval that a time lies in."""
    return max((now_ms // 1000 - EPOCH_S) // INTERVAL_S, 0)


def after(echoed: str | None, now_ms: int) -> int:
    """Return the cursor to hand out to a client that sent ``echoed``."""
    current = interval_at(now_ms)
    if echoed is None or len(echoed) > ECHO_DIGITS_MAX or not echoed.isascii():
        return current
    if not echoed.isdigit():
        return current
    return max(current, int(echoed) + 1)

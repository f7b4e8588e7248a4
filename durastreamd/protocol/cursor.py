"""The cursor of live reads: lets caches collapse waiting clients without looping for ever.

A cursor is the number of a fixed interval of time. A client echoes it; if it is not behind the
present interval already, it gets a later one, so no two requests of one client look the same to a
cache (PROTOCOL 8.1).
"""

INTERVAL_S = 20
EPOCH_S = 1_728_432_000  # 2024-10-09T00:00:00Z, as the reference counts
ECHO_MAX = 10**15


def interval_at(now_ms: int) -> int:
    """Return the number of the interval that a time lies in."""
    return (now_ms // 1000 - EPOCH_S) // INTERVAL_S


def after(echoed: str | None, now_ms: int) -> int:
    """Return the cursor to hand out to a client that sent ``echoed``."""
    current = interval_at(now_ms)
    if echoed is None or not echoed.isascii() or not echoed.isdigit() or int(echoed) > ECHO_MAX:
        return current
    return max(current, int(echoed) + 1)

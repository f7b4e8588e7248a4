"""How late the event loop is: the one number that tells whether something holds it."""

from collections import deque
from collections.abc import Callable

import trio

from durastreamd.streams.histogram import Histogram

SAMPLE_S = 0.02
IDLE_S = 0.5  # while nothing goes on: fifty wake-ups a second would be the whole cost of idling
SAMPLES = 3000  # the last minute of a busy server
LAG_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class LagMeter:
    """Sleeps a little, over and over, and notes how much longer than asked it slept."""

    def __init__(self) -> None:
        self._lags: deque[float] = deque(maxlen=SAMPLES)
        self.lag_s = Histogram(LAG_S)

    async def run(self, activity: Callable[[], int]) -> None:
        """Sample until cancelled; ``activity`` is a number that grows while there is work."""
        before = -1
        while True:
            now = activity()
            asked = trio.current_time() + (IDLE_S if now == before else SAMPLE_S)
            before = now
            await trio.sleep_until(asked)
            late_s = trio.current_time() - asked
            self._lags.append(late_s)
            self.lag_s.add(late_s)

    def percentile_ms(self, percent: float) -> float:
        """Return a percentile of the last lags, in milliseconds."""
        if not self._lags:
            return 0.0
        ordered = sorted(self._lags)
        at = min(int(len(ordered) * percent / 100), len(ordered) - 1)
        return round(ordered[at] * 1000, 3)

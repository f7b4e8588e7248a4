"""How late the event loop is: the one number that tells whether something holds it."""

from collections import deque

import trio

SAMPLE_S = 0.02
SAMPLES = 3000  # the last minute


class LagMeter:
    """Sleeps a little, over and over, and notes how much longer than asked it slept."""

    def __init__(self) -> None:
        self._lags: deque[float] = deque(maxlen=SAMPLES)

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            asked = trio.current_time() + SAMPLE_S
            await trio.sleep_until(asked)
            self._lags.append(trio.current_time() - asked)

    def percentile_ms(self, percent: float) -> float:
        """Return a percentile of the last minute's lags, in milliseconds."""
        if not self._lags:
            return 0.0
        ordered = sorted(self._lags)
        at = min(int(len(ordered) * percent / 100), len(ordered) - 1)
        return round(ordered[at] * 1000, 3)

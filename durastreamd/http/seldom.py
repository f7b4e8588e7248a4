"""A line of the log for what happens again and again: said once, then seldom, with a count."""

import logging
import time


class Seldom:
    """Says the same thing at most once in ``every_s``, and how often it was kept to itself."""

    def __init__(self, logger: logging.Logger, level: int, every_s: float = 60.0) -> None:
        self._logger = logger
        self._level = level
        self._every_s = every_s
        self._said_at = 0.0
        self._silent = 0

    def say(self, message: str, *arguments: object) -> None:
        """Log this, or count it."""
        now = time.monotonic()
        if self._said_at and now - self._said_at < self._every_s:
            self._silent += 1
            return
        if self._silent:
            message = f"{message} (and {self._silent} times since this was last said)"
        self._said_at, self._silent = now, 0
        self._logger.log(self._level, message, *arguments)

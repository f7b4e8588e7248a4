"""What every connection of one server shares."""

from dataclasses import dataclass, field

import trio

from durastreamd.http.budget import Budget
from durastreamd.http.exchange import CommonHeaders, Handler, QuickHandler
from durastreamd.http.limits import HttpLimits
from durastreamd.http.loop.alarm import AlarmClock
from durastreamd.http.loop.arrivals import Arrivals
from durastreamd.http.loop.hang_up import HangUpWatch

# Methods that are told apart; a client may make up others.
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "other")
_CLASSES = 6  # Of statuses: index 0 is "never answered".


def _no_answers() -> dict[str, list[int]]:
    return {method: [0] * _CLASSES for method in METHODS}


@dataclass(slots=True)
class Statistics:
    """Counters of one server; the metrics page reads them."""

    connections_open: int = 0
    connections_total: int = 0
    connections_refused: int = 0  # Over a connection limit.
    exchanges_open: int = 0
    exchanges_total: int = 0
    lane_total: int = 0  # Requests the fast lane recognised.
    refused_total: int = 0  # Requests refused by this layer, and connections ended for abuse.
    h2_open: int = 0  # Connections that speak HTTP/2.
    stalled_total: int = 0  # Connections ended because their client took nothing for too long.
    answers: dict[str, list[int]] = field(default_factory=_no_answers)  # By method and class.

    def answered(self, method: str, status: int) -> None:
        """Count an exchange that has come to its end."""
        (self.answers.get(method) or self.answers["other"])[status // 100] += 1


@dataclass(slots=True)
class ServeContext:
    """The handler, the bounds and the helpers of one running server."""

    handler: Handler
    limits: HttpLimits
    common: CommonHeaders
    nursery: trio.Nursery  # For what outlives a single wait, such as flushing a remainder.
    watch: HangUpWatch
    clock: AlarmClock
    arrivals: Arrivals
    budget: Budget
    quick: QuickHandler | None = None
    statistics: Statistics = field(default_factory=Statistics)
    draining: bool = False
    lane: bool = True  # False sends every head through h11; for measuring and for doubt.

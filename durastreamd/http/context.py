"""What every connection of one server shares."""

from dataclasses import dataclass, field

import trio

from durastreamd.http.alarm import AlarmClock
from durastreamd.http.arrivals import Arrivals
from durastreamd.http.exchange import CommonHeaders, Handler, QuickHandler
from durastreamd.http.hang_up import HangUpWatch
from durastreamd.http.limits import HttpLimits


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
    quick: QuickHandler | None = None
    statistics: Statistics = field(default_factory=Statistics)
    draining: bool = False
    lane: bool = True  # False sends every head through h11; for measuring and for doubt.

"""What the service itself bounds, with defaults that suit real clients."""

from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from durastreamd.http.limits import BudgetLimits

MIB = 1024 * 1024
POSITIVE = msgspec.Meta(gt=0)


@dataclass(frozen=True)
class ReadLimits:
    """Reading: how long, how much."""

    long_poll_s: Annotated[float, "below the 30 s read time-out that several clients have"] = 25.0
    heartbeat_s: Annotated[
        float, "a comment on a quiet SSE response, for proxies that hang up", POSITIVE
    ] = 15.0
    sse_s: Annotated[
        float, "an SSE response is renewed after about so long, for caches", POSITIVE
    ] = 60.0
    page_bytes_max: Annotated[
        int, "one catch-up answer; it is sent in pieces, never held whole", POSITIVE
    ] = 64 * MIB
    json_page_bytes_max: Annotated[
        int, "one such answer of a JSON stream, which its client parses whole", POSITIVE
    ] = 8 * MIB
    closed_pause_s: Annotated[
        float, "before a repeated live read at the end of a closed stream"
    ] = 0.075
    piece_bytes: Annotated[int, "of such a piece", POSITIVE] = 256 * 1024
    event_bytes_max: Annotated[int, "one SSE data event while catching up", POSITIVE] = 256 * 1024
    gzip_bytes_min: Annotated[int, "below it compressing costs more than it saves"] = 1024
    gzip_bytes_max: Annotated[int, "above it the answer is streamed as it is"] = 8 * MIB


@dataclass(frozen=True)
class WriteLimits:
    """Writing: how much at once."""

    append_bytes_max: Annotated[int, "one body, held in memory until it is durable", POSITIVE] = (
        64 * MIB
    )
    append_messages_max: Annotated[
        int, "values of one JSON body; as many as 4 MiB hold, what the Spark sink sends", POSITIVE
    ] = 2 * MIB
    snapshot_bytes_max: Annotated[
        int, "one blob; it is streamed to disk, not held in memory", POSITIVE
    ] = 1024 * MIB
    in_flight_bytes_max: Annotated[
        int, "in memory for all clients: bodies until they are durable, pages", POSITIVE
    ] = 256 * MIB
    in_flight_wait_s_max: Annotated[
        float, "what finds no room waits so long, then 503; clients give up later", POSITIVE
    ] = 5.0
    parse_inline_bytes: Annotated[
        int, "a larger JSON body is checked in a thread; up to it an append is small"
    ] = 64 * 1024

    @property
    def budget(self) -> BudgetLimits:
        """What bytes in memory are counted by."""
        return BudgetLimits(
            self.in_flight_bytes_max, self.parse_inline_bytes, self.in_flight_wait_s_max
        )


@dataclass(slots=True)
class Limits:
    """What the parts of the service are bounded by: one box that all of them look into.

    A reload replaces what is in it. Whoever works in pieces takes its numbers out once, so that
    what is under way goes on by those it began with.
    """

    reads: ReadLimits = field(default_factory=ReadLimits)
    writes: WriteLimits = field(default_factory=WriteLimits)


# Words that stand for many names or origins.
ANY = "*"
AUTO = "auto"
LOOPBACK = "loopback"


@dataclass(frozen=True)
class CorsOptions:
    """Which pages may use the server from a browser."""

    origins: Annotated[
        tuple[str, ...],
        "such as https://example.org; *: any, loopback: pages of this host, auto: any if tokens or "
        "JWTs are needed, else loopback",
    ] = (AUTO,)
    max_age_s: Annotated[int, "without it every write pays a preflight"] = 86_400

    def __post_init__(self) -> None:
        for origin in self.origins:
            scheme, found, host = origin.partition("://")
            whole = found and scheme and host and "/" not in host
            if not whole and origin not in (ANY, AUTO, LOOPBACK, "null"):
                msg = f"origins: {origin!r} is not what browsers send, such as https://example.org"
                raise ValueError(msg)


@dataclass(frozen=True)
class DiskOptions:
    """Room on the disk of the data directory."""

    free_bytes_min: Annotated[
        int, "with less free appends get 507: two journals, to flush what is in memory; 0: never"
    ] = 128 * MIB
    free_bytes_resume: Annotated[int, "with so much free they are taken again"] = 160 * MIB
    check_s: Annotated[float, "how often it is looked at", POSITIVE] = 1.0

    def __post_init__(self) -> None:
        if self.free_bytes_resume < self.free_bytes_min:
            msg = "free_bytes_resume must not be below free_bytes_min"
            raise ValueError(msg)

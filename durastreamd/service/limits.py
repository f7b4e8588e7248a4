"""What the service itself bounds, with defaults that suit real clients."""

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True)
class ReadLimits:
    """Reading: how long, how much."""

    long_poll_s: float = 25.0  # below the 30 s read time-out that several clients have
    heartbeat_s: float = 15.0  # a comment on a quiet SSE response, for proxies that hang up
    sse_s: float = 60.0  # an SSE response is renewed after about so long, for caches
    page_bytes_max: int = 64 * MIB  # one catch-up answer; it is streamed, so memory is no reason
    closed_pause_s: float = 0.075  # before a repeated live read at the end of a closed stream
    piece_bytes: int = 256 * 1024  # read and sent at once: measured faster than sendfile here
    event_bytes_max: int = 256 * 1024  # one SSE data event while catching up
    gzip_bytes_min: int = 1024  # below it compressing costs more than it saves
    gzip_bytes_max: int = 8 * MIB  # above it the answer is streamed as it is


@dataclass(frozen=True)
class WriteLimits:
    """Writing: how much at once."""

    append_bytes_max: int = 64 * MIB  # one body, held in memory until it is durable
    snapshot_bytes_max: int = 1024 * MIB  # one blob; it is streamed to disk, not held in memory
    in_flight_bytes_max: int = 256 * MIB  # bodies of all requests until they are durable
    parse_inline_bytes: int = 64 * 1024  # a larger JSON body is checked in a thread


@dataclass(frozen=True)
class CorsOptions:
    """Which pages may use the server from a browser; "*" is any."""

    origins: tuple[str, ...] = ("*",)
    max_age_s: int = 86_400  # without it every write pays a preflight

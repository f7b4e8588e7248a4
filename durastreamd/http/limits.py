"""Every bound of the connection layer, with its default and the reason for it.

The daemon fills this from its configuration; the field names are the configuration keys. Nothing
in ``http`` grows, waits or repeats without one of these. Times are seconds, sizes are bytes.
"""

from dataclasses import dataclass, fields
from typing import Annotated, NamedTuple

KIB = 1024
MIB = 1024 * KIB


class BudgetLimits(NamedTuple):
    """The numbers of a budget; the service's settings have their names and reasons."""

    bytes_max: int = 256 * MIB
    small_bytes: int = 64 * KIB
    wait_s_max: float = 5.0


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What one server accepts from the network."""

    # --- Request heads ---
    head_bytes_max: Annotated[
        int, "request line and header fields; what nginx and Node allow, too"
    ] = 16 * KIB
    header_count_max: Annotated[
        int, "header fields of a request; 2,500 of them take 25 ms to read"
    ] = 100
    target_bytes_max: Annotated[int, "path and query; RFC 9112 asks for at least 8,000"] = 8 * KIB
    head_s_max: Annotated[float, "for the whole head of a request, from its first byte on"] = 10.0

    # --- Request bodies ---
    body_bytes_max: Annotated[
        int, "of any request body; [writes] has lower limits for each kind"
    ] = 1024 * MIB
    body_grace_s: Annotated[float, "a body may be slow for so long before body_rate_min counts"] = (
        10.0
    )
    body_rate_min: Annotated[int, "bytes per second that a body must bring after that"] = 1 * KIB
    body_idle_s_max: Annotated[float, "between two pieces of a body that is stored as it comes"] = (
        60.0
    )
    discard_bytes_max: Annotated[
        int, "rest of a refused body that is read to keep the connection"
    ] = 64 * KIB

    # --- Responses ---
    write_s_max: Annotated[float, "a client that takes no byte for so long is hung up on"] = 30.0

    # --- Connections ---
    idle_s_max: Annotated[
        float, "between two requests; above the 60 s that clients and proxies use"
    ] = 75.0
    tls_handshake_s_max: Annotated[float, "for the TLS handshake of a new connection"] = 10.0
    linger_s_max: Annotated[
        float, "after a refusal a client has so long to read the answer ..."
    ] = 1.0
    linger_bytes_max: Annotated[int, "... and may send so much more meanwhile"] = 1 * MIB
    connections_max: Annotated[
        int, "about 20 KB of memory each; less where LimitNOFILE is less"
    ] = 10_000
    connections_per_address_max: Annotated[
        int, "so that one host cannot use up all; a proxy is one host"
    ] = 5_000
    refusals_max: Annotated[
        int, "connections beyond these told 503 at one time; more are dropped"
    ] = 64
    backlog_count: Annotated[
        int, "not yet accepted; the kernel lowers it to net.core.somaxconn"
    ] = 1024

    # --- HTTP/2 ---
    h2_exchanges_max: Annotated[
        int, "requests at one time on one connection; RFC 9113 advises 100"
    ] = 100
    h2_exchange_window_bytes: Annotated[int, "of one request's body, not read yet"] = 256 * KIB
    h2_connection_window_bytes: Annotated[
        int, "of all request bodies of a connection, not read yet"
    ] = 1 * MIB
    h2_header_list_bytes_max: Annotated[
        int, "with longer header fields the connection is ended"
    ] = 64 * KIB
    h2_outbound_bytes_max: Annotated[
        int, "waiting to be sent; above it the connection is not read"
    ] = 64 * KIB
    h2_resets_max: Annotated[int, "requests a client may take back before their answer ..."] = 100
    h2_resets_per_completed: Annotated[float, "... and this share of its answered requests"] = 0.1
    h2_control_frames_max: Annotated[
        int, "frames without data (PING, SETTINGS, ...) in one burst ..."
    ] = 1_000
    h2_control_frames_per_s: Annotated[
        float, "... of which so many are forgotten each second ..."
    ] = 100.0
    h2_control_frames_per_data: Annotated[
        float, "... and so many with each frame of data that is sent"
    ] = 4.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                msg = f"{field.name} must be positive, not {value!r}"
                raise ValueError(msg)
        if self.target_bytes_max >= self.head_bytes_max:
            msg = "target_bytes_max must be below head_bytes_max: the target is part of the head"
            raise ValueError(msg)

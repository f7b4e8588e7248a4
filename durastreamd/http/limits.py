"""Every bound of the connection layer, with its default and the reason for it.

The daemon fills this from its configuration; the field names are the configuration keys. Nothing
in ``http`` grows, waits or repeats without one of these. Times are seconds, sizes are bytes.
"""

from dataclasses import dataclass, fields
from typing import Annotated

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What one server accepts from the network."""

    # --- Request heads ---
    head_bytes_max: Annotated[
        int, "Request line and fields; what nginx and Node allow as well."
    ] = 16 * KIB
    header_count_max: Annotated[int, "h11 has no bound: 2500 fields cost it 25 ms."] = 100
    target_bytes_max: Annotated[int, "RFC 9112 asks for at least 8000."] = 8 * KIB
    head_s_max: Annotated[float, "From the first byte of a head to its last (slowloris)."] = 10.0

    # --- Request bodies ---
    body_bytes_max: Annotated[int, "Hard ceiling; handlers pass their own, lower bound."] = (
        1024 * MIB
    )
    body_grace_s: Annotated[float, "Before the rate counts: a slow start is not an attack."] = 10.0
    body_rate_min: Annotated[int, "Bytes per second of a body read whole, after the grace."] = (
        1 * KIB
    )
    body_idle_s_max: Annotated[
        float, "Between two pieces of a streamed body (tokens of a model)."
    ] = 60.0
    discard_bytes_max: Annotated[int, "Unread rest of a body that is worth the connection."] = (
        64 * KIB
    )

    # --- Responses ---
    write_s_max: Annotated[
        float, "One send without any progress: the reader is gone or hostile."
    ] = 30.0

    # --- Connections ---
    idle_s_max: Annotated[
        float, "Between exchanges; above the 60 s that clients and proxies use."
    ] = 75.0
    tls_handshake_s_max: Annotated[float, "A TCP connection that never says hello."] = 10.0
    linger_s_max: Annotated[
        float, "After a refusal: let the client finish and read the answer ..."
    ] = 1.0
    linger_bytes_max: Annotated[int, "... but do not swallow a whole upload for it."] = 1 * MIB
    connections_max: Annotated[int, "About 20 KB each; lowered where LimitNOFILE is less."] = 10_000
    connections_per_address_max: Annotated[
        int, "One host must not use up all; a proxy is one host."
    ] = 5_000
    refusals_max: Annotated[
        int, "Surplus connections that are told 503 at one time; more are dropped."
    ] = 64
    backlog_count: Annotated[int, "Not yet accepted; the kernel cuts it to net.core.somaxconn."] = (
        1024
    )

    # --- HTTP/2 ---
    h2_exchanges_max: Annotated[int, "At one time on one connection (RFC 9113 advises 100)."] = 100
    h2_exchange_window_bytes: Annotated[int, "Unread request body per exchange."] = 256 * KIB
    h2_connection_window_bytes: Annotated[int, "Unread request bodies per connection."] = 1 * MIB
    h2_header_list_bytes_max: Annotated[
        int, "Above it the connection ends (HPACK bomb), below 431."
    ] = 64 * KIB
    h2_outbound_bytes_max: Annotated[
        int, "Queued frames; above it nothing more is read or added."
    ] = 64 * KIB
    h2_resets_max: Annotated[int, "Exchanges reset before their answer (rapid reset) ..."] = 100
    h2_resets_per_completed: Annotated[float, "... plus this share of the completed ones."] = 0.1
    h2_control_frames_max: Annotated[
        int, "Burst of PING, SETTINGS, RST, empty DATA and the like ..."
    ] = 1_000
    h2_control_frames_per_s: Annotated[
        float, "... and the pace at which the burst is earned back."
    ] = 100.0
    h2_control_frames_per_data: Annotated[
        float, "Earned by each DATA frame we send: honest updates."
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

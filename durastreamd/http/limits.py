"""Every bound of the connection layer, with its default and the reason for it.

The daemon fills this from its configuration; the field names are the configuration keys. Nothing
in ``http`` grows, waits or repeats without one of these. Times are seconds, sizes are bytes.
"""

from dataclasses import dataclass, fields

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What one server accepts from the network."""

    # --- Request heads ---
    head_bytes_max: int = 16 * KIB  # Request line and fields; what nginx and Node allow as well.
    header_count_max: int = 100  # h11 has no bound: 2500 fields cost it 25 ms.
    target_bytes_max: int = 8 * KIB  # RFC 9112 asks for at least 8000.
    head_s_max: float = 10.0  # From the first byte of a head to its last (slowloris).

    # --- Request bodies ---
    body_bytes_max: int = 1024 * MIB  # Hard ceiling; handlers pass their own, lower bound.
    body_grace_s: float = 10.0  # Before the rate counts: a slow start is not an attack.
    body_rate_min: int = 1 * KIB  # Bytes per second of a body read whole, after the grace.
    body_idle_s_max: float = 60.0  # Between two pieces of a streamed body (tokens of a model).
    discard_bytes_max: int = 64 * KIB  # Unread rest of a body that is worth the connection.

    # --- Responses ---
    write_s_max: float = 30.0  # One send without any progress: the reader is gone or hostile.

    # --- Connections ---
    idle_s_max: float = 75.0  # Between exchanges; above the 60 s that clients and proxies use.
    tls_handshake_s_max: float = 10.0  # A TCP connection that never says hello.
    linger_s_max: float = 1.0  # After a refusal: let the client finish and read the answer ...
    linger_bytes_max: int = 1 * MIB  # ... but do not swallow a whole upload for it.
    connections_max: int = 10_000  # About 20 KB each; keep below LimitNOFILE.
    connections_per_address_max: int = 5_000  # One host must not use up all; a proxy is one host.
    refusals_max: int = 64  # Surplus connections that are told 503 at one time; more are dropped.
    backlog_count: int = 1024  # Not yet accepted; the kernel cuts it to net.core.somaxconn.

    # --- HTTP/2 ---
    h2_exchanges_max: int = 100  # At one time on one connection (RFC 9113 advises 100).
    h2_exchange_window_bytes: int = 256 * KIB  # Unread request body per exchange.
    h2_connection_window_bytes: int = 1 * MIB  # Unread request bodies per connection.
    h2_header_list_bytes_max: int = (
        64 * KIB
    )  # Above it the connection ends (HPACK bomb), below 431.
    h2_outbound_bytes_max: int = 64 * KIB  # Queued frames; above it nothing more is read or added.
    h2_resets_max: int = 100  # Exchanges reset before their answer (rapid reset) ...
    h2_resets_per_completed: float = 0.1  # ... plus this share of the completed ones.
    h2_control_frames_max: int = 1_000  # Burst of PING, SETTINGS, RST, empty DATA and the like ...
    h2_control_frames_per_s: float = 100.0  # ... and the pace at which the burst is earned back.
    h2_control_frames_per_data: float = 4.0  # Earned by each DATA frame we send: honest updates.

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                msg = f"{field.name} must be positive, not {value!r}"
                raise ValueError(msg)
        if self.target_bytes_max >= self.head_bytes_max:
            msg = "target_bytes_max must be below head_bytes_max: the target is part of the head"
            raise ValueError(msg)

"""What an HTTP/2 client may cost us: frames are weighed before h2 takes them apart. No I/O.

h2 answers every PING and SETTINGS, accepts empty DATA for ever and surfaces every request that is
reset in the same breath; each costs us more than the client. ``FrameMeter`` walks the frame headers
(nine bytes each) and charges control frames to a bucket; ``ResetBudget`` counts exchanges that were
reset before we answered. Whoever runs out gets GOAWAY(ENHANCE_YOUR_CALM).

The meter also takes GOAWAY frames out: h2 stops all exchanges on receiving one (python-hyper/h2
issue 1181), but a client that says goodbye still wants the answers it is waiting for.
"""

from typing import Final

from durastreamd.http.limits import HttpLimits

FRAME_HEADER_BYTES: Final = 9

DATA: Final = 0x0
HEADERS: Final = 0x1
GOAWAY: Final = 0x7
CONTINUATION: Final = 0x9
END_HEADERS: Final = 0x4


class FloodError(Exception):
    """The client spends more of our time than of its own."""


class Allowance:
    """Tokens that refill with time and with useful work, up to a burst."""

    __slots__ = ("_at", "_burst", "_per_s", "_tokens")

    def __init__(self, burst: int, per_s: float, now: float) -> None:
        self._burst = float(burst)
        self._per_s = per_s
        self._tokens = float(burst)
        self._at = now

    def refill(self, now: float) -> None:
        """Credit the time since the last call."""
        self.earn((now - self._at) * self._per_s)
        self._at = now

    def earn(self, tokens: float) -> None:
        """Credit useful work."""
        self._tokens = min(self._burst, self._tokens + tokens)

    def spend(self) -> None:
        """Take one token; raises ``FloodError`` when there is none."""
        if self._tokens < 1.0:
            msg = "too many control frames"
            raise FloodError(msg)
        self._tokens -= 1.0


class ResetBudget:
    """How many exchanges may be reset before they were answered."""

    __slots__ = ("_completed", "_max", "_resets", "_share")

    def __init__(self, limits: HttpLimits) -> None:
        self._max = limits.h2_resets_max
        self._share = limits.h2_resets_per_completed
        self._completed = 0
        self._resets = 0

    def completed(self) -> None:
        """Note an exchange that ran to its end."""
        self._completed += 1

    def reset(self) -> None:
        """Note a reset; raises ``FloodError`` when there were too many."""
        self._resets += 1
        if self._resets > self._max + self._completed * self._share:
            msg = "too many resets"
            raise FloodError(msg)


class FrameMeter:
    """Weighs the frames in a byte sequence and passes on what h2 should see."""

    __slots__ = ("_bucket", "_held", "_payload_left", "_swallow", "head_open")

    def __init__(self, bucket: Allowance, preface_bytes: int) -> None:
        self._bucket = bucket
        self._held = b""  # The beginning of a frame header.
        self._payload_left = preface_bytes  # The preface passes like a payload.
        self._swallow = False
        self.head_open = False  # A header block has begun and not ended.

    def pass_on(self, data: bytes) -> bytes:
        """Weigh ``data`` and give it without GOAWAY frames; raises ``FloodError``."""
        if self._held:
            data = self._held + data
            self._held = b""
        size = len(data)
        at = min(self._payload_left, size)
        self._payload_left -= at
        out: list[bytes] = []
        kept_from = at if self._swallow else 0
        while at < size and not self._payload_left:
            if size - at < FRAME_HEADER_BYTES:
                out.append(data[kept_from:at])
                self._held = data[at:]
                return b"".join(out)
            length = int.from_bytes(data[at : at + 3], "big")
            # The highest bit is reserved; GOAWAY is of no exchange, or it is malformed.
            of_none = not int.from_bytes(data[at + 5 : at + 9], "big") & 0x7FFF_FFFF
            swallow = self._weigh(data[at + 3], data[at + 4], length) and of_none
            if swallow:
                out.append(data[kept_from:at])
            end = at + FRAME_HEADER_BYTES + length
            self._payload_left = max(0, end - size)
            at = min(end, size)
            if swallow:
                kept_from = at
            self._swallow = swallow
        if not out and kept_from == 0:
            return data
        out.append(data[kept_from:])
        return b"".join(out)

    def _weigh(self, kind: int, flags: int, length: int) -> bool:
        """Charge one frame; tell whether h2 must not see it."""
        if kind in (HEADERS, CONTINUATION):
            self.head_open = not flags & END_HEADERS
            if kind == CONTINUATION:
                self._bucket.spend()
            return False
        if kind == DATA and length:
            return False
        self._bucket.spend()
        # Inside a header block a GOAWAY is an error, and h2 shall say so.
        return kind == GOAWAY and not self.head_open

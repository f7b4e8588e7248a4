"""The one checksum: xxh3-64, seeded with where the bytes belong.

A seed binds bytes to their place. A frame that is itself whole but stale, moved to another
position, another file or another data directory does not verify there.
"""

from xxhash import xxh3_64_intdigest

_MASK = 2**64 - 1
_ODD = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: spreads small ids over the whole range


def seed(*parts: int | bytes | str) -> int:
    """Fold the parts of an address into a seed."""
    value = 0
    for part in parts:
        if isinstance(part, str):
            part = part.encode()
        number = xxh3_64_intdigest(part) if isinstance(part, bytes) else part
        value = ((value ^ number) * _ODD + 1) & _MASK
    return value


def digest(data: bytes | memoryview, base: int, position: int = 0) -> int:
    """Return the checksum of ``data`` standing at ``position`` of what ``base`` is the seed of."""
    return xxh3_64_intdigest(data, (base + position) & _MASK)


def payload_seed(stream: int, start: int) -> int:
    """Return the seed for a stream's own bytes at ``start``."""
    return (stream * _ODD + start) & _MASK


def payload_sum(data: bytes | memoryview, stream: int, start: int) -> int:
    """Return the checksum of a stream's own bytes at ``start``."""
    return xxh3_64_intdigest(data, (stream * _ODD + start) & _MASK)

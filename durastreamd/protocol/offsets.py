"""Offsets, the tokens clients hold, and positions, the byte numbers we count in.

A token is the position in sixteen digits, so tokens sort as text. One token without an
underscore: a public client adds one to anything that looks like ``digits_digits``. The start may
also be written ``0000000000000000_0000000000000000``, the form of the reference server, which the
conformance suite sends as a fork offset.
"""

import re
from typing import NewType

Offset = NewType("Offset", str)
Position = NewType("Position", int)

DIGITS = 16
POSITION_MAX = 10**DIGITS - 1

START = Offset("-1")
NOW = Offset("now")

_TOKEN = re.compile(rf"[0-9]{{{DIGITS}}}")
_REFERENCE_START = "_".join(("0" * DIGITS,) * 2)


def misread(shown: str, token: str) -> str:
    """Say what an offset looks like to somebody who sent ``token``, quoted as ``shown``."""
    detail = (
        f"{shown} is not an offset of this server: those are the {DIGITS} digits of a "
        f"Stream-Next-Offset, {START} for the start and {NOW} for the end"
    )
    near = token.isascii() and token.isdigit() and len(token) < DIGITS
    return f"{detail}; did you mean {token.zfill(DIGITS)}?" if near else f"{detail}."


def mint(position: int) -> Offset:
    """Return the token for ``position``."""
    return Offset(f"{position:016d}")


def mint_bytes(position: int) -> bytes:
    """Return the token for ``position`` as it stands in a header."""
    return b"%016d" % position


def parse(token: str) -> Position | None:
    """Return the position ``token`` stands for, or None where it is no token of ours.

    The sentinels are not tokens: their meaning depends on the stream.
    """
    if _TOKEN.fullmatch(token):
        return Position(int(token))
    return Position(0) if token == _REFERENCE_START else None

"""CBOR in diagnostic notation (RFC 8949, section 8), for people."""

import math

import cbor2

from durastreamd.protocol.json_writing import json_line


def diagnostic(encoded: bytes) -> str:
    """Return one CBOR item in diagnostic notation; what cannot be decoded as its bytes."""
    try:
        return _text(cbor2.loads(encoded))
    except (cbor2.CBORDecodeError, ValueError, RecursionError):
        return f"h'{encoded.hex()}'"


def _text(item: object) -> str:
    if item is None or isinstance(item, bool):
        return {None: "null", True: "true", False: "false"}[item]
    if isinstance(item, str):
        return json_line(item)
    if isinstance(item, bytes):
        return f"h'{item.hex()}'"
    if isinstance(item, float):
        special = {True: "NaN", False: "Infinity" if item > 0 else "-Infinity"}
        return repr(item) if math.isfinite(item) else special[math.isnan(item)]
    if isinstance(item, list | tuple):
        return "[" + ", ".join(map(_text, item)) + "]"
    if isinstance(item, dict):
        return "{" + ", ".join(f"{_text(key)}: {_text(value)}" for key, value in item.items()) + "}"
    if isinstance(item, cbor2.CBORTag):
        return f"{item.tag}({_text(item.value)})"
    return str(item)

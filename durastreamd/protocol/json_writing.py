"""How JSON is written: one way for answers, one for problems, one for lines that people read.

What a client stored is never written by these: its bytes stay as they are (``json_mode``).
"""

import json
import re

_LONE = re.compile("[\ud800-\udfff]")


def json_body(value: object) -> bytes:
    """Return a value as the body of an answer, in ASCII: any client's charset reads it."""
    return json.dumps(value).encode("ascii")


def json_compact(value: object) -> bytes:
    """Return a value without a space that could be left out, in ASCII."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def json_line(value: object) -> str:
    """Return a value on one line, its characters as they are; what no text can hold is escaped.

    The latter is a byte of a file's name that is no UTF-8: a lone surrogate in Python.
    """
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isascii() else _LONE.sub(lambda one: f"\\u{ord(one[0]):04x}", text)

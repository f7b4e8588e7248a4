"""The inspector: one page, made of one file, that shows what ``inspection`` tells.

The page has no part elsewhere, and its policy says so: nothing but this script and this style run,
named by their hashes, and it talks to this server alone. What clients stored is shown as text.
"""

import base64
import hashlib
import re
from functools import lru_cache
from importlib.resources import files

from durastreamd.service.answers import Fields


@lru_cache(maxsize=1)
def inspector_page() -> tuple[Fields, bytes]:
    """Return the headers and the bytes of the page; read once."""
    page = files("durastreamd.service.operating").joinpath("inspector.html").read_bytes()
    allowed = {
        kind: " ".join(f"'sha256-{_hash(part)}'" for part in _inline(page, tag))
        for kind, tag in (("script-src", b"script"), ("style-src", b"style"))
    }
    policy = "; ".join(
        [
            "default-src 'none'",
            *(f"{kind} {hashes}" for kind, hashes in allowed.items()),
            "connect-src 'self'",
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        ]
    )
    fields = [
        (b"Content-Type", b"text/html; charset=utf-8"),
        (b"Cache-Control", b"no-cache"),
        (b"Content-Security-Policy", policy.encode()),
        (b"Referrer-Policy", b"no-referrer"),
    ]
    return fields, page


def _inline(page: bytes, tag: bytes) -> list[bytes]:
    return re.findall(rb"<%s>(.*?)</%s>" % (tag, tag), page, re.DOTALL)


def _hash(part: bytes) -> str:
    return base64.b64encode(hashlib.sha256(part).digest()).decode()

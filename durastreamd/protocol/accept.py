"""What a client takes, by its own words: ``Accept`` and ``Accept-Encoding``. Pure."""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

_QUALITY = re.compile(rb"q=(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)")


def accepts_gzip(headers: Mapping[bytes, bytes]) -> bool:
    """Tell whether an answer may be compressed with gzip."""
    given = headers.get(b"accept-encoding")
    return given is not None and _takes_gzip(given)


@lru_cache(maxsize=256)
def _takes_gzip(given: bytes) -> bool:
    for name, quality in _choices(given):
        if name in (b"gzip", b"x-gzip"):
            return quality > 0
    return False


@lru_cache(maxsize=256)
def prefers(accept: bytes, form: bytes, own: bytes) -> bool:
    """Tell whether ``form``, which must be named to be had, is liked as well as ``own`` or better.

    A range with a wildcard never asks for a form: it is what clients send that know of none.
    """
    qualities = dict(_choices(accept))
    liked = qualities.get(form, 0.0)
    kind = own.partition(b";")[0].strip().lower()
    for known in (kind, kind.partition(b"/")[0] + b"/*", b"*/*"):
        if known in qualities:
            return 0 < liked >= qualities[known]
    return liked > 0


def _choices(value: bytes) -> Iterator[tuple[bytes, float]]:
    """Yield what a list names, in lower case, and how much it is liked: from 0, not at all, to 1.

    A quality that is none counts as not given.
    """
    for choice in value.lower().split(b","):
        name, *parameters = (part.strip() for part in choice.split(b";"))
        found = next((m for each in parameters if (m := _QUALITY.fullmatch(each))), None)
        yield name, 1.0 if found is None else float(found[1])

"""Content types: kept as the creator wrote them, compared by media type alone."""

from functools import lru_cache

DEFAULT = "application/octet-stream"
JSON = "application/json"


@lru_cache(maxsize=1024)
def media_type(content_type: str) -> str:
    """Return the lower-case media type without parameters: the form that is compared."""
    return content_type.partition(";")[0].strip().lower()


def same(one: str, other: str) -> bool:
    """Tell whether two content types name the same media type."""
    return one == other or media_type(one) == media_type(other)


def is_json(content_type: str) -> bool:
    """Tell whether streams of this type are sequences of JSON messages."""
    return media_type(content_type) == JSON

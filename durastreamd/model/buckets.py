"""Buckets as the table of streams keeps them: a count, and the part of a key that names one."""

from msgspec import Struct


class Bucket(Struct):
    """A bucket: when it was made, how many streams it has.

    ``kept`` of them were deleted and stand only for their forks; listings do not show them.
    """

    created_ms: int
    streams: int = 0
    kept: int = 0


def bucket_of(key: str) -> str:
    """Return the bucket of a key, "" on the path surface."""
    return key.partition("/")[0]

"""Names of streams and buckets: from a path to a key, one spelling each.

Two surfaces share the table of streams. ``/v1/stream/{path}`` has names of several segments;
``/{bucket}/{stream}`` follows the bucket extension to the byte. On both, the last segments
``snapshot``, ``snapshot/{offset}`` and ``bootstrap`` are parts of a stream, not names.
"""

import re
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from durastreamd.protocol import problems
from durastreamd.protocol.problems import quoted
from durastreamd.protocol.requests import ProblemError, stream_name

PREFIX = "/v1/stream/"
RESERVED_ROOT = "__ds"
RESERVED_BUCKETS = ("errors", "health")
LISTING = "streams"
ID_BYTES_MAX = 122

_BUCKET = re.compile(r"[a-z0-9_-]{4,64}")


class Resource(NamedTuple):
    """What a path names: a stream or a bucket, and which part of it.

    ``part`` is "" for the thing itself, "snapshot", "bootstrap" or "streams" (the listing, which
    the path surface has, too, under its key "/");
    ``offset`` is the token after ``snapshot/``, None without one.
    """

    key: str
    part: str = ""
    offset: str | None = None

    @property
    def is_bucket(self) -> bool:
        """Tell whether this is a bucket, or all of the path surface: no stream's key ends so."""
        return self.key.endswith("/")


@lru_cache(maxsize=8192)
def place_of(path: str) -> Resource:
    """Return what a percent-encoded path names; raise the problem if it can name nothing."""
    if path.startswith(PREFIX):
        return _on_the_path_surface(path[len(PREFIX) :])
    return _on_the_bucket_surface(path[1:])


def _split_part(segments: list[str]) -> tuple[list[str], str, str | None]:
    """Take the part of a stream off the end of its path, however it is spelled."""
    last = unquote_to_bytes(segments[-1]).decode("latin-1")
    if last in ("snapshot", "bootstrap"):
        return segments[:-1], last, None
    if len(segments) > 1 and unquote_to_bytes(segments[-2]) == b"snapshot":
        return segments[:-2], "snapshot", last
    return segments, "", None


def _on_the_path_surface(rest: str) -> Resource:
    if not rest:
        return Resource("/", LISTING)
    segments, part, offset = _split_part(rest.split("/"))
    name = stream_name("/".join(segments))
    if name.partition("/")[0] == RESERVED_ROOT:
        raise ProblemError(problems.NOT_FOUND, f"Names under {RESERVED_ROOT} are the server's own.")
    return Resource("/" + name, part, offset)


def _on_the_bucket_surface(rest: str) -> Resource:
    bucket, slash, below = rest.partition("/")
    if not bucket:
        raise ProblemError(problems.NOT_FOUND, f"Nothing is here; streams are under {PREFIX}.")
    check_bucket(bucket)
    if not slash:
        return Resource(f"{bucket}/")
    if below == LISTING:
        return Resource(f"{bucket}/", LISTING)
    first, more, after = below.partition("/")
    part, offset = "", None
    if more:
        left, part, offset = _split_part(["", *after.split("/")])
        if left != [""]:
            detail = "A stream's id has no slash; only snapshot and bootstrap may follow it."
            raise ProblemError(problems.BAD_REQUEST, detail)
    return Resource(f"{bucket}/{_stream_id(bucket, first)}", part, offset)


def check_bucket(bucket: str) -> None:
    """Raise unless this can be the id of a bucket."""
    if not _BUCKET.fullmatch(bucket):
        detail = f"A bucket's id is 4 to 64 of a-z, 0-9, _ and -, not {quoted(bucket)}."
        raise ProblemError(problems.BAD_REQUEST, detail)
    if bucket in RESERVED_BUCKETS:
        raise ProblemError(problems.BAD_REQUEST, f"{bucket} is reserved; choose another id.")


def _stream_id(bucket: str, segment: str) -> str:
    raw = unquote_to_bytes(segment)
    try:
        name = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise ProblemError(problems.BAD_REQUEST, "The stream's id is not UTF-8.") from None
    if not raw or len(bucket) + 1 + len(raw) > ID_BYTES_MAX:
        detail = f"bucket/stream has at most {ID_BYTES_MAX} bytes and a stream's id at least one."
        raise ProblemError(problems.BAD_REQUEST, detail)
    if "/" in name or "\0" in name or ".." in name:
        detail = "A stream's id has no slash, no NUL and no two dots in a row."
        raise ProblemError(problems.BAD_REQUEST, detail)
    if name == LISTING:
        detail = f"{LISTING} is the listing of the bucket, not a stream; choose another id."
        raise ProblemError(problems.BAD_REQUEST, detail)
    return name

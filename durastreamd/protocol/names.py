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
from durastreamd.protocol.requests import ProblemError, check_escapes, stream_name

PREFIX = "/v1/stream/"
RESERVED_ROOT = "__ds"
ELSEWHERE = f"Streams outside of buckets are under {PREFIX}."
RESERVED_BUCKETS = ("errors", "health")
PARTS = ("snapshot", "bootstrap")
# What browsers and crawlers ask every server for by themselves.
_CUSTOMARY = ("favicon.ico", "robots.txt", ".well-known")
LISTING = "streams"
ID_BYTES_MAX = 122

_BUCKET = re.compile(r"[a-z0-9_-]{4,64}")
_VERSION = re.compile(r"v[0-9]")
_UNRESERVED = re.compile(r"%(2[DdEe]|3[0-9]|4[1-9A-Fa-f]|5[0-9AaFf]|6[1-9A-Fa-f]|7[0-9AaEe])")


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


def reserved_place(path: str) -> tuple[str, list[str]] | None:
    """Return the root and the segments of a path under its reserved name; None for all others.

    A root is a bucket, or "" for the path surface. The segments are as they came.
    """
    if RESERVED_ROOT not in path and "%" not in path:
        return None
    if path.startswith(PREFIX):
        root, rest = "", path[len(PREFIX) :].split("/")
    else:
        root, *rest = path[1:].split("/")
    if not rest or unquote_to_bytes(rest[0]) != RESERVED_ROOT.encode():
        return None
    if root:
        check_bucket(root)
    return root, rest[1:]


@lru_cache(maxsize=8192)
def place_of(path: str) -> Resource:
    """Return what a percent-encoded path names; raise the problem if it can name nothing."""
    if not path.startswith(PREFIX):
        return _on_the_bucket_surface(path[1:])
    if "%" in path:
        check_escapes(path)
    return _on_the_path_surface(path[len(PREFIX) :])


def _split_part(segments: list[str]) -> tuple[list[str], str, str | None]:
    """Take the part of a stream off the end of its path, however it is spelled."""
    last = unquote_to_bytes(segments[-1]).decode("latin-1")
    if last in PARTS:
        return segments[:-1], last, None
    if len(segments) > 1 and unquote_to_bytes(segments[-2]) == b"snapshot":
        return segments[:-2], "snapshot", last
    return segments, "", None


def _on_the_path_surface(rest: str) -> Resource:
    if not rest:
        return Resource("/", LISTING)
    segments, part, offset = _split_part(rest.split("/"))
    if not segments:
        detail = (
            f"{part} is a part of a stream, as in {PREFIX}name/{part}, so no stream is called so; "
            "choose another name."
        )
        raise ProblemError(problems.BAD_REQUEST, detail)
    name = stream_name("/".join(segments))
    if name.partition("/")[0] == RESERVED_ROOT:
        raise ProblemError(problems.NOT_FOUND, f"Names under {RESERVED_ROOT} are the server's own.")
    return Resource("/" + name, part, offset)


def _on_the_bucket_surface(rest: str) -> Resource:
    if "%" in rest:
        check_escapes(rest)
        rest = _UNRESERVED.sub(lambda match: chr(int(match[1], 16)), rest)
        if f"/{rest}".startswith(PREFIX):
            return _on_the_path_surface(rest[len(PREFIX) - 1 :])
    bucket, slash, below = rest.partition("/")
    if not bucket:
        raise ProblemError(problems.NOT_FOUND, f"Nothing is here; streams are under {PREFIX}.")
    if bucket in _CUSTOMARY:
        raise ProblemError(problems.NOT_FOUND, f"There are no pages here. {ELSEWHERE}")
    if _VERSION.fullmatch(bucket):
        raise _mistyped(below)
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


def _mistyped(below: str) -> ProblemError:
    """Return the problem of a path that begins like that of a stream, and what was meant by it."""
    name = below.partition("/")[2]
    detail = f"Nothing is here; a stream is at {PREFIX}name, and {PREFIX} lists them."
    if name:
        detail = f"Nothing is here; did you mean {quoted(PREFIX + name)}? {ELSEWHERE}"
    return ProblemError(problems.NOT_FOUND, detail)


def check_bucket(bucket: str) -> None:
    """Raise unless this can be the id of a bucket."""
    if not _BUCKET.fullmatch(bucket):
        detail = f"A bucket's id is 4 to 64 of a-z, 0-9, _ and -, not {quoted(bucket)}."
        raise ProblemError(problems.BAD_REQUEST, detail)
    if bucket in RESERVED_BUCKETS:
        detail = f"/{bucket} is the server's own, so no bucket is called so; choose another id."
        raise ProblemError(problems.BAD_REQUEST, detail)


def _stream_id(bucket: str, segment: str) -> str:
    raw = unquote_to_bytes(segment)
    try:
        name = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise ProblemError(problems.BAD_REQUEST, "The stream's id is not UTF-8.") from None
    if not raw or len(bucket) + 1 + len(raw) > ID_BYTES_MAX:
        detail = f"bucket/stream has at most {ID_BYTES_MAX} bytes and a stream's id at least one."
        raise ProblemError(problems.BAD_REQUEST, detail)
    if "/" in name or "\0" in name or ".." in name or name == ".":
        detail = (
            "A stream's id has no slash, no NUL and no two dots in a row, and is not a dot: "
            "clients take such a segment out of a path before they send it."
        )
        raise ProblemError(problems.BAD_REQUEST, detail)
    if name == RESERVED_ROOT:
        raise ProblemError(problems.NOT_FOUND, f"Names under {RESERVED_ROOT} are the server's own.")
    if name == LISTING:
        detail = f"{LISTING} is the listing of the bucket, not a stream; choose another id."
        raise ProblemError(problems.BAD_REQUEST, detail)
    return name

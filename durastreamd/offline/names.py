"""Which stream a user means: one rule for every command that names one.

A name is, in this order: a key as ``dsadmin ls`` shows it (``/path`` or ``bucket/stream``), a path
without its slash, a URL or its path, an id of sixteen digits as the directories under streams/ have
it.
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import urlsplit

from durastreamd.kit.command import CommandError
from durastreamd.kit.status import NO_INPUT
from durastreamd.model.namespace import Namespace
from durastreamd.model.stream_state import Stream
from durastreamd.protocol.names import place_of
from durastreamd.protocol.requests import ProblemError

_ID = re.compile(r"[0-9a-f]{16}")


def find_stream(namespace: Namespace, name: str) -> Stream:
    """Return the stream a user means; the error names the nearest one there is."""
    return stream_named(namespace.by_key, namespace.by_id, name)


def stream_named(by_key: Mapping[str, Stream], by_id: Mapping[int, Stream], name: str) -> Stream:
    """Return the stream a user means among those given by key and by id."""
    for key in keys_of(name):
        stream = by_key.get(key)
        if stream is not None:
            return stream
    number = id_of(name)
    if number in by_id:
        return by_id[number]
    raise CommandError(NO_INPUT, f"there is no stream {name}{nearest(by_key, name)}")


def id_of(name: str) -> int:
    """Return the id that sixteen hexadecimal digits are, 0 for any other name."""
    return int(name, 16) if _ID.fullmatch(name) else 0


def keys_of(name: str) -> Iterator[str]:
    """Yield the keys a name may stand for, the likeliest first."""
    yield name
    yield f"/{name}"
    path = urlsplit(name).path if name.startswith(("http://", "https://")) else name
    if path.startswith("/"):
        try:
            yield place_of(path).key
        except ProblemError:
            return


def nearest(keys: Iterable[str], name: str) -> str:
    """Return the end of a sentence about a name that is unknown: which one may be meant."""
    bare = {key.lstrip("/"): key for key in keys}
    if not bare:
        return "; the data directory holds no streams"
    near = difflib.get_close_matches(name.lstrip("/"), bare, 1)
    return f"; did you mean {bare[near[0]]}?" if near else "; `dsadmin ls` lists those there are"

"""Which stream a user means, or wants to make: one rule for every command that names one.

A name is, in this order: a key as ``dsadmin ls`` shows it (``/path`` or ``bucket/stream``), a path
without its slash, a URL or its path, an id of sixteen digits as the directories under streams/ have
it.
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import quote, urlsplit

from durastreamd.errors import StreamNameError, UnknownStreamError
from durastreamd.model.namespace import Namespace
from durastreamd.model.stream_state import Stream
from durastreamd.protocol.names import PREFIX, place_of
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
    reason = f"there is no stream {name}{nearest(by_key, name)}"
    raise UnknownStreamError(reason)


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


def new_key(name: str) -> str:
    """Return the key for ``/path``, ``bucket/stream`` or a plain word, or say why it is no name.

    The server's own rules decide, so whatever is made here can be asked for there.
    """
    if name.startswith("/") or "/" not in name:
        path = PREFIX + quote(name.removeprefix("/"), safe="/")
    else:
        bucket, _, stream = name.partition("/")
        path = f"/{bucket}/{quote(stream, safe='')}"
    try:
        place = place_of(path)
    except ProblemError as exc:
        reason = f"{name} cannot be a stream's name: {exc}"
        raise StreamNameError(reason) from exc
    if place.part or place.is_bucket:
        reason = f"{name} cannot be a stream's name: its last part is the server's own"
        raise StreamNameError(reason)
    return place.key

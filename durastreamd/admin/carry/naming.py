"""Names a user gives to streams that are not there yet."""

from urllib.parse import quote

from durastreamd.kit.command import CommandError
from durastreamd.kit.status import USAGE
from durastreamd.protocol.names import PREFIX, place_of
from durastreamd.protocol.requests import ProblemError


def key_of(name: str) -> str:
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
        raise CommandError(USAGE, f"{name} cannot be a stream's name: {exc}") from exc
    if place.part or place.is_bucket:
        text = f"{name} cannot be a stream's name: its last part is the server's own"
        raise CommandError(USAGE, text)
    return place.key

"""The file of tokens: one line each, its SHA-256 and what it allows. The token itself is nowhere.

    # printf %s "$TOKEN" | sha256sum
    sha256:9f86... scopes=read,write prefix=/v1/stream/team-a name=ci expires=2027-01-01T00:00:00Z

A plain hash is enough for a token that was drawn at random (``durastreamd --gen-token``): nobody
can guess it. It is not enough for a password.
"""

import hashlib
import math
import re
import secrets
from collections.abc import Sequence
from datetime import datetime

from durastreamd.service.access.grants import Grant, prefixes_of, rate_of, scopes_of

_DIGEST = re.compile(r"sha256:([0-9a-fA-F]{64})")
_NAME = re.compile(r"[A-Za-z0-9._@:+-]{1,64}")
_EXPIRES = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(Z|[+-]\d\d:\d\d)", re.ASCII)
_NAME_DIGITS = 8  # of the digest, for a token that was given no name

_FIELDS = ("scopes", "prefix", "name", "expires", "rate")

# By the first bytes of the digest: they find a line, the whole digest proves it.
Table = dict[bytes, tuple[bytes, Grant]]
FINDING_BYTES = 8

_TOKEN_BYTES = 32  # drawn at random: as hard to guess as the hash is to reverse
_TOKEN_PREFIX = "dst_"  # so that scanners of repositories and logs can know one


def made_token(name: str, fields: Sequence[str]) -> tuple[str, str]:
    """Return a new token and its line of the file; raises ValueError where a field does not fit."""
    if not any(field.startswith("scopes=") for field in fields):
        fields = ["scopes=read,write", *fields]
    token = _TOKEN_PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)
    words = [f"sha256:{hashlib.sha256(token.encode()).hexdigest()}", *fields, f"name={name}"]
    if any(len(word.split()) != 1 for word in words):
        message = "a field has no spaces"
        raise ValueError(message)
    _grant(words)
    return token, " ".join(words)


def read_table(text: str, path: str) -> Table:
    """Return the grants of a file; raises ValueError that names the line."""
    found: Table = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            digest, grant = _grant(words)
            if digest[:FINDING_BYTES] in found:
                message = "the same token stands in an earlier line"
                raise ValueError(message)
        except ValueError as exc:
            message = f"{path}:{number}: {exc}"
            raise ValueError(message) from exc
        found[digest[:FINDING_BYTES]] = (digest, grant)
    return found


def _grant(words: list[str]) -> tuple[bytes, Grant]:
    match = _DIGEST.fullmatch(words[0])
    if match is None:
        # What stands there may be the token itself: it is not repeated.
        message = "a line begins with sha256: and 64 hexadecimal digits"
        raise ValueError(message)
    said: dict[str, list[str]] = {}
    for word in words[1:]:
        name, equals, value = word.partition("=")
        if name not in _FIELDS or not equals or not value:
            message = f"{name!r} is not one of {', '.join(f'{field}=' for field in _FIELDS)}"
            raise ValueError(message)
        if name in said and name != "prefix":
            message = f"{name}= is given twice"
            raise ValueError(message)
        said.setdefault(name, []).append(value)
    if "scopes" not in said:
        message = "scopes= is missing: read, write, admin or several of them with commas"
        raise ValueError(message)
    digest = bytes.fromhex(match[1])
    return digest, Grant(
        _name(said["name"][0]) if "name" in said else digest.hex()[:_NAME_DIGITS],
        scopes_of(said["scopes"][0].split(",")),
        prefixes_of(said["prefix"]) if "prefix" in said else None,
        _moment(said["expires"][0]) if "expires" in said else math.inf,
        rate_of(said["rate"][0]) if "rate" in said else None,
    )


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        message = "a name is up to 64 letters, digits and ._@:+-"
        raise ValueError(message)
    return text


def _moment(text: str) -> float:
    if not _EXPIRES.fullmatch(text):
        message = f"expires={text} is no time such as 2027-01-01T00:00:00Z"
        raise ValueError(message)
    return datetime.fromisoformat(text).timestamp()

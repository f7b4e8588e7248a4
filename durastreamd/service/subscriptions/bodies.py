"""What requests about subscriptions say, and what answers say of them."""

import re
from datetime import UTC, datetime
from typing import Any, NamedTuple, NoReturn
from urllib.parse import quote

from durastreamd.errors import PatternError
from durastreamd.model.globs import Pattern
from durastreamd.model.subscription import Ack, Subscription, kind_of
from durastreamd.model.subscription_records import PULL_WAKE, WEBHOOK, SubscriptionConfig
from durastreamd.protocol import problems
from durastreamd.protocol.names import PREFIX, RESERVED_ROOT
from durastreamd.protocol.offsets import mint, parse
from durastreamd.protocol.problems import quoted
from durastreamd.protocol.requests import NAME_BYTES_MAX, ProblemError

STREAMS_MAX = 10_000  # named in one request
DESCRIPTION_BYTES_MAX = 4096
WORKER_CHARACTERS_MAX = 256
LEASE_MS_MIN, LEASE_MS_MAX, LEASE_MS = 1000, 600_000, 30_000
SHOWN_MAX = 100  # streams without work in an answer about work: enough to see what is linked
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

Object = dict[str, Any]  # type: ignore[explicit-any]  # JSON is untyped


def refuse(detail: str) -> NoReturn:
    """Refuse a request that says something it may not."""
    raise ProblemError(problems.INVALID_REQUEST, detail)


# --- reading ---


def path_of(value: object, what: str) -> str:
    """Return the path of a stream; slashes around it do not count."""
    if not isinstance(value, str):
        refuse(f"{what} is a string.")
    path = value.strip("/")
    segments = path.split("/")
    if (
        not path
        or len(path.encode()) > NAME_BYTES_MAX
        or any(s in ("", ".", "..") for s in segments)
    ):
        detail = f"{what} names no stream: {quoted(value)}. It has 1 to {NAME_BYTES_MAX} bytes and "
        refuse(f"{detail}no empty or dot segment.")
    if _CONTROL.search(path) or segments[0] == RESERVED_ROOT:
        refuse(f"{what} may not be {quoted(value)}.")
    return path


def paths_of(value: object, *, least: int = 1) -> tuple[str, ...]:
    """Return the paths of an array, in order, each once."""
    if not isinstance(value, list) or not least <= len(value) <= STREAMS_MAX:
        refuse(f"streams is an array of {least} to {STREAMS_MAX} strings.")
    return tuple(sorted({path_of(one, "Each of streams") for one in value}))


def config_of(body: Object) -> SubscriptionConfig:
    """Return the configuration that a PUT asks for."""
    kind = body.get("type")
    if kind not in (WEBHOOK, PULL_WAKE):
        refuse(f"type is {WEBHOOK} or {PULL_WAKE}.")
    pattern = body.get("pattern")
    text = "" if pattern is None else _pattern(pattern)
    streams = () if body.get("streams") is None else paths_of(body["streams"], least=0)
    if not text and not streams:
        refuse("A subscription needs a pattern or streams.")
    url = wake_stream = ""
    if kind == WEBHOOK:
        hook = body.get("webhook")
        url = hook.get("url", "") if isinstance(hook, dict) else ""
        if not isinstance(url, str) or not url:
            refuse("A webhook subscription needs webhook.url.")
    else:
        wake_stream = path_of(body.get("wake_stream"), "wake_stream")
        if wake_stream in streams:
            refuse("A subscription cannot link its own wake_stream.")
    lease_ms = body.get("lease_ttl_ms", LEASE_MS)
    if type(lease_ms) is not int or not LEASE_MS_MIN <= lease_ms <= LEASE_MS_MAX:
        refuse(f"lease_ttl_ms is an integer from {LEASE_MS_MIN} to {LEASE_MS_MAX}.")
    description = body.get("description") or ""
    if not isinstance(description, str) or len(description.encode()) > DESCRIPTION_BYTES_MAX:
        refuse(f"description is a string of at most {DESCRIPTION_BYTES_MAX} bytes.")
    return SubscriptionConfig(kind, text, streams, url, wake_stream, lease_ms, description)


def _pattern(value: object) -> str:
    text = path_of(value, "pattern")
    try:
        Pattern(text)
    except PatternError as exc:
        sentence = str(exc)
        refuse(sentence[0].upper() + sentence[1:] + ".")
    return text


class Holding(NamedTuple):
    """What a holder says."""

    generation: int
    wake_id: str
    acks: list[Ack]
    done: bool


def holding_of(body: Object, *, acks: bool) -> Holding:
    """Return what callback, ack and release say."""
    generation, wake_id = body.get("generation"), body.get("wake_id")
    if not isinstance(wake_id, str) or type(generation) is not int:
        refuse("wake_id is a string and generation an integer.")
    found = []
    given = body.get("acks")
    if acks and given is not None:
        if not isinstance(given, list) or len(given) > STREAMS_MAX:
            refuse(f"acks is an array of at most {STREAMS_MAX} objects.")
        found = [_ack(one) for one in given]
    return Holding(generation, wake_id, found, body.get("done") is True)


def _ack(one: object) -> Ack:
    if not isinstance(one, dict):
        refuse("Each of acks is an object with stream and offset.")
    offset = one.get("offset")
    if not isinstance(offset, str):
        refuse("Each of acks has an offset, which is a string.")
    path = path_of(one.get("stream", one.get("path")), "Each of acks has a stream, which")
    position = parse(offset)
    if position is None:
        detail = f"{quoted(offset)} is no offset of this server."
        raise ProblemError(problems.INVALID_ACK, detail)
    return Ack(path, position)


# --- writing ---


def root_url(subscription: Subscription) -> str:
    """Return where a subscription's root is, as receivers reach it."""
    root = f"/{subscription.root}/" if subscription.root else PREFIX
    return f"{subscription.base}{root}{RESERVED_ROOT}"


def callback_url(subscription: Subscription) -> str:
    """Return where a receiver calls back."""
    return f"{root_url(subscription)}/subscriptions/{quote(subscription.id, safe='')}/callback"


def moment(time_ms: int) -> str:
    """Return a time as RFC 3339 has it."""
    found = datetime.fromtimestamp(time_ms / 1000, UTC)
    return found.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def shown_streams(subscription: Subscription) -> list[Object]:
    """Return what a holder is shown: the work of its wake, then some of what else is linked."""
    shown = [
        {
            "path": path,
            "link_type": kind_of(marks),
            "acked_offset": mint(cursor),
            "tail_offset": mint(tail),
            "has_pending": True,
        }
        for path, marks, cursor, tail, _ in subscription.head.snapshot
    ]
    there = {path for path, *_ in subscription.head.snapshot}
    for link in subscription.links.values():
        if len(shown) >= SHOWN_MAX:
            break
        if link.path not in there and link.path not in subscription.pending:
            at = mint(link.cursor)
            shown.append(
                {
                    "path": link.path,
                    "link_type": link.kind,
                    "acked_offset": at,
                    "tail_offset": at,
                    "has_pending": False,
                }
            )
    return shown


def described(subscription: Subscription, kid: str) -> Object:
    """Return what GET says of a subscription; what it does not have is left out."""
    config = subscription.config
    body: Object = {
        "id": subscription.id,
        "subscription_id": subscription.id,
        "type": config.type,
        "pattern": config.pattern or None,
        "streams": [
            {"path": link.path, "link_type": link.kind, "acked_offset": mint(link.cursor)}
            for link in subscription.links.values()
        ],
        "lease_ttl_ms": config.lease_ttl_ms,
        "created_at": moment(subscription.created_ms),
        "description": config.description or None,
        **standing(subscription),
    }
    if subscription.webhook:
        jwks = f"{root_url(subscription)}/jwks.json"
        signing = {"alg": "ed25519", "kid": kid, "jwks_url": jwks}
        body["webhook"] = {"url": config.url, "signing": signing}
    else:
        body["wake_stream"] = config.wake_stream
    return {name: value for name, value in body.items() if value is not None}


def standing(subscription: Subscription) -> Object:
    """Return how a subscription is doing; what it does not have is None."""
    head = subscription.head
    return {
        "status": "failed" if head.failures else "active",
        "state": subscription.state.name.lower(),
        "generation": head.generation,
        "holder": head.holder or None,
        "lease_until": moment(head.lease_ms) if head.lease_ms else None,
        "retry_count": head.failures,
        "next_attempt_at": moment(head.due_ms) if head.failures else None,
        "last_error": head.error or None,
    }

"""Whether a webhook's request comes from the server it says: its signature, and its age.

    wake = verified(body, headers["Webhook-Signature"], jwks)

``jwks`` is what ``GET {root}/__ds/jwks.json`` answered; ask again when a key is not in it. This
module alone needs ``cryptography``: Python has no Ed25519.
"""

import base64
import binascii
import json
import re
import time
from collections.abc import Mapping

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from durastreamd.client.errors import ClientError

AGE_S_MAX = 300  # of a signature, either way: the protocol's bound against repeats

_SIGNED = re.compile(r"t=([0-9]{1,15}),kid=([^,]{1,200}),ed25519=([A-Za-z0-9_-]{1,200})")


class SignatureError(ClientError):
    """A request is not one that the server sent, or not one it sent just now."""


def verified(
    body: bytes, signature: str, jwks: Mapping[str, object], now_s: float | None = None
) -> dict[str, object]:
    """Return what a webhook was sent, or raise SignatureError; ``body`` is as it came."""
    found = _SIGNED.fullmatch(signature)
    if found is None:
        message = "the header Webhook-Signature is missing or malformed"
        raise SignatureError(message)
    signed_s, kid, text = found.groups()
    now = time.time() if now_s is None else now_s
    if abs(now - int(signed_s)) > AGE_S_MAX:
        message = f"the signature is of {signed_s}, more than {AGE_S_MAX} s from now"
        raise SignatureError(message)
    try:
        key = Ed25519PublicKey.from_public_bytes(_decoded(_key(jwks, kid)))
        key.verify(_decoded(text), signed_s.encode() + b"." + body)
        wake = json.loads(body)
    except (InvalidSignature, ValueError, RecursionError, binascii.Error) as exc:
        message = "the signature does not fit the body"
        raise SignatureError(message) from exc
    if not isinstance(wake, dict):
        message = "the body is not a JSON object"
        raise SignatureError(message)
    return wake


def _key(jwks: Mapping[str, object], kid: str) -> str:
    keys = jwks.get("keys")
    for key in keys if isinstance(keys, list) else []:
        match key:
            case {"kid": str(name), "kty": "OKP", "crv": "Ed25519", "x": str(x)} if name == kid:
                return x
            case _:
                continue
    message = f"the key {kid} is not among the server's; ask for jwks.json again"
    raise SignatureError(message)


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))

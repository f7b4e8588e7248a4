"""A webhook's signature: only what the server sent, just now, as it was sent."""

import base64

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from durastreamd.client.webhook import AGE_S_MAX, SignatureError, verified

KEY = Ed25519PrivateKey.generate()
BODY = b'{"wake_id": "w_1", "generation": 1}'
NOW = 1_800_000_000


def text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


JWK = {
    "kty": "OKP",
    "crv": "Ed25519",
    "kid": "ds_1",
    "x": text(KEY.public_key().public_bytes_raw()),
}
JWKS = {"keys": [{"kty": "RSA"}, "odd", JWK]}


def header(body: bytes = BODY, signed_s: int = NOW, kid: str = "ds_1") -> str:
    return f"t={signed_s},kid={kid},ed25519={text(KEY.sign(b'%d.' % signed_s + body))}"


def test_what_was_signed_is_believed() -> None:
    assert verified(BODY, header(), JWKS, NOW)["wake_id"] == "w_1"
    assert verified(BODY, header(), JWKS, NOW + AGE_S_MAX)


@pytest.mark.parametrize(
    ("body", "signature", "jwks", "now", "reason"),
    [
        (BODY + b" ", header(), JWKS, NOW, "does not fit"),
        (BODY, header(signed_s=NOW + 1).replace(str(NOW + 1), str(NOW)), JWKS, NOW, "does not fit"),
        (BODY, header()[:-3], JWKS, NOW, "does not fit"),
        (BODY, header(), JWKS, NOW + AGE_S_MAX + 1, "from now"),
        (BODY, header(), JWKS, NOW - AGE_S_MAX - 1, "from now"),
        (BODY, header(kid="ds_2"), JWKS, NOW, "jwks.json again"),
        (BODY, header(), {"keys": [{**JWK, "x": "AAAA"}]}, NOW, "does not fit"),
        (BODY, header(), {}, NOW, "jwks.json again"),
        (BODY, "", JWKS, NOW, "missing or malformed"),
        (BODY, f"{header()},more", JWKS, NOW, "missing or malformed"),
        (b"[1]", header(b"[1]"), JWKS, NOW, "not a JSON object"),
        (b"{", header(b"{"), JWKS, NOW, "does not fit"),
    ],
)
def test_anything_else_is_refused(
    body: bytes, signature: str, jwks: dict[str, object], now: int, reason: str
) -> None:
    with pytest.raises(SignatureError, match=reason):
        verified(body, signature, jwks, now)

"""JWTs: what is accepted, and a table of what attackers send."""

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from pathlib import Path

import jwt
import pytest
import trio
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa

from durastreamd.errors import ConfigError
from durastreamd.service.access.grants import TokenError, Verifier
from durastreamd.service.access.options import AccessOptions, read_jwt
from tests.service.guards import bearer
from tests.service.harness import NOW, TEXT, serving

NOW_S = NOW / 1000
RSA = rsa.generate_private_key(65537, 2048)
OTHER_RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
EC_384 = ec.generate_private_key(ec.SECP384R1())
ED = ed25519.Ed25519PrivateKey.generate()
SECRET = b"0123456789abcdef0123456789abcdef"
Private = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
Claims = dict[str, object]
GOOD: Claims = {"sub": "alice", "exp": NOW_S + 100, "aud": "streams", "iss": "https://issuer",
                "scope": "read write other"}  # fmt: skip


def pem(key: Private | dsa.DSAPrivateKey) -> bytes:
    return key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def private_pem(key: Private) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def forged(head: dict[str, object], claims: object, key: bytes | None) -> str:
    """Make a token that a library would refuse to make."""
    body = f"{b64(json.dumps(head).encode())}.{b64(json.dumps(claims).encode())}"
    made = hmac.new(key, body.encode(), hashlib.sha256).digest() if key is not None else b""
    return f"{body}.{b64(made)}"


def signed(
    claims: Claims | None = None, head: dict[str, object] | None = None, **more: object
) -> str:
    return jwt.encode({**(claims if claims is not None else GOOD), **more}, RSA, "RS256", head)


def without(name: str) -> Claims:
    return {key: value for key, value in GOOD.items() if key != name}


def verifier(tmp_path: Path, key: bytes, *algorithms: str, **more: object) -> Verifier:
    file = tmp_path / "key"
    file.write_bytes(key)
    settings: dict[str, object] = {"jwt_audience": "streams", "jwt_issuer": "https://issuer"}
    settings |= {"jwt_key_file": str(file), "jwt_algorithms": algorithms, **more}
    made = read_jwt(AccessOptions(**settings))  # type: ignore[arg-type]
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [(RSA, "RS256"), (RSA, "PS512"), (EC, "ES256"), (EC_384, "ES384"), (ED, "EdDSA")],
)
def test_a_good_token_is_what_its_claims_say(tmp_path: Path, key: Private, algorithm: str) -> None:
    checks = verifier(tmp_path, pem(key), algorithm)
    grant = checks.grant(jwt.encode(GOOD, key, algorithm), NOW_S)
    assert (grant.name, grant.scopes) == ("jwt:alice", frozenset(("read", "write")))
    assert (grant.prefixes, grant.expires_s) == (None, NOW_S + 130)
    claims = {**GOOD, "prefixes": ["/v1/stream/a", "/bucket1"], "scope": ["admin", 7, "x"]}
    grant = checks.grant(jwt.encode(claims, key, algorithm), NOW_S)
    assert (grant.scopes, grant.prefixes) == (frozenset(("admin",)), ("/a", "bucket1"))
    assert checks.grant(jwt.encode({**GOOD, "prefixes": []}, key, algorithm), NOW_S).prefixes == ()


def test_a_secret_verifies_as_well(tmp_path: Path) -> None:
    checks = verifier(tmp_path, SECRET + b"\n", "HS256")
    assert checks.grant(jwt.encode(GOOD, SECRET, "HS256"), NOW_S).name == "jwt:alice"


def _cut(token: str) -> str:
    head, body, _ = token.split(".")
    return f"{head}.{body}."


def _changed(token: str) -> str:
    head, _, signature = token.split(".")
    return f"{head}.{b64(json.dumps({**GOOD, 'scope': 'admin'}).encode())}.{signature}"


ATTACKS: dict[str, Callable[[], str]] = {
    "none": lambda: forged({"alg": "none"}, GOOD, None),
    "None in another case": lambda: forged({"alg": "NoNe", "typ": "JWT"}, GOOD, None),
    "no alg": lambda: forged({"typ": "JWT"}, GOOD, None),
    "alg is a list": lambda: forged({"alg": ["RS256", "none"]}, GOOD, None),
    "public key as secret": lambda: forged({"alg": "HS256"}, GOOD, pem(RSA)),
    "public key as secret, stripped": lambda: forged({"alg": "HS256"}, GOOD, pem(RSA).strip()),
    "empty secret": lambda: forged({"alg": "HS256"}, GOOD, b""),
    "HMAC under the pinned name": lambda: forged({"alg": "RS256"}, GOOD, pem(RSA)),
    "another algorithm of the same key": lambda: jwt.encode(GOOD, RSA, "PS256"),
    "another key": lambda: jwt.encode(GOOD, OTHER_RSA, "RS256"),
    "another kind of key": lambda: jwt.encode(GOOD, EC, "ES256"),
    "own key in the head": lambda: jwt.encode(
        GOOD, OTHER_RSA, "RS256",
        {"jwk": json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(OTHER_RSA.public_key()))},
    ),
    "keys from elsewhere": lambda: jwt.encode(GOOD, OTHER_RSA, "RS256", {"jku": "http://evil/"}),
    "kid is a path": lambda: jwt.encode(GOOD, OTHER_RSA, "RS256", {"kid": "../../dev/null"}),
    "kid is no text": lambda: forged({"alg": "RS256", "kid": {"a": 1}}, GOOD, b"x"),
    "signature cut off": lambda: _cut(signed()),
    "claims changed": lambda: _changed(signed()),
    "critical extension": lambda: signed(head={"crit": ["x"], "x": 1}),
    "unencoded payload": lambda: forged({"alg": "RS256", "b64": False, "crit": ["b64"]}, {}, b"x"),
    "expired": lambda: signed(exp=NOW_S - 31),
    "never expires": lambda: signed(without("exp")),
    "exp is text": lambda: signed(exp="9999999999"),
    "exp is true": lambda: signed(exp=True),
    "exp is no number": lambda: signed(exp=float("nan")),
    "exp is huge": lambda: signed(exp=10**400),
    "not yet": lambda: signed(nbf=NOW_S + 31),
    "nbf is null": lambda: signed(nbf=None),
    "another audience": lambda: signed(aud="others"),
    "no audience": lambda: signed(without("aud")),
    "audience is a part": lambda: signed(aud="stream"),
    "another issuer": lambda: signed(iss="https://issuer.evil"),
    "no issuer": lambda: signed(without("iss")),
    "scope is a number": lambda: signed(scope=7),
    "prefixes is a number": lambda: signed(prefixes=7),
    "prefixes hold a number": lambda: signed(prefixes=["/v1/stream/a", 7]),
    "prefixes hold what is none": lambda: signed(prefixes=["/v1/stream/../a"]),
    "claims are a list": lambda: jwt.PyJWS().encode(b"[1]", RSA, "RS256"),
    "claims are no JSON": lambda: jwt.PyJWS().encode(b"\xff", RSA, "RS256"),
    "claims are deep": lambda: jwt.PyJWS().encode(b"[" * 3000, RSA, "RS256"),
    "huge": lambda: signed(more="x" * 9000),
    "empty": lambda: "..",
    "no base64": lambda: "a.!!.c",
    "encrypted": lambda: "a.b.c.d.e",
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_attackers_send_is_refused(tmp_path: Path, attack: str) -> None:
    checks = verifier(tmp_path, pem(RSA), "RS256")
    token = ATTACKS[attack]()
    with pytest.raises(TokenError) as caught:
        checks.grant(token, NOW_S)
    assert len(str(caught.value)) < 200
    assert "alice" not in str(caught.value)


def test_clocks_may_differ_a_little(tmp_path: Path) -> None:
    checks = verifier(tmp_path, pem(RSA), "RS256")
    checks.grant(signed(exp=NOW_S - 29), NOW_S)
    checks.grant(signed(nbf=NOW_S + 29), NOW_S)


def test_an_audience_that_nobody_asked_for_is_refused(tmp_path: Path) -> None:
    checks = verifier(tmp_path, pem(RSA), "RS256", jwt_audience="")
    with pytest.raises(TokenError):
        checks.grant(signed(), NOW_S)
    checks.grant(signed(without("aud")), NOW_S)


def test_an_operator_may_ask_for_more_claims(tmp_path: Path) -> None:
    checks = verifier(tmp_path, pem(RSA), "RS256", jwt_required=("exp", "jti"))
    with pytest.raises(TokenError):
        checks.grant(signed(), NOW_S)
    checks.grant(signed(jti="1"), NOW_S)


# --- sets of keys ---


def jwk(key: Private, **more: object) -> dict[str, object]:
    algorithm: object
    if isinstance(key, rsa.RSAPrivateKey):
        algorithm = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key())
    elif isinstance(key, ec.EllipticCurvePrivateKey):
        algorithm = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key())
    else:
        algorithm = jwt.algorithms.OKPAlgorithm.to_jwk(key.public_key())
    found: dict[str, object] = json.loads(str(algorithm))
    return {**found, **more}


def from_set(tmp_path: Path, keys: list[object], *algorithms: str) -> Verifier:
    file = tmp_path / "jwks"
    file.write_text(json.dumps({"keys": keys}))
    options = AccessOptions(
        jwt_jwks_file=str(file), jwt_algorithms=algorithms, jwt_audience="streams"
    )
    made = read_jwt(options)
    assert made is not None
    return made


def test_a_set_has_a_key_for_each_kid_with_the_algorithms_of_its_kind(tmp_path: Path) -> None:
    keys: list[object] = [
        jwk(RSA, kid="r"),
        jwk(EC, kid="e", alg="ES256", use="sig"),
        jwk(ED, kid="d"),
        jwk(OTHER_RSA, kid="enc", use="enc"),
        jwk(EC_384, kid="unwanted"),
        {"kty": "oct", "k": b64(SECRET), "kid": "s"},
    ]
    checks = from_set(tmp_path, keys, "RS256", "ES256", "EdDSA")
    for key, algorithm, kid in ((RSA, "RS256", "r"), (EC, "ES256", "e"), (ED, "EdDSA", "d")):
        checks.grant(jwt.encode(GOOD, key, algorithm, {"kid": kid}), NOW_S)
    for token in [
        jwt.encode(GOOD, RSA, "RS256"),  # which of them?
        jwt.encode(GOOD, RSA, "RS256", {"kid": "e"}),
        jwt.encode(GOOD, EC, "ES256", {"kid": "r"}),
        jwt.encode(GOOD, RSA, "RS256", {"kid": "unknown"}),
        jwt.encode(GOOD, OTHER_RSA, "RS256", {"kid": "enc"}),
        jwt.encode(GOOD, EC_384, "ES384", {"kid": "unwanted"}),
        jwt.encode(GOOD, SECRET, "HS256", {"kid": "s"}),
        forged({"alg": "HS256", "kid": "r"}, GOOD, pem(RSA)),
    ]:
        with pytest.raises(TokenError):
            checks.grant(token, NOW_S)


def test_a_set_of_one_needs_no_kid_but_knows_its_own(tmp_path: Path) -> None:
    checks = from_set(tmp_path, [jwk(RSA, kid="r")], "RS256")
    checks.grant(jwt.encode(GOOD, RSA, "RS256"), NOW_S)
    with pytest.raises(TokenError):
        checks.grant(jwt.encode(GOOD, RSA, "RS256", {"kid": "other"}), NOW_S)


def test_a_set_of_secrets(tmp_path: Path) -> None:
    keys: list[object] = [{"kty": "oct", "k": b64(SECRET), "kid": "s", "alg": "HS256"}]
    checks = from_set(tmp_path, keys, "HS256")
    checks.grant(jwt.encode(GOOD, SECRET, "HS256", {"kid": "s"}), NOW_S)
    with pytest.raises(TokenError):
        checks.grant(jwt.encode(GOOD, SECRET + b"x", "HS256", {"kid": "s"}), NOW_S)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ([], "no key of the set fits RS256"),
        ([{"kty": "RSA"}], "no JWKS"),
        ([7], "no JWKS"),
        ([jwk(EC, kid="e")], "no key of the set fits RS256"),
        ([jwk(RSA, kid="r"), jwk(OTHER_RSA, kid="r")], "two keys have the kid 'r'"),
        ([json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(RSA))], "only public keys"),
    ],
)
def test_a_set_that_does_not_fit_is_named(tmp_path: Path, keys: list[object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        from_set(tmp_path, keys, "RS256")


# --- settings ---


SMALL_RSA = rsa.generate_private_key(65537, 1024)


@pytest.mark.parametrize(
    ("key", "algorithms", "says"),
    [
        (pem(RSA), (), "jwt_algorithms is empty"),
        (pem(RSA), ("none",), "'none' is no algorithm"),
        (pem(RSA), ("RS256", "HS256"), "do not go together"),
        (pem(RSA), ("HS256",), "not a secret for HMAC"),
        (pem(RSA), ("RS256", "ES256"), "the key fits RS256, not RS256, ES256"),
        (pem(EC), ("ES384",), "the key fits no algorithm, not ES384"),
        (pem(SMALL_RSA), ("RS256",), "1024 bits"),
        (private_pem(RSA), ("RS256",), "not a public key in PEM"),
        (pem(dsa.generate_private_key(1024)), ("RS256",), "signs no tokens"),
        (b"-----BEGIN PUBLIC KEY-----\nx\n-----END PUBLIC KEY-----\n", ("RS256",), "not a public"),
        (b"short", ("HS256",), "5 bytes; HS256 needs 32"),
        (SECRET, ("HS512",), "needs 64"),
    ],
    ids=lambda value: (
        "key" if isinstance(value, bytes) else str(value)
    ),  # not the bytes of a key: they differ from process to process
)
def test_a_key_that_does_not_fit_is_named(
    tmp_path: Path, key: bytes, algorithms: tuple[str, ...], says: str
) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        verifier(tmp_path, key, *algorithms)
    assert "access.jwt_key_file" in str(caught.value)
    assert "short" not in str(caught.value)


def test_settings_that_contradict_each_other_are_named() -> None:
    with pytest.raises(ValueError, match="exclude each other"):
        AccessOptions(jwt_key_file="a", jwt_jwks_file="b")
    with pytest.raises(ValueError, match="from 0 to"):
        AccessOptions(jwt_leeway_s=-1)
    with pytest.raises(ConfigError, match="needs access"):
        read_jwt(AccessOptions(jwt_algorithms=("RS256",)))


# --- over the wire ---


async def test_a_jwt_opens_the_gate_until_it_ends(tmp_path: Path, autojump_clock: object) -> None:
    key = tmp_path / "key"
    key.write_bytes(pem(EC))
    options = AccessOptions(jwt_key_file=str(key), jwt_algorithms=("ES256",), jwt_leeway_s=0)
    claims = {"exp": NOW_S + 50, "scope": "read write", "prefixes": "/v1/stream/a"}
    head = bearer(jwt.encode(claims, EC, "ES256"))
    async with serving() as site:
        site.app.restrict(options)
        assert (await site.ask("PUT", "a/s", {**head, **TEXT})).status == 201
        assert (await site.ask("PUT", "b/s", {**head, **TEXT})).status == 403
        live = await site.open("a/s?offset=now&live=sse", head)
        assert (await live.head()).status == 200
        begun = trio.current_time()
        await live.whole()
        assert trio.current_time() - begun < 51
        reply = await site.ask("GET", "a/s?offset=-1", head)
        assert (reply.status, reply.json["detail"]) == (401, "The token has expired.")
        # A new key: what was signed by the old one ends with the reload.
        head = bearer(jwt.encode({**claims, "exp": NOW_S + 9999}, EC, "ES256"))
        live = await site.open("a/s?offset=now&live=long-poll", head)
        await trio.sleep(1)
        other = ec.generate_private_key(ec.SECP256R1())
        key.write_bytes(pem(other))
        site.app.restrict(options)
        assert (await live.whole()).status == 401
        assert (await site.ask("GET", "a/s?offset=-1", head)).status == 401
        head = bearer(jwt.encode({**claims, "exp": NOW_S + 9999}, other, "ES256"))
        assert (await site.ask("GET", "a/s?offset=-1", head)).status == 200

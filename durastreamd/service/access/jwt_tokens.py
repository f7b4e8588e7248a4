"""JWTs made elsewhere: checked against keys and algorithms that the configuration pins.

What a token says about itself is never trusted before its signature holds: ``alg`` only picks
among the algorithms pinned to the key, ``kid`` only looks a key up, and ``jku``, ``x5u`` and
``jwk`` are not looked at. A key has the algorithms of its own kind, so a public key can never be
taken for an HMAC secret, and ``none`` is an algorithm of no kind of key.

PyJWT checks signature, audience, issuer and the presence of claims. The times are checked here, by
the clock that ends live readers as well.
"""

import binascii
import json
import math
from dataclasses import dataclass

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from durastreamd.service.access.grants import (
    EXPIRED,
    INVALID,
    NO_SUBJECT,
    SCOPES,
    Grant,
    TokenError,
    prefixes_of,
)

JWT_BYTES_MAX = 8192  # a head has 16 KiB; what is longer is no token of ours
NAME_CHARACTERS_MAX = 64
RSA_BITS_MIN = 2048
_SECRET_BYTES_MIN = {"HS256": 32, "HS384": 48, "HS512": 64}  # RFC 7518, 3.2
_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
ALGORITHMS = (*_SECRET_BYTES_MIN, *_RSA, *_CURVES.values(), "EdDSA")

PublicKey = (
    rsa.RSAPublicKey | ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey | ed448.Ed448PublicKey
)


@dataclass(frozen=True)
class JwtRules:
    """What a token must be like."""

    algorithms: tuple[str, ...]
    audience: str
    issuer: str
    required: tuple[str, ...]
    scope_claim: str
    prefix_claim: str
    leeway_s: float


@dataclass(frozen=True)
class _Key:
    key: PublicKey | bytes
    algorithms: tuple[str, ...]


class JwtVerifier:
    """Turns a JWT into a grant, or refuses it."""

    def __init__(self, rules: JwtRules, keys: dict[str | None, _Key]) -> None:
        self._rules = rules
        self._keys = keys

    @classmethod
    def from_key(cls, rules: JwtRules, data: bytes) -> "JwtVerifier":
        """Take a PEM public key or an HMAC secret; raises ValueError if it does not fit."""
        _check_algorithms(rules.algorithms)
        if set(rules.algorithms) <= set(_SECRET_BYTES_MIN):
            key = _secret(data.rstrip(b"\r\n"), rules.algorithms)
        else:
            key = _pinned(_public_key(data), rules.algorithms)
            if len(key.algorithms) != len(rules.algorithms):
                message = f"the key fits {_words(key.algorithms)}, not {_words(rules.algorithms)}"
                raise ValueError(message)
        return cls(rules, {None: key})

    @classmethod
    def from_jwks(cls, rules: JwtRules, data: bytes) -> "JwtVerifier":
        """Take a set of keys (RFC 7517); raises ValueError. Keys of other algorithms are left."""
        _check_algorithms(rules.algorithms)
        try:
            entries = json.loads(data)["keys"]
            found = [_from_jwk(entry, rules.algorithms) for entry in entries]
        except (jwt.PyJWTError, KeyError, TypeError, AttributeError, RecursionError) as exc:
            message = f"this is no JWKS: {type(exc).__name__}: {exc}"
            raise ValueError(message) from exc
        keys: dict[str | None, _Key] = {}
        for kid, key in found:
            if key is None:
                continue
            if kid in keys:
                message = f"two keys have the kid {kid!r}"
                raise ValueError(message)
            keys[kid] = key
        if not keys:
            message = f"no key of the set fits {_words(rules.algorithms)}"
            raise ValueError(message)
        return cls(rules, keys)

    def grant(self, token: str, now_s: float) -> Grant:
        """Return what a token allows; raises TokenError."""
        rules = self._rules
        if len(token) > JWT_BYTES_MAX:
            raise TokenError(INVALID, f"A token has at most {JWT_BYTES_MAX} bytes.")
        try:
            key = self._key_of(jwt.get_unverified_header(token))
            required = set(rules.required)
            required |= {"aud"} if rules.audience else set()
            required |= {"iss"} if rules.issuer else set()
            claims: dict[str, object] = jwt.decode(
                token,
                key.key,
                algorithms=list(key.algorithms),
                audience=rules.audience or None,
                issuer=rules.issuer or None,
                options={
                    "require": sorted(required),
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                    "enforce_minimum_key_length": True,
                },
            )
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as exc:
            # The library's words may hold parts of the token; its kind of error does not.
            raise TokenError(INVALID, f"The token is not valid: {type(exc).__name__}.") from exc
        return self._granted(claims, now_s)

    def _key_of(self, header: dict[str, object]) -> _Key:
        kid = header.get("kid")
        if "crit" in header:
            raise TokenError(INVALID, "The token demands extensions that are not known here.")
        if len(self._keys) == 1 and (kid is None or None in self._keys):
            return next(iter(self._keys.values()))
        if not isinstance(kid, str) or kid not in self._keys:
            raise TokenError(INVALID, "The token names no key that is known here.")
        return self._keys[kid]

    def _granted(self, claims: dict[str, object], now_s: float) -> Grant:
        rules = self._rules
        expires_s = _moment(claims, "exp", math.inf) + rules.leeway_s
        if not now_s < expires_s:
            raise TokenError(EXPIRED, "The token has expired.")
        if not now_s >= _moment(claims, "nbf", -math.inf) - rules.leeway_s:
            raise TokenError(INVALID, "The token is not valid yet.")
        words = claims.get(rules.scope_claim, "")
        given = words.split() if isinstance(words, str) else words
        if not isinstance(given, list):
            raise TokenError(INVALID, f"The claim {rules.scope_claim} is no list of scopes.")
        scopes = frozenset(word for word in given if isinstance(word, str) and word in SCOPES)
        subject = claims.get("sub")
        name = subject[:NAME_CHARACTERS_MAX] if isinstance(subject, str) else ""
        name = "".join(sign if sign.isprintable() else "?" for sign in name)  # it may be logged
        return Grant(NO_SUBJECT + name, scopes, self._prefixes(claims), expires_s)

    def _prefixes(self, claims: dict[str, object]) -> tuple[str, ...] | None:
        claim = self._rules.prefix_claim
        if claim not in claims:
            return None
        said = claims[claim]
        paths = [said] if isinstance(said, str) else said
        if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
            raise TokenError(INVALID, f"The claim {claim} is no list of paths.")
        try:
            return prefixes_of(paths)
        except ValueError as exc:
            raise TokenError(INVALID, f"The claim {claim} holds what is no prefix.") from exc


def _moment(claims: dict[str, object], name: str, default: float) -> float:
    said = claims.get(name, default)
    if isinstance(said, bool) or not isinstance(said, int | float):
        raise TokenError(INVALID, f"The claim {name} is no number.")
    try:
        return float(said)
    except OverflowError:
        raise TokenError(INVALID, f"The claim {name} is beyond all time.") from None


def _words(algorithms: tuple[str, ...]) -> str:
    return ", ".join(algorithms) or "no algorithm"


def _check_algorithms(algorithms: tuple[str, ...]) -> None:
    if not algorithms:
        message = "access.jwt_algorithms is empty; name the one your tokens are signed with"
        raise ValueError(message)
    for name in algorithms:
        if name not in ALGORITHMS:
            message = f"{name!r} is no algorithm for tokens; there are {_words(ALGORITHMS)}"
            raise ValueError(message)
    secret = [name in _SECRET_BYTES_MIN for name in algorithms]
    if any(secret) and not all(secret):
        message = "HMAC and signatures do not go together in access.jwt_algorithms"
        raise ValueError(message)


def _secret(data: bytes, algorithms: tuple[str, ...]) -> _Key:
    if data.lstrip().startswith((b"-----BEGIN", b"ssh-", b"ecdsa-")):
        message = "this is a public key or certificate, not a secret for HMAC"
        raise ValueError(message)
    need = max(_SECRET_BYTES_MIN[name] for name in algorithms)
    if len(data) < need:
        message = f"the secret has {len(data)} bytes; {_words(algorithms)} needs {need} or more"
        raise ValueError(message)
    return _Key(data, algorithms)


def _public_key(data: bytes) -> PublicKey:
    try:
        key = load_pem_public_key(data)
    except (ValueError, TypeError, UnsupportedAlgorithm) as exc:
        message = "this is not a public key in PEM (openssl pkey -pubout makes one)"
        raise ValueError(message) from exc
    if not isinstance(key, PublicKey):
        message = f"a {type(key).__name__} signs no tokens"
        raise ValueError(message)  # noqa: TRY004  # the operator's file, not a caller's type
    return key


def _pinned(key: PublicKey, algorithms: tuple[str, ...]) -> _Key:
    """Return a key with those of the algorithms that it is made for."""
    if isinstance(key, rsa.RSAPublicKey):
        if key.key_size < RSA_BITS_MIN:
            message = f"the RSA key has {key.key_size} bits; {RSA_BITS_MIN} are the least"
            raise ValueError(message)
        kind: tuple[str, ...] = _RSA
    elif isinstance(key, ec.EllipticCurvePublicKey):
        kind = (_CURVES.get(key.curve.name, ""),)
    else:
        kind = ("EdDSA",)
    return _Key(key, tuple(name for name in algorithms if name in kind))


def _from_jwk(
    entry: dict[str, object], algorithms: tuple[str, ...]
) -> tuple[str | None, _Key | None]:
    """Return the kid and the key of an entry; no key if it is not for these algorithms."""
    kid = entry.get("kid")
    if kid is not None and not isinstance(kid, str):
        message = "a kid is text"
        raise TypeError(message)
    pinned = entry.get("alg")
    if pinned is not None:
        algorithms = tuple(name for name in algorithms if name == pinned)
    if entry.get("use", "sig") != "sig" or not algorithms:
        return kid, None
    if entry.get("kty") == "oct":
        secrets = tuple(name for name in algorithms if name in _SECRET_BYTES_MIN)
        text = str(entry["k"])
        data = binascii.a2b_base64(text.translate({45: 43, 95: 47}) + "=" * (-len(text) % 4))
        return kid, _secret(data, secrets) if secrets else None
    made = jwt.PyJWK(entry, algorithm=algorithms[0] if pinned else None).key
    if not isinstance(made, PublicKey):
        message = f"the key {kid!r} is not a public one; only public keys belong here"
        raise ValueError(message)  # noqa: TRY004  # the operator's file, not a caller's type
    key = _pinned(made, algorithms)
    return kid, key if key.algorithms else None

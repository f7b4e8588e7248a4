"""Who may use the server, as the configuration says it, and the files it names."""

import ipaddress
from dataclasses import dataclass
from typing import Annotated

from durastreamd.errors import ConfigError
from durastreamd.service.access.grants import Verifier, rate_of, scopes_of
from durastreamd.service.access.tokens import Table, read_table

_LEEWAY_S_MAX = 600  # clocks that differ by more are not clocks
_FILE_BYTES_MAX = 16 * 1024 * 1024  # a hundred thousand tokens


@dataclass(frozen=True)
class AccessOptions:
    """Who may use the server; with neither tokens nor JWTs, everybody who can reach it."""

    tokens_file: Annotated[str, "sha256:HASH scopes=read,write prefix=/v1/stream/a name=ci"] = ""
    jwt_algorithms: Annotated[tuple[str, ...], "such as ES256; pinned, so there is no default"] = ()
    jwt_key_file: Annotated[str, "the public key in PEM, or the secret of HS256"] = ""
    jwt_jwks_file: Annotated[str, "several public keys, chosen by kid"] = ""
    jwt_audience: Annotated[
        str, "what aud must name; without it a token with an aud is refused"
    ] = ""
    jwt_issuer: Annotated[str, "what iss must be"] = ""
    jwt_required: Annotated[tuple[str, ...], "claims that must be there"] = ("exp",)
    jwt_scope_claim: Annotated[str, "words read, write, admin, with spaces or as a list"] = "scope"
    jwt_prefix_claim: Annotated[str, "paths; without the claim the token is good everywhere"] = (
        "prefixes"
    )
    jwt_leeway_s: Annotated[float, "how far clocks may differ"] = 30.0
    anonymous: Annotated[tuple[str, ...], "scopes of those who send no token"] = ()
    allow_anonymous: Annotated[
        bool, "listen beyond this host with neither tokens nor client_ca"
    ] = False
    rate: Annotated[
        str, "such as 100/s: requests of one token, or of one address without token"
    ] = ""

    def __post_init__(self) -> None:
        scopes_of(list(self.anonymous))
        if self.rate:
            rate_of(self.rate)
        if self.anonymous and not self.restricted:
            msg = "anonymous limits nothing without tokens_file, jwt_key_file or jwt_jwks_file"
            raise ValueError(msg)
        if self.jwt_key_file and self.jwt_jwks_file:
            msg = "jwt_key_file and jwt_jwks_file exclude each other"
            raise ValueError(msg)
        if not 0 <= self.jwt_leeway_s <= _LEEWAY_S_MAX:
            msg = f"jwt_leeway_s is from 0 to {_LEEWAY_S_MAX}"
            raise ValueError(msg)

    @property
    def restricted(self) -> bool:
        """Tell whether anything needs a token."""
        return bool(self.tokens_file or self.jwt_key_file or self.jwt_jwks_file)


# --- the files ---


def _read_file(setting: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(_FILE_BYTES_MAX + 1)
    except OSError as exc:
        message = f"access.{setting}: cannot read {path}: {exc.strerror}"
        raise ConfigError(message) from exc
    if len(data) > _FILE_BYTES_MAX:
        message = f"access.{setting}: {path} has more than {_FILE_BYTES_MAX} bytes"
        raise ConfigError(message)
    return data


def read_tokens(options: AccessOptions) -> Table:
    """Return the tokens of the file, none without one; raises ConfigError."""
    if not options.tokens_file:
        return {}
    try:
        text = _read_file("tokens_file", options.tokens_file).decode("utf-8")
        return read_table(text, options.tokens_file)
    except ValueError as exc:
        message = f"access.tokens_file: {exc}"
        raise ConfigError(message) from exc


def read_jwt(options: AccessOptions) -> Verifier | None:
    """Return what verifies JWTs, None where they are not used; raises ConfigError."""
    path = options.jwt_key_file or options.jwt_jwks_file
    if not path:
        if options.jwt_algorithms:
            message = "access.jwt_algorithms needs access.jwt_key_file or access.jwt_jwks_file"
            raise ConfigError(message)
        return None
    # Here, because most servers do not need it: with cryptography it takes 9 MB.
    from durastreamd.service.access.jwt_tokens import JwtRules, JwtVerifier

    setting, make = (
        ("jwt_key_file", JwtVerifier.from_key)
        if options.jwt_key_file
        else ("jwt_jwks_file", JwtVerifier.from_jwks)
    )
    rules = JwtRules(
        options.jwt_algorithms,
        options.jwt_audience,
        options.jwt_issuer,
        options.jwt_required,
        options.jwt_scope_claim,
        options.jwt_prefix_claim,
        options.jwt_leeway_s,
    )
    try:
        return make(rules, _read_file(setting, path))
    except ValueError as exc:
        message = f"access.{setting}: {path}: {exc}"
        raise ConfigError(message) from exc


# --- where it may listen ---


def is_local(host: str) -> bool:
    """Tell whether only this host can connect to an IP address."""
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback


def check_exposure(hosts: list[str], options: AccessOptions, *, mutual_tls: bool = False) -> None:
    """Refuse to be reached from beyond this host by everybody, unless that was said.

    ``hosts`` are IP addresses that are listened on; a unix socket has none.
    """
    if options.restricted or options.allow_anonymous or mutual_tls:
        return
    for host in hosts:
        if not is_local(host):
            message = (
                f"listening on {host} would let everybody who can reach it read and write: set "
                "access.tokens_file, access.jwt_key_file, access.jwt_jwks_file or tls.client_ca, "
                "or say access.allow_anonymous = true"
            )
            raise ConfigError(message)

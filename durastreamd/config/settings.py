"""Every section and setting, with defaults and reasons; the sections of lower layers included."""

import ipaddress
from dataclasses import dataclass, field, fields
from typing import Annotated, Literal, NamedTuple, get_type_hints

from durastreamd.engine.options import EngineOptions
from durastreamd.http.limits import HttpLimits
from durastreamd.service.access.options import AccessOptions
from durastreamd.service.limits import AUTO, CorsOptions, DiskOptions, ReadLimits, WriteLimits
from durastreamd.streams.limits import ScrubOptions, StreamLimits, SubscriptionLimits


@dataclass(frozen=True)
class ServerOptions:
    """Where to listen and where the data is."""

    listen: Annotated[
        tuple[str, ...], "host:port, unix:/path or fd:number; sockets from systemd replace it"
    ] = ("127.0.0.1:4437",)
    hosts: Annotated[
        tuple[str, ...],
        "names clients may call it by, besides loopback ones and those in listen; *: any, auto: "
        "any if tokens are needed or other hosts can connect",
    ] = (AUTO,)
    trusted_proxies: Annotated[
        tuple[str, ...],
        "addresses and networks of proxies whose word on their clients is taken; unix: whoever "
        "connects to a unix socket",
    ] = ()
    forwarding: Annotated[
        Literal["x-forwarded", "forwarded"],
        "x-forwarded: they write X-Forwarded-For, -Proto and -Host; forwarded: RFC 7239",
    ] = "x-forwarded"
    data_dir: Annotated[
        str, "made if it is not there; empty: $STATE_DIRECTORY, else ./durastream-data"
    ] = ""
    read_only: Annotated[bool, "serve a backup or a mounted copy: nothing is written, 405"] = False
    drain_s: Annotated[float, "how long running requests may take to end after SIGTERM"] = 10.0

    def __post_init__(self) -> None:
        for each in self.trusted_proxies:
            if each != "unix":
                ipaddress.ip_network(each)  # which says by itself what is wrong with it
        for name in self.hosts:
            if "/" in name or not name:
                msg = f"hosts: {name!r} is not the name of a host, such as streams.example.org"
                raise ValueError(msg)


@dataclass(frozen=True)
class TlsOptions:
    """TLS: files in PEM; without certificate and key connections are plain."""

    certificate: Annotated[
        str, "with its chain; a bare name is sought in $CREDENTIALS_DIRECTORY first"
    ] = ""
    key: Annotated[str, "of the certificate; SIGHUP reads both again"] = ""
    client_ca: Annotated[str, "clients must show a certificate of this authority"] = ""


@dataclass(frozen=True)
class LogOptions:
    """The log, on standard error."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        "debug, info, warning or error: nothing below it is said",
    ] = "info"
    format: Annotated[
        Literal["auto", "journal", "logfmt", "json", "text"],
        "journal, logfmt, json, text; auto: journal under systemd, text on a terminal, else logfmt",
    ] = "auto"
    access: Annotated[
        Literal["off", "errors", "all"],
        "a line for each refused request (errors), for each request (all), or for none (off)",
    ] = "errors"


@dataclass(frozen=True)
class Config:
    """All sections."""

    server: ServerOptions = field(default_factory=ServerOptions)
    tls: TlsOptions = field(default_factory=TlsOptions)
    log: LogOptions = field(default_factory=LogOptions)
    http: HttpLimits = field(default_factory=HttpLimits)
    reads: ReadLimits = field(default_factory=ReadLimits)
    writes: WriteLimits = field(default_factory=WriteLimits)
    cors: CorsOptions = field(default_factory=CorsOptions)
    access: AccessOptions = field(default_factory=AccessOptions)
    disk: DiskOptions = field(default_factory=DiskOptions)
    streams: StreamLimits = field(default_factory=StreamLimits)
    scrub: ScrubOptions = field(default_factory=ScrubOptions)
    subscriptions: SubscriptionLimits = field(default_factory=SubscriptionLimits)
    engine: EngineOptions = field(default_factory=EngineOptions)


# Words at the end of a key that say what its value is. Keys of sections made elsewhere as well.
_SECRET_WORDS = ("password", "secret", "token")
_FILE_WORDS = ("file",)
_TLS_FILES = ("tls.certificate", "tls.key", "tls.client_ca")


class Setting(NamedTuple):
    """One setting."""

    section: str
    key: str
    kind: object  # its type, constraints included, as msgspec takes it
    default: object
    why: str

    @property
    def name(self) -> str:
        """As operators write it."""
        return f"{self.section}.{self.key}"

    @property
    def variable(self) -> str:
        """The environment's name for it."""
        return f"DURASTREAMD_{self.section}__{self.key}".upper()

    @property
    def plural(self) -> bool:
        """Whether it takes several values."""
        return isinstance(self.default, tuple | list)

    @property
    def secret(self) -> bool:
        """Whether its value must never be shown."""
        return self.key.rpartition("_")[2] in _SECRET_WORDS

    @property
    def is_file(self) -> bool:
        """Whether its value names a file, which may be a credential."""
        return self.name in _TLS_FILES or self.key.rpartition("_")[2] in _FILE_WORDS


def _settings() -> dict[str, Setting]:
    found: dict[str, Setting] = {}
    for section, value in section_defaults().items():
        hints = get_type_hints(type(value), include_extras=True)
        for each in fields(value):  # type: ignore[arg-type]
            kind = hints[each.name]
            notes = [note for note in getattr(kind, "__metadata__", ()) if isinstance(note, str)]
            default = getattr(value, each.name)
            made = Setting(section, each.name, kind, default, notes[0] if notes else "")
            found[made.name] = made
    return found


def section_defaults() -> dict[str, object]:
    """Return every section as it is by default."""
    defaults = Config()
    return {each.name: getattr(defaults, each.name) for each in fields(Config)}


SETTINGS = _settings()

"""Every setting of the server, by section."""

from dataclasses import dataclass, field

import msgspec

from durastreamd.engine.options import EngineOptions
from durastreamd.http.limits import HttpLimits
from durastreamd.service.limits import CorsOptions, ReadLimits, WriteLimits
from durastreamd.streams.registry import StreamLimits


class ConfigError(Exception):
    """The operator's: a setting that does not exist or does not fit."""


@dataclass(frozen=True)
class ServerOptions:
    """Where to listen and where the data is."""

    listen: tuple[str, ...] = ("127.0.0.1:4437",)
    data_dir: str = "durastream-data"


@dataclass(frozen=True)
class TlsOptions:
    """Certificate and key; without them connections are plain."""

    certificate: str = ""
    key: str = ""
    client_ca: str = ""


@dataclass(frozen=True)
class Config:
    """All sections."""

    server: ServerOptions = field(default_factory=ServerOptions)
    tls: TlsOptions = field(default_factory=TlsOptions)
    http: HttpLimits = field(default_factory=HttpLimits)
    reads: ReadLimits = field(default_factory=ReadLimits)
    writes: WriteLimits = field(default_factory=WriteLimits)
    cors: CorsOptions = field(default_factory=CorsOptions)
    streams: StreamLimits = field(default_factory=StreamLimits)
    engine: EngineOptions = field(default_factory=EngineOptions)


def with_settings(settings: list[str]) -> Config:
    """Return the defaults changed by settings of the form section.key=value."""
    sections: dict[str, dict[str, object]] = {}
    known = {name: type(getattr(Config(), name)) for name in Config.__dataclass_fields__}
    for setting in settings:
        path, equals, value = setting.partition("=")
        section, _, key = path.partition(".")
        if not equals or section not in known or key not in known[section].__dataclass_fields__:
            message = f"unknown setting {setting!r}: it has the form section.key=value"
            raise ConfigError(message)
        plural = isinstance(getattr(known[section](), key), tuple)
        sections.setdefault(section, {})[key] = value.split(",") if plural else value
    try:
        return msgspec.convert(sections, Config, strict=False)
    except (msgspec.ValidationError, ValueError) as exc:
        message = f"a setting does not fit: {exc}"
        raise ConfigError(message) from exc

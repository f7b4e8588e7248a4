"""Every setting of the server, by section."""

import difflib
import tomllib
from dataclasses import dataclass, field

import msgspec

from durastreamd.engine.options import EngineOptions
from durastreamd.errors import ConfigError as ConfigError
from durastreamd.http.limits import HttpLimits
from durastreamd.service.access_options import AccessOptions
from durastreamd.service.limits import CorsOptions, ReadLimits, WriteLimits
from durastreamd.streams.registry import StreamLimits


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
    access: AccessOptions = field(default_factory=AccessOptions)
    streams: StreamLimits = field(default_factory=StreamLimits)
    engine: EngineOptions = field(default_factory=EngineOptions)


SECTIONS = tuple(Config.__dataclass_fields__)


def load(path: str | None, settings: list[str]) -> Config:
    """Return the defaults, changed by a file, changed by settings of the form section.key=value."""
    sections = _read(path) if path is not None else {}
    for section, keys in sections.items():
        for key in keys:
            _check(section, key, f"{path}: [{section}] {key}")
    for setting in settings:
        name, equals, value = setting.partition("=")
        section, _, key = name.partition(".")
        if not equals:
            message = f"{setting!r} does not have the form section.key=value"
            raise ConfigError(message)
        default = _check(section, key, setting)
        plural = isinstance(default, tuple)
        sections.setdefault(section, {})[key] = value.split(",") if plural else value
    try:
        return msgspec.convert(sections, Config, strict=False)
    except (msgspec.ValidationError, ValueError) as exc:
        message = f"a setting does not fit: {exc}"
        raise ConfigError(message) from exc


def _read(path: str) -> dict[str, dict[str, object]]:
    try:
        with open(path, "rb") as file:  # the one file that is not data
            found = tomllib.load(file)
    except OSError as exc:
        message = f"cannot read {path}: {exc.strerror}"
        raise ConfigError(message) from exc
    except tomllib.TOMLDecodeError as exc:
        message = f"{path} is not TOML: {exc}"
        raise ConfigError(message) from exc
    for section, keys in found.items():
        if not isinstance(keys, dict):
            message = f"{path}: {section} stands outside a section"
            raise ConfigError(message)
    return found


def _check(section: str, key: str, where: str) -> object:
    """Return the default of a setting; say which one may have been meant if there is none."""
    defaults = Config()
    known = [
        f"{part}.{name}"
        for part in SECTIONS
        for name in getattr(defaults, part).__dataclass_fields__
    ]
    name = f"{section}.{key}"
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        message = f"unknown setting {where!r}{hint}"
        raise ConfigError(message)
    return getattr(getattr(defaults, section), key)

"""From defaults, a file, the environment and the command line to one ``Config``.

Every value remembers where it came from. What is wrong is said with that place, the key, what was
expected, and the key that may have been meant; all of it at once, so that one start shows it all.
"""

import difflib
import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, get_args, get_origin

import msgspec

from durastreamd.config.settings import SETTINGS, Config, Setting, section_defaults
from durastreamd.errors import ConfigError

FILE_NAME = "durastreamd.toml"
SYSTEM_FILE = f"/etc/durastreamd/{FILE_NAME}"
PREFIX = "DURASTREAMD_"
DATA_DIR = "durastream-data"
DEFAULT = "default"


class Given(NamedTuple):
    """A value as somebody gave it."""

    setting: Setting
    value: object
    source: str
    typed: bool  # False: text from a shell, to be read as what the setting is


class LoadedConfig(NamedTuple):
    """A configuration, and where each value that is not a default came from."""

    config: Config
    sources: Mapping[str, str]
    file: str | None

    def source(self, name: str) -> str:
        """Return where a setting's value came from."""
        return self.sources.get(name, DEFAULT)


def find_file(environment: Mapping[str, str]) -> str | None:
    """Return the file that is read when none is named, if there is one."""
    folders = environment.get("CONFIGURATION_DIRECTORY", "").split(":")
    candidates = [f"{folder}/{FILE_NAME}" for folder in folders if folder]
    return next((path for path in (*candidates, SYSTEM_FILE) if Path(path).is_file()), None)


def load(path: str | None, settings: Sequence[str]) -> Config:
    """Return the configuration of a file and settings of the form section.key=value."""
    return read(path, {}, [(setting, "--set") for setting in settings]).config


def read(
    path: str | None, environment: Mapping[str, str], flags: Sequence[tuple[str, str]]
) -> LoadedConfig:
    """Merge every source; ``flags`` are section.key=value, each with the option it came by."""
    wrong: list[str] = []
    given: dict[str, Given] = {}
    for each in (
        *(_from_file(path, wrong) if path is not None else ()),
        *_from_environment(environment, wrong),
        *_from_flags(flags, wrong),
    ):
        given[each.setting.name] = each
    values = _converted(given.values(), wrong)
    sources = {name: each.source for name, each in given.items()}
    _resolve(values, sources, environment)
    sections = _assemble(values, sources, wrong)
    if wrong:
        raise ConfigError("\n".join(wrong))
    return LoadedConfig(Config(**sections), sources, path)  # type: ignore[arg-type]


# --- the sources: each yields what it understands and says what is wrong ---


def _from_file(path: str, wrong: list[str]) -> Iterator[Given]:
    try:
        text = Path(path).read_text(encoding="utf-8")
        found = tomllib.loads(text)
    except OSError as exc:
        message = f"cannot read {path}: {exc.strerror}"
        raise ConfigError(message) from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        message = f"{path} is not TOML: {exc}"
        raise ConfigError(message) from exc
    for section, keys in found.items():
        if not isinstance(keys, dict):
            wrong.append(f"{_place(path, text, '', section)}: {section} stands outside a section")
            continue
        for key, value in keys.items():
            where = _place(path, text, section, key)
            setting = _known(section, key, where, wrong)
            if setting is not None:
                yield Given(setting, value, where, typed=True)
        if not keys and section not in section_defaults():
            _known(section, "", _place(path, text, section, ""), wrong)


def _place(path: str, text: str, section: str, key: str) -> str:
    """Return file:line of a key; the file alone where it cannot be told."""
    current = ""
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[\s*([\w.\"'-]+)\s*\]", line)
        if header:
            current = header[1].strip("\"'")
            if current == f"{section}.{key}" or (current == section and not key):
                return f"{path}:{number}"
        elif current in (section, "") and key:
            name = key if current == section else f"{section}.{key}"
            if re.match(rf"\s*[\"']?{re.escape(name)}[\"']?\s*[=.]", line):
                return f"{path}:{number}"
    return path


def _from_environment(environment: Mapping[str, str], wrong: list[str]) -> Iterator[Given]:
    flattened = {setting.variable.replace("__", "_"): setting for setting in SETTINGS.values()}
    for name, value in sorted(environment.items()):
        if not name.startswith(PREFIX):
            continue
        section, underscores, key = name.removeprefix(PREFIX).lower().partition("__")
        if underscores:
            setting = _known(section, key, name, wrong)
            if setting is not None:
                yield Given(setting, _split(setting, value), f"environment {name}", typed=False)
        elif name in flattened:
            meant = flattened[name].variable
            wrong.append(f"{name}: two underscores stand between section and key: {meant}")


def _from_flags(flags: Sequence[tuple[str, str]], wrong: list[str]) -> Iterator[Given]:
    for text, option in flags:
        name, equals, value = text.partition("=")
        section, _, key = name.partition(".")
        if not equals:
            wrong.append(f"{option} {text!r} does not have the form section.key=value")
            continue
        setting = _known(section, key, f"{option} {text}", wrong)
        if setting is not None:
            yield Given(setting, _split(setting, value), option, typed=False)


def _split(setting: Setting, value: str) -> object:
    """Take a list apart: ``a,b``, or as it stands in a file, ``["a", "b"]``."""
    if not setting.plural:
        return value
    if value.lstrip().startswith("["):
        try:
            return tomllib.loads(f"list = {value}")["list"]
        except tomllib.TOMLDecodeError:
            return value  # no list of either form, which is said where values are judged
    return [part.strip() for part in value.split(",") if part.strip()]


def _known(section: str, key: str, where: str, wrong: list[str]) -> Setting | None:
    name = f"{section}.{key}"
    if name in SETTINGS:
        return SETTINGS[name]
    near = difflib.get_close_matches(name, SETTINGS, 1)
    hint = f"; did you mean {near[0]}?" if near else "; --print-defaults shows every setting"
    wrong.append(f"{where}: unknown setting {name.rstrip('.')}{hint}")
    return None


# --- the values ---


def _converted(given: Iterable[Given], wrong: list[str]) -> dict[str, object]:
    found: dict[str, object] = {}
    for each in given:
        try:
            found[each.setting.name] = _value(each)
        except ConfigError as exc:
            wrong.append(str(exc))
    return found


def _value(given: Given) -> object:
    setting, value = given.setting, given.value
    try:
        found: object = msgspec.convert(value, setting.kind, strict=given.typed)
    except (msgspec.ValidationError, ValueError) as exc:
        raise _misfit(given, _expected(setting.kind, str(exc))) from exc
    if isinstance(found, float | int) and not isinstance(found, bool) and not _usable(found):
        raise _misfit(given, f"{_expected(setting.kind, '')} that is not below zero")
    return found


def _usable(number: float) -> bool:
    return math.isfinite(number) and number >= 0


def _misfit(given: Given, expected: str) -> ConfigError:
    shown = "***" if given.setting.secret else repr(given.value)
    near = difflib.get_close_matches(str(given.value), _choices(given.setting.kind), 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    text = f"{given.source}: {given.setting.name} is {shown}; expected {expected}{hint}"
    return ConfigError(text)


def _expected(kind: object, reason: str) -> str:
    """Say in words what a setting takes; msgspec's own words where it is a constraint."""
    if choices := _choices(kind):
        return "one of " + ", ".join(repr(choice) for choice in choices)
    bare = _bare(kind)
    if get_origin(bare) in (tuple, list):
        return "a list of strings"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}
    if ">" in reason or "<" in reason:
        return reason.partition(" - at")[0].removeprefix("Expected ").replace("`", "")
    return words.get(bare, "another value") if isinstance(bare, type) else reason


def _bare(kind: object) -> object:
    return get_args(kind)[0] if hasattr(kind, "__metadata__") else kind


def _choices(kind: object) -> list[str]:
    """Return what a setting may be, where that is a list of words."""
    bare = _bare(kind)
    return [str(choice) for choice in get_args(bare)] if get_origin(bare) is Literal else []


def _resolve(
    values: dict[str, object], sources: dict[str, str], environment: Mapping[str, str]
) -> None:
    """Fill in what the service manager decides: where the state is, where credentials are."""
    if not values.get("server.data_dir"):
        state = environment.get("STATE_DIRECTORY", "").partition(":")[0]
        values["server.data_dir"] = state or DATA_DIR
        if state:
            sources["server.data_dir"] = "environment STATE_DIRECTORY"
    folder = environment.get("CREDENTIALS_DIRECTORY", "")
    for name, value in values.items():
        if folder and SETTINGS[name].is_file and isinstance(value, str) and value:
            credential = Path(folder, value)
            if "/" not in value and credential.exists():
                values[name] = str(credential)
                sources[name] += ", a credential"


def _assemble(
    values: Mapping[str, object], sources: Mapping[str, str], wrong: list[str]
) -> dict[str, object]:
    sections: dict[str, object] = {}
    for section, default in section_defaults().items():
        keys = [setting.key for setting in SETTINGS.values() if setting.section == section]
        chosen = {key: values[f"{section}.{key}"] for key in keys if f"{section}.{key}" in values}
        try:
            sections[section] = type(default)(**chosen)
        except ValueError as exc:
            places = sorted({sources.get(f"{section}.{key}", DEFAULT) for key in chosen})
            wrong.append(f"{', '.join(places)}: section {section} does not fit: {exc}")
    return sections

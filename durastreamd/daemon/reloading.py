"""What a reload changes, all of it or nothing, and what it cannot change."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import NamedTuple, TypeVar

from durastreamd.config import SETTINGS, Config

T = TypeVar("T")

# Sections and settings that SIGHUP puts in force; the rest is read at the start only.
RELOADABLE = (
    *("log", "tls", "reads", "writes", "cors", "access", "disk", "scrub", "subscriptions"),
    *("server.drain_s", "server.hosts", "server.trusted_proxies", "server.forwarding"),
)

# Looks at new settings and raises if they cannot be used; what it returns puts them in force and
# does not fail.
Prepare = Callable[[Config], Callable[[], None]]


def is_among(name: str, names: tuple[str, ...]) -> bool:
    """Tell whether a setting is one of ``names``, by itself or by its section."""
    return name in names or name.partition(".")[0] in names


class Reloaded(NamedTuple):
    """What came of a reload."""

    config: Config  # in force now
    changed: list[str]
    restart: list[str]  # changed in the file, and not in force


class Reloads:
    """Everybody who can take new settings while the server runs."""

    def __init__(self) -> None:
        self._parts: list[tuple[tuple[str, ...], Prepare]] = []

    def add(self, names: tuple[str, ...], prepare: Prepare) -> None:
        """Have ``prepare`` called at each reload; it puts these sections or settings in force."""
        assert set(names) <= set(RELOADABLE), "the manual page is made from that list"
        self._parts.append((names, prepare))

    def covers(self, name: str) -> bool:
        """Tell whether a setting is put in force by a reload."""
        return any(is_among(name, names) for names, _ in self._parts)

    def reload(self, old: Config, fresh: Config) -> Reloaded:
        """Put new settings in force; raises without having changed anything if one does not fit."""
        changed: list[str] = []
        restart: list[str] = []
        for name, setting in SETTINGS.items():
            values = [getattr(getattr(each, setting.section), setting.key) for each in (old, fresh)]
            if values[0] != values[1]:
                (changed if self.covers(name) else restart).append(name)
        config = Config(
            **{
                each.name: self._joined(
                    getattr(old, each.name), getattr(fresh, each.name), each.name
                )
                for each in fields(Config)
            }
        )
        for apply in [prepare(config) for _, prepare in self._parts]:
            apply()
        return Reloaded(config, changed, restart)

    def _joined(self, old: T, fresh: T, section: str) -> T:
        """Return a section of which only what a reload covers is fresh."""
        covered = {
            setting.key: getattr(fresh, setting.key)
            for setting in SETTINGS.values()
            if setting.section == section and self.covers(setting.name)
        }
        return replace(old, **covered)  # type: ignore[type-var]

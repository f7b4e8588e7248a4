"""A reload is all or nothing."""

from collections.abc import Callable

import pytest

from durastreamd.config import Config, ConfigError, load
from durastreamd.daemon.reloading import Reloads


def test_nothing_is_put_in_force_if_anything_does_not_fit() -> None:
    applied: list[str] = []

    def fine(config: Config) -> Callable[[], None]:
        return lambda: applied.append(config.log.level)

    def wrong(_: Config) -> Callable[[], None]:
        message = "no such key"
        raise ConfigError(message)

    reloads = Reloads()
    reloads.add(("log",), fine)
    fresh = load(None, ["log.level=debug"])
    reloads.reload(Config(), fresh)
    assert applied == ["debug"]
    reloads.add(("tls",), wrong)
    with pytest.raises(ConfigError):
        reloads.reload(Config(), load(None, ["log.level=error"]))
    assert applied == ["debug"]


def test_only_what_is_covered_comes_into_force() -> None:
    reloads = Reloads()
    reloads.add(("log", "server.drain_s"), lambda _: lambda: None)
    old = load(None, [])
    fresh = load(
        None, ["log.level=debug", "server.drain_s=5", "server.read_only=true", "reads.sse_s=5"]
    )
    done = reloads.reload(old, fresh)
    assert done.changed == ["server.drain_s", "log.level"]
    assert done.restart == ["server.read_only", "reads.sse_s"]
    assert (done.config.log.level, done.config.server.drain_s) == ("debug", 5)
    assert not done.config.server.read_only
    assert done.config.reads == old.reads
    assert reloads.reload(done.config, fresh).restart == done.restart, "named until restarted"


def test_who_takes_settings_is_in_the_manual() -> None:
    with pytest.raises(AssertionError):
        Reloads().add(("engine",), lambda _: lambda: None)

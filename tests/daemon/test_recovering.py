"""A start that takes long is watched, may be stopped, and what was passed to it is used."""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from durastreamd.config import Config, read
from durastreamd.daemon import Launch, recovering, serve
from durastreamd.daemon.recovering import Progress
from durastreamd.engine.opening import open_engine
from durastreamd.engine.options import EngineOptions
from durastreamd.notify import Manager, Notifier, PassedSocket, manager_of
from tests.daemon.manager import NotifySocket
from tests.support.held_writer import Bench, append
from tests.support.patience import PATIENCE_S


async def test_progress_is_passed_on_while_there_is_any(
    autojump_clock: MockClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    progress = Progress()
    with NotifySocket(str(tmp_path / "n")) as manager:
        notifier = Notifier(manager.address)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(progress.report, notifier)
            for number in range(8):  # as many as the socket's queue holds
                progress("replaying", number, 8)
                await trio.sleep(1)
            await trio.sleep(60)
            nursery.cancel_scope.cancel()
        notifier.send("LAST=1")
        notifier.release()
        manager.until("LAST")
    extensions = [said for said in manager.said if "EXTEND_TIMEOUT_USEC" in said]
    assert 7 <= len(extensions) <= 8, "and none for the minute without news"
    assert extensions[-1]["STATUS"] == "recovering: replaying, 7 of 8"
    assert 1 <= len([r for r in caplog.records if "recovering:" in r.message]) <= 3


async def test_recovery_tells_how_far_it_is() -> None:
    bench = Bench(EngineOptions())
    async with bench.running():
        await bench.make("/s")
        for number in range(3000):
            bench.streams.post("/s", append(b"x"))
            if number % 500 == 0:
                await trio.sleep(0.01)
        await bench.add("/s", b"last")
        survivor = bench.disk.survivor()
    told: list[tuple[str, int, int]] = []
    open_engine(survivor, EngineOptions(), bytes, 0, progress=lambda *said: told.append(said))
    stages = list(dict.fromkeys(what for what, _, _ in told))
    assert [stage.split()[0] for stage in stages] == ["reading", "replaying", "writing"]
    assert all(0 <= done <= total for _, done, total in told)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A recovery that goes on until the test ends."""
    begun, ended = threading.Event(), threading.Event()

    def stuck(*_: object, **__: object) -> None:
        begun.set()
        ended.wait(2 * PATIENCE_S)

    monkeypatch.setattr("durastreamd.daemon.serving.open_data", stuck)
    yield begun
    ended.set()


async def test_a_signal_stops_a_recovery_at_once(slow: threading.Event) -> None:
    plan = Launch(read(None, {}, []), lambda: read(None, {}, []), lambda _: None)
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, plan)
            await trio.to_thread.run_sync(slow.wait)
            signal.raise_signal(signal.SIGHUP)  # nothing to reload yet
            signal.raise_signal(signal.SIGTERM)


def test_a_directory_without_permission_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = read(None, {}, [(f"server.data_dir={tmp_path}", "--data-dir")]).config
    assert isinstance(config, Config)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(PermissionError, match="--read-only serves a directory that cannot be"):
        recovering.open_data(config, 0, Progress(), init=True)


# --- what the environment says of a service manager ---


def test_what_is_meant_for_another_process_is_not_taken() -> None:
    environment = {"LISTEN_PID": "7", "LISTEN_FDS": "2", "WATCHDOG_USEC": "5", "WATCHDOG_PID": "7"}
    found = manager_of(environment, pid=8)
    assert (found.sockets, found.watchdog_s) == ((), None)


@pytest.mark.parametrize("names", ["http:https", "http", ""])
def test_passed_sockets_have_names(names: str, monkeypatch: pytest.MonkeyPatch) -> None:
    marked: list[int] = []
    monkeypatch.setattr(os, "set_inheritable", lambda number, _: marked.append(number))
    environment = {"LISTEN_PID": "7", "LISTEN_FDS": "2", "LISTEN_FDNAMES": names}
    expected = [*names.split(":"), "", ""][:2]
    found = manager_of(environment, pid=7)
    assert found.sockets == (PassedSocket(3, expected[0]), PassedSocket(4, expected[1]))
    assert marked == [3, 4], "children do not get them"


@pytest.mark.parametrize("text", ["", "x", "-1", "²"])
def test_nonsense_is_no_manager(text: str) -> None:
    environment = {"LISTEN_PID": "7", "LISTEN_FDS": text, "WATCHDOG_USEC": text}
    assert manager_of(environment, pid=7)[1:] == ((), None)


def test_a_manager_that_is_gone_does_no_harm(tmp_path: Path) -> None:
    notifier = Notifier(str(tmp_path / "nobody"))
    notifier.ready("x")
    notifier.release()
    notifier.ready("x")
    Notifier("").ready("x")


def test_a_status_is_told_once(tmp_path: Path) -> None:
    with NotifySocket(str(tmp_path / "n")) as manager:
        notifier = Notifier(manager.address)
        for status in ("a", "a", "b", "b"):
            notifier.status(status)
        notifier.send("LAST=1")
        manager.until("LAST")
        notifier.release()
    assert [said["STATUS"] for said in manager.said[:-1]] == ["a", "b"]


def test_a_socket_for_tls_needs_keys() -> None:
    from durastreamd.config import ConfigError
    from durastreamd.daemon.listening import take

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        with pytest.raises(ConfigError, match=r"the socket named https needs tls\.certificate"):
            take(Config(), [PassedSocket(sock.fileno(), "https")])
        (found,) = take(Config(), [PassedSocket(os.dup(sock.fileno()), "x")]).listen()
        assert found.tls is None
        found.release()
    assert Manager(Notifier()).sockets == ()

"""Every row once and in order: failing tasks, a driver killed, a server killed, all in one run."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.spark.copy_query import KILLED_BATCH
from tests.spark.driving import Hand
from tests.support.daemon import ROOT, Daemon
from tests.support.patience import PATIENCE_S, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.system]

STREAMS = ("a", "b")


def start(daemon: Daemon, home: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.spark.copy_query", daemon.url, str(home)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COPY_HOME": str(home)}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def copied(hand: Hand) -> int:
    """Return how many rows have arrived."""
    found = 0
    for each in STREAMS:
        reply = hand.http.head(hand.url(each, "copy-out"))
        found += int(reply.headers.get("stream-message-count", 0))
    return found


def wait_for_rows(driver: "subprocess.Popen[str]", hand: Hand) -> None:
    def some() -> bool:
        assert driver.poll() is None, driver.communicate()[0]
        return copied(hand) > 0

    wait_until(some, "nothing was copied")


def crash(daemon: Daemon) -> None:
    daemon.kill9()
    time.sleep(0.3)  # so that somebody notices
    daemon.start()


@pytest.mark.usefixtures("java")
def test_every_row_once_in_order_whatever_is_killed(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon, httpx.Client(timeout=PATIENCE_S) as http:
        hand = Hand(daemon, http)
        for bucket in ("copy-in", "copy-out"):
            hand.bucket(bucket)
        for each in STREAMS:
            hand.make(each, *[[f"{each}{n}"] for n in range(10)], bucket="copy-in")
            hand.add(each, [f"{each}{n}" for n in range(10, 90)], bucket="copy-in")
        first = start(daemon, tmp_path)
        wait_for_rows(first, hand)
        crash(daemon)  # in the midst of it: source and sink wait for its return
        output = first.communicate(timeout=PATIENCE_S)[0]
        assert first.returncode == -signal.SIGKILL, output
        assert (tmp_path / "killed").exists(), output
        assert list(tmp_path.glob("failed-*")), "a task failed after its rows were appended"
        logged = {each.name for each in (tmp_path / "checkpoint" / "offsets").glob("[0-9]*")}
        committed = {each.name for each in (tmp_path / "checkpoint" / "commits").glob("[0-9]*")}
        assert logged - committed == {str(KILLED_BATCH)}, "killed between sink and checkpoint"
        before = copied(hand)
        crash(daemon)
        assert copied(hand) == before, "what was acknowledged is there"
        for each in STREAMS:
            hand.add(each, [f"{each}{n}" for n in range(90, 120)], bucket="copy-in")
        second = start(daemon, tmp_path)
        output = second.communicate(timeout=PATIENCE_S)[0]
        assert second.returncode == 0, output
        for each in STREAMS:
            assert hand.values(each, "copy-out") == [f"{each}{n}" for n in range(120)]

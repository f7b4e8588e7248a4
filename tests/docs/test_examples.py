"""The examples that need no Spark, run as their readers run them (the others: tests/spark)."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.daemon import ROOT, Daemon
from tests.support.patience import PATIENCE_S, wait_until

pytestmark = pytest.mark.system


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path) as running:
        yield running


def run(name: str, *arguments: object) -> str:
    command = [sys.executable, str(ROOT / "examples" / name), *map(str, arguments)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_lines_are_stored_once_however_often_they_are_sent(daemon: Daemon, tmp_path: Path) -> None:
    file, url = tmp_path / "journal.txt", daemon.stream("journal")
    file.write_text("first\nsecond\n")
    assert run("lines.py", file, url) == "2 lines are new\n"
    daemon.kill9()
    daemon.start()
    with file.open("a") as more:
        more.write("third\n")
    assert run("lines.py", file, url) == "1 lines are new\n"
    assert httpx.get(url).text == "first\nsecond\nthird\n" == file.read_text()


@contextmanager
def running(log: Path, name: str, *arguments: object) -> Iterator["subprocess.Popen[str]"]:
    """Have an example run beside the test; what it prints goes to ``log``."""
    command = [sys.executable, str(ROOT / "examples" / name), *map(str, arguments)]
    with log.open("w") as out:
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=out, stderr=out, text=True
        )
    assert process.stdin is not None
    try:
        yield process
    finally:
        process.stdin.close()
        process.kill()
        process.wait()


def test_what_one_says_in_a_chat_the_other_sees(daemon: Daemon, tmp_path: Path) -> None:
    ann_sees, bob_sees = tmp_path / "ann", tmp_path / "bob"
    room = daemon.stream("room")
    with running(ann_sees, "chat.py", room, "ann") as ann:
        assert ann.stdin is not None
        ann.stdin.write("hello?\n")
        ann.stdin.flush()
        wait_until(lambda: httpx.get(room).text.count("hello?"), ann_sees.read_text)
        with running(bob_sees, "chat.py", room, "bob") as bob:
            assert bob.stdin is not None
            wait_until(lambda: bob_sees.read_text() == "ann: hello?\n", bob_sees.read_text)
            daemon.kill9()
            daemon.start()
            bob.stdin.write("here I am\n")
            bob.stdin.flush()
            wait_until(lambda: ann_sees.read_text() == "bob: here I am\n", ann_sees.read_text)
        ann.stdin.close()
        assert ann.wait(PATIENCE_S) == 0
    assert [said["from"] for said in httpx.get(room).json()] == ["ann", "bob"]


def test_every_job_of_a_queue_leaves_one_result(daemon: Daemon) -> None:
    names = run("jobs.py", daemon.url, "add", "one two three", "four").split()
    done = run("jobs.py", daemon.url, "work", "ann", "--once")
    assert done.splitlines() == [f"{names[0]} 3", f"{names[1]} 1"]
    assert run("jobs.py", daemon.url, "work", "bob", "--once") == ""
    (more,) = run("jobs.py", daemon.url, "add", "five six").split()
    assert run("jobs.py", daemon.url, "work", "bob", "--once") == f"{more} 2\n"
    for name, words in zip([*names, more], (3, 1, 2), strict=True):
        assert httpx.get(daemon.stream(f"results/{name}")).json() == [{"words": words}]


def test_jobs_of_a_worker_that_died_are_done_by_another(daemon: Daemon) -> None:
    (name,) = run("jobs.py", daemon.url, "add", "to be done").split()
    claim = daemon.stream("__ds/subscriptions/word-counters/claim")
    held = httpx.post(claim, json={"worker": "dies"}).json()
    assert run("jobs.py", daemon.url, "work", "ann", "--once") == ""  # it may still live
    release = claim.replace("/claim", "/release")
    token = {"Authorization": f"Bearer {held['token']}"}
    gone = {"wake_id": held["wake_id"], "generation": held["generation"]}
    assert httpx.post(release, json=gone, headers=token).status_code == 204
    assert run("jobs.py", daemon.url, "work", "ann", "--once") == f"{name} 3\n"


@pytest.mark.slow
def test_a_page_that_is_reloaded_shows_all_of_an_answer(daemon: Daemon, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running(log, "tokens.py", daemon.url, "--port", "0"):
        wait_until(lambda: log.read_text().endswith("/\n"), log.read_text)
        page = log.read_text().strip()
        assert daemon.stream("answers/") in httpx.get(page).text
        assert httpx.post(f"{page}ask").status_code == 400
        name = httpx.post(f"{page}ask", content="why is the sky <b>blue</b>").text
        answer = {"params": {"offset": "-1", "live": "sse"}, "headers": {"Origin": page[:-1]}}
        first = _tokens(daemon.stream(f"answers/{name}"), 2, answer)
        again = _tokens(daemon.stream(f"answers/{name}"), None, answer)
        shown = _shown(f"{page}#{name}", tmp_path)
    assert again[:2] == first == ["You ", "asked: "]
    assert "".join(again) == "You asked: why is the sky <b>blue</b> "
    if shown is not None:
        assert ">You asked: why is the sky &lt;b&gt;blue&lt;/b&gt; </p>" in shown


def _shown(url: str, home: Path) -> str | None:
    """Return the document that a browser makes of a page, where there is a browser."""
    chromium = shutil.which("chromium")
    if chromium is None:
        return None
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={home}/profile"]
    command = [chromium, *options, "--virtual-time-budget=10000", "--dump-dom", url]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    return done.stdout


def _tokens(url: str, most: int | None, options: dict[str, dict[str, str]]) -> list[str]:
    """Read as the page does, until the stream is closed or so many tokens were seen."""
    found: list[str] = []
    event: list[str] = []
    with httpx.stream("GET", url, params=options["params"], headers=options["headers"]) as events:
        assert events.headers["Access-Control-Allow-Origin"] in ("*", options["headers"]["Origin"])
        for line in events.iter_lines():
            event.append(line)
            if line:
                continue
            data = json.loads("".join(part[5:] for part in event if part.startswith("data:")))
            found += data if event[0] == "event: data" else []
            if event[0] == "event: control" and data.get("streamClosed"):
                break
            if most is not None and len(found) >= most:
                return found[:most]
            event.clear()
    return found


def test_every_example_is_run_by_a_test() -> None:
    others = ("spark/test_examples.py", "system/test_subscriptions.py")
    tested = Path(__file__).read_text()
    tested += "".join((ROOT / "tests" / other).read_text() for other in others)
    for path in (ROOT / "examples").glob("*.py"):
        assert f'"{path.name}"' in tested, path

"""The public conformance suite: start a server where none is named, run vitest, count.

Used by tools/conformance and by tests/system/test_conformance.py.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.daemon import Daemon
from tools import node

RUN_S_MAX = 600  # A run takes about half a minute; vitest ends a test that hangs after 30 s.


@dataclass(frozen=True)
class Way:
    """Where the suite goes and how: a URL, the authority to trust, HTTP/2 or not."""

    url: str
    authority: Path | None = None
    h2: bool = False
    subscriptions: bool = True


@dataclass(frozen=True)
class Score:
    """What came of a run; ``failures`` names each failed test with the first line of its error."""

    passed: int
    failed: int
    skipped: int
    failures: tuple[str, ...]
    exit_status: int

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def run(way: Way, *, quiet: bool) -> Score:
    """Run the whole suite once; vitest's own report goes to stdout unless ``quiet``."""
    prepared = node.prepare()
    if way.h2:
        _check_alpn(prepared, way)
    with tempfile.TemporaryDirectory(prefix="conformance-") as kept:
        report = Path(kept) / "report.json"
        vitest = str(Path("node_modules") / "vitest" / "vitest.mjs")
        reporters = ["--reporter=default", "--reporter=json", f"--outputFile.json={report}"]
        done = subprocess.run(
            prepared.script(vitest, "run", *reporters),
            cwd=prepared.home,
            env=_environment(way),
            stdout=subprocess.PIPE if quiet else None,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=RUN_S_MAX,
        )
        if not report.exists():
            text = f"vitest left no report, exit status {done.returncode}:\n{done.stdout or ''}"
            raise RuntimeError(text)
        return _score(report.read_text(), done.returncode)


def _environment(way: Way) -> dict[str, str]:
    chosen = {
        "CONFORMANCE_URL": way.url,
        "CONFORMANCE_SUBSCRIPTIONS": "1" if way.subscriptions else "0",
        "CONFORMANCE_H2": "1" if way.h2 else "0",
    }
    if way.authority is not None:
        chosen |= {"CONFORMANCE_CA": str(way.authority), "NODE_EXTRA_CA_CERTS": str(way.authority)}
    return {**os.environ, **chosen}


def _check_alpn(prepared: node.Node, way: Way) -> None:
    """Make one request over HTTP/2 first: a server without it should fail in a plain sentence."""
    probe = prepared.script("alpn.mjs", way.url, str(way.authority or ""))
    done = subprocess.run(probe, capture_output=True, text=True, check=False, timeout=30)
    if done.stdout.strip() != "h2":
        text = f"{way.url} does not agree on h2 by ALPN: {done.stdout}{done.stderr}"
        raise RuntimeError(text)


def _score(report: str, exit_status: int) -> Score:
    read = json.loads(report)
    failures = [
        f"{test['fullName']}: {' '.join(test['failureMessages']).splitlines()[0]}"
        for file in read["testResults"]
        for test in file["assertionResults"]
        if test["status"] == "failed"
    ]
    # A file may fail with all its tests passed: the check after an HTTP/2 run does so.
    failures += [
        f"{Path(file['name']).name}: {file['message']}"
        for file in read["testResults"]
        if file.get("message")
    ]
    return Score(
        passed=read["numPassedTests"],
        failed=read["numFailedTests"],
        skipped=read["numPendingTests"],
        failures=tuple(failures),
        exit_status=exit_status,
    )


@contextmanager
def own_server(home: Path, *, tls: bool, h2: bool, subscriptions: bool = True) -> Iterator[Way]:
    """Start a fresh durastreamd and yield the way to it."""
    with Daemon(home, tls=tls, settings={"log.access": "off"}) as daemon:
        authority = daemon.certificates.authority if daemon.certificates else None
        yield Way(daemon.url, authority=authority, h2=h2, subscriptions=subscriptions)


def main() -> int:
    """Parse the command line, run, print the closing line; 0 when nothing failed."""
    parser = argparse.ArgumentParser(prog="tools/conformance", description=__doc__)
    parser.add_argument("url", nargs="?", help="a running server; without it one is started")
    parser.add_argument(
        "--no-subscriptions", action="store_true", help="leave out the tests of subscriptions"
    )
    parser.add_argument("--tls", action="store_true", help="start the server with TLS")
    parser.add_argument("--h2", action="store_true", help="speak HTTP/2 (needs and implies TLS)")
    parser.add_argument("--ca", type=Path, help="the authority to trust, with an https URL")
    chosen = parser.parse_args()
    if chosen.url is not None:
        if chosen.h2 and not (chosen.url.startswith("https:") and chosen.ca):
            parser.error("--h2 with a URL needs https: and --ca")
        way = Way(chosen.url.rstrip("/"), chosen.ca, chosen.h2, not chosen.no_subscriptions)
        score = run(way, quiet=False)
    else:
        with (
            tempfile.TemporaryDirectory(prefix="conformance-") as home,
            own_server(
                Path(home),
                tls=chosen.tls or chosen.h2,
                h2=chosen.h2,
                subscriptions=not chosen.no_subscriptions,
            ) as way,
        ):
            score = run(way, quiet=False)
    for failure in score.failures:
        print("failed:", failure)
    print(f"conformance: {score}")
    return 0 if score.failed == 0 and score.exit_status == 0 else 1


if __name__ == "__main__":
    sys.exit(main())

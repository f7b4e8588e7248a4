"""A running daemon for each test, and programs of other languages as child processes."""

import json
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Self

import pytest

from tests.support.daemon import Daemon
from tests.support.patience import PATIENCE_S
from tools import node


class Program:
    """A child process spoken to in lines of JSON; ended after a while whatever happens."""

    def __init__(self, command: Sequence[str]) -> None:
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed on exit
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
        )
        self._watchdog = threading.Timer(PATIENCE_S, self._process.kill)
        self._watchdog.start()

    def told(self, kind: str) -> dict[str, object]:
        """Return the next line, which must be a JSON object with the key ``kind``."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        said: dict[str, object] = json.loads(line) if line.startswith("{") else {}
        if kind not in said:
            self._process.wait()
            text = f"expected {kind!r}, got {line!r}; its stderr:\n{self._errors()}"
            raise AssertionError(text)
        return said

    def tell(self, word: str) -> None:
        """Send one line."""
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._process.kill()
        with self._process:  # Hangs up its stdin and stdout, then waits.
            pass
        self._watchdog.cancel()
        self._watchdog.join()
        errors = self._errors()
        self._stderr.close()
        if error is not None:
            error.add_note(f"the program's stderr:\n{errors}")
        else:
            assert self._process.returncode == 0, errors

    def _errors(self) -> str:
        self._stderr.seek(0)
        return self._stderr.read().decode(errors="replace")


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A durastreamd over plain HTTP; it must also end cleanly."""
    with Daemon(tmp_path) as running:
        yield running


@pytest.fixture
def tls_daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A durastreamd over TLS, for HTTP/2 by ALPN."""
    with Daemon(tmp_path, tls=True) as running:
        yield running


@pytest.fixture(scope="session")
def prepared_node() -> node.Node:
    """Node with the packages of tools/node/package.json; without it the test fails."""
    return node.prepare()

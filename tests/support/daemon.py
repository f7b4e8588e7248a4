"""The real daemon as a child process: what tests/system and tests/clients talk to.

Synchronous on purpose: its users are other programs (Node, curl, a browser) and blocking clients.
A restart keeps the data directory and the port, so that a client may find its server again.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Self
from urllib.parse import urlsplit

import trustme

from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parent.parent.parent
POLL_S = 0.01
STDERR_SHOWN_BYTES_MAX = 20_000

# Does what a service manager does between fork and exec: the socket becomes descriptor 3, and the
# variables of sd_listen_fds(3) name this very process.
ACTIVATE = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
passed = {"LISTEN_FDS": "1", "LISTEN_FDNAMES": sys.argv[2], "LISTEN_PID": str(os.getpid())}
os.execve(sys.argv[3], sys.argv[3:], {**os.environ, **passed})
"""


class DaemonError(Exception):
    """The daemon did not do what was asked; the text ends with its stderr."""


@dataclass(frozen=True)
class Certificates:
    """The files of a throw-away authority and of one server certificate it signed."""

    authority: Path
    certificate: Path
    key: Path


def make_certificates(home: Path) -> Certificates:
    """Write a certificate for 127.0.0.1 and localhost, and the authority behind it."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "localhost")
    made = Certificates(home / "ca.pem", home / "server.pem", home / "server.key")
    authority.cert_pem.write_to_path(made.authority)
    for number, part in enumerate(issued.cert_chain_pems):
        part.write_to_path(made.certificate, append=number > 0)
    issued.private_key_pem.write_to_path(made.key)
    return made


class Daemon:
    """One durastreamd with its data in ``home``/data; a context manager that leaves none behind.

    With ``listener`` it is started by socket activation: who connects while no process runs waits.
    """

    def __init__(
        self,
        home: Path,
        *,
        tls: bool = False,
        settings: Mapping[str, object] | None = None,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        listener: socket.socket | None = None,
    ) -> None:
        self.home = home
        self.listener = listener
        self.arguments = list(arguments)
        self.environment = {**os.environ, **(environment or {})}
        self.settings = {"reads.long_poll_s": 0.5, **(settings or {})}
        self.certificates = make_certificates(home) if tls else None
        if self.certificates is not None:
            self.settings["tls.certificate"] = self.certificates.certificate
            self.settings["tls.key"] = self.certificates.key
        self.url = ""
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        """The port it listens on; 0 before the first start."""
        return (urlsplit(self.url).port or 0) if self.url else 0

    @property
    def pid(self) -> int:
        """The process id of the running daemon."""
        return self._running().pid

    def command(self) -> list[str]:
        """Return the command line; the second start asks for the port of the first."""
        chosen = [f"--set={key}={value}" for key, value in self.settings.items()]
        start = [sys.executable, "-m", "durastreamd", "--init"]
        if self.listener is None:
            start += ["--listen", f"127.0.0.1:{self.port}"]
        else:
            name = "https" if self.certificates else "http"
            activate = [sys.executable, "-ISc", ACTIVATE, str(self.listener.fileno()), name]
            start = [*activate, *start]
        return [*start, "--data-dir", str(self.home / "data"), *chosen, *self.arguments]

    def stream(self, name: str) -> str:
        """Return the URL of a stream on the path surface."""
        return f"{self.url}/v1/stream/{name}"

    def start(self) -> None:
        """Start the process and wait for the line that names its address."""
        assert self.process is None, "already started"
        with self._file("stdout").open("wb") as out, self._file("stderr").open("ab") as err:
            self.process = subprocess.Popen(
                self.command(),
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                pass_fds=() if self.listener is None else (self.listener.fileno(),),
            )
        self.url = self._first_line().rpartition(" ")[2]

    def terminate(self) -> int:
        """Send SIGTERM, wait for the end and return the exit status."""
        process = self._running()
        process.send_signal(signal.SIGTERM)
        try:
            status = process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.kill9()
            self._fail(f"still running {PATIENCE_S:.0f} s after SIGTERM")
        self.process = None
        return status

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self._running().send_signal(number)

    def wait_for(self, text: str, since: int = 0) -> str:
        """Wait until its log, from a place on, holds a text; return that part of the log."""
        until = time.monotonic() + PATIENCE_S
        while text not in (said := self._file("stderr").read_text()[since:]):
            if time.monotonic() > until:
                self._fail(f"{text!r} is not in the log")
            time.sleep(POLL_S)
        return said

    def wait(self) -> int:
        """Wait for an end that was asked for already and return the exit status."""
        status = self._running().wait(PATIENCE_S)
        self.process = None
        return status

    def kill9(self) -> None:
        """End the process as a crash would: nothing of it runs any more."""
        process = self._running()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        self.process = None

    def restart(self) -> None:
        """Start again on the same data and port, ending the old process first if it still runs."""
        if self.process is not None:
            self.terminate()
        self.start()

    def stderr(self) -> str:
        """Return the end of what it wrote to stderr, over all its starts."""
        written = self._file("stderr").read_bytes() if self._file("stderr").exists() else b""
        return written[-STDERR_SHOWN_BYTES_MAX:].decode(errors="replace")

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._reap()
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._reap()
            error.add_note(f"durastreamd's stderr:\n{self.stderr()}")
            return
        # pytest shows this for a failed test only; a fixture does not see the test's exception.
        sys.stderr.write(self.stderr())
        if self.process is None:
            return
        status = self.terminate()
        if status != 0:
            self._fail(f"exit status {status} after SIGTERM")

    def _reap(self) -> None:
        if self.process is not None:
            self.kill9()

    def _running(self) -> subprocess.Popen[bytes]:
        assert self.process is not None, "not started"
        return self.process

    def _first_line(self) -> str:
        process = self._running()
        until = time.monotonic() + PATIENCE_S
        line, ended = "", ""
        while not ended:
            if process.poll() is not None:
                self.process = None
                self._fail(f"ended with status {process.returncode} before it listened")
            if time.monotonic() > until:
                self.kill9()
                self._fail(f"does not listen after {PATIENCE_S:.0f} s")
            time.sleep(POLL_S)
            line, ended, _ = self._file("stdout").read_text().partition("\n")
        return line

    def _file(self, name: str) -> Path:
        return self.home / f"durastreamd.{name}"

    def _fail(self, what: str) -> NoReturn:
        text = f"durastreamd: {what}; its stderr:\n{self.stderr()}"
        raise DaemonError(text)

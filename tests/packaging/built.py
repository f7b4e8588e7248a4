"""What tools/build made, and how its programs are run: without an environment, PATH or Python."""

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.support.patience import PATIENCE_S, wait_until

ROOT = Path(__file__).resolve().parent.parent.parent
TEXT = {"Content-Type": "text/plain"}


@dataclass(frozen=True)
class Built:
    """The directory with everything that is handed out."""

    home: Path

    def one(self, pattern: str) -> Path:
        """Return the one file that matches."""
        (found,) = self.home.glob(pattern)
        return found

    @property
    def binary(self) -> Path:
        """The single executable."""
        return self.home / "durastreamd"

    @property
    def deb(self) -> Path:
        """The Debian package."""
        return self.one("durastreamd_*.deb")


class EmptyRoot:
    """A root file system that holds the executable and nothing else: no libc, /proc, /dev, /tmp."""

    def __init__(self, path: Path, binary: Path) -> None:
        self.path = path
        path.mkdir()
        os.link(binary, path / "durastreamd")
        (path / "dsadmin").symlink_to("durastreamd")

    def command(self, *words: str) -> list[str]:
        """Return the command that runs ``words`` in there, with an empty environment."""
        return ["/usr/bin/env", "-i", "/usr/sbin/chroot", str(self.path), *words]

    def run(self, *words: str, **environ: str) -> "subprocess.CompletedProcess[str]":
        """Run a program in there; ``environ`` is all of its environment."""
        settings = [f"{name}={value}" for name, value in environ.items()]
        env, clear, *rest = self.command(*words)
        return run([env, clear, *settings, *rest])

    def trees(self, place: str = "var/cache/durastreamd") -> list[Path]:
        """Return the unpacked trees in a place."""
        return sorted((self.path / place).glob("tree-*"))


def run(
    command: list[str], environ: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a command that ends by itself."""
    return subprocess.run(
        command, env=environ, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )


@contextmanager
def serving(command: list[str], log: Path) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """Start a server; yield its URL and process; it must end with status 0 at a SIGTERM."""
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        yield _url(process, log), process
        process.terminate()
        assert process.wait(PATIENCE_S) == 0, log.read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _url(process: "subprocess.Popen[bytes]", log: Path) -> str:
    def told() -> str | None:
        for line in log.read_text().splitlines(keepends=True):
            if " listening on " in line and line.endswith("\n"):
                return line.split()[-1]
        assert process.poll() is None, log.read_text()
        return None

    return wait_until(told, log.read_text)


def write_and_read(url: str) -> str:
    """Create a stream, append to it twice, and return what is read back."""
    stream = f"{url}/v1/stream/packed"
    with httpx.Client(trust_env=False) as client:
        assert client.put(stream, headers=TEXT).status_code == 201
        for part in ("one, ", "two"):
            assert client.post(stream, headers=TEXT, content=part).status_code == 204
        return client.get(stream, params={"offset": "-1"}).text

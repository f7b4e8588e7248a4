"""Other servers of the protocol, got from their registries and kept in .peers/.

A peer that cannot be had here raises Unavailable with the reason; it is never an error.
"""

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent.parent / ".peers"
BUILD_S_MAX = 1800
_CADDY = "github.com/durable-streams/durable-streams/packages/caddy-plugin/cmd/caddy@latest"


class Unavailable(Exception):  # noqa: N818 - a fact about the host, not an error of ours
    """This peer cannot be run on this host."""


def electric() -> Path:
    """Return the program of the crate ``durable-streams``."""
    return _cargo("durable-streams", "0.1.5", "durable-streams-server")


def axum() -> Path:
    """Return the program of the crate ``durable-streams-server``."""
    return _cargo("durable-streams-server", "0.3.0", "durable-streams-server")


@cache
def _cargo(crate: str, version: str, program: str) -> Path:
    home = HOME / crate
    found = home / "bin" / program
    if not found.exists():
        if shutil.which("cargo") is None:
            text = "cargo is not here"
            raise Unavailable(text)
        install = ["cargo", "install", "--locked", "--root", str(home), f"{crate}@{version}"]
        _build(install, None)
    return found


@cache
def caddy() -> Path:
    """Return Caddy with the plugin, or say why it is not to be had."""
    found = HOME / "caddy" / "caddy"
    if not found.exists():
        if shutil.which("go") is None:
            text = "go is not here"
            raise Unavailable(text)
        _build(["go", "install", _CADDY], {"GOBIN": str(found.parent)})
    return found


def _build(command: list[str], environment: dict[str, str] | None) -> None:
    print("building:", *command, flush=True)
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            check=False,
            timeout=BUILD_S_MAX,
        )
    except subprocess.TimeoutExpired as exc:
        text = f"{' '.join(command[:2])} took more than {BUILD_S_MAX} s"
        raise Unavailable(text) from exc
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        text = f"{' '.join(command[:2])} failed: {last.strip()}"
        raise Unavailable(text)

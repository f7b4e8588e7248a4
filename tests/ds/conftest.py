"""``ds`` as it is run: against a real daemon, with a state directory of its own."""

import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from durastreamd.ds.cli import main
from durastreamd.kit.console import Console
from tests.support.daemon import Daemon


class Ran(NamedTuple):
    """What a run of ``ds`` came to."""

    status: int
    out: bytes
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.decode().splitlines()


Ds = Callable[..., Ran]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("daemon")) as running:
        yield running


def run(*arguments: str, stdin: bytes = b"") -> Ran:
    """Run ``ds`` in this process."""
    out, err = io.BytesIO(), io.StringIO()
    text = io.TextIOWrapper(out, encoding="utf-8", write_through=True)
    before = sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin))
    try:
        status = main(list(arguments), Console(out=text, err=err))
    except SystemExit as exc:
        status = int(str(exc.code))
    finally:
        sys.stdin = before
    text.flush()
    return Ran(status, out.getvalue(), err.getvalue())


@pytest.fixture
def ds(daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ds:
    """``ds`` as a function, whose names lead to the daemon."""
    monkeypatch.setenv("STREAM_URL", daemon.url)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("STREAM_AUTH", raising=False)
    return run

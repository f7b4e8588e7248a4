"""The command line: what it prints, what it refuses, and how it exits."""

import errno
import hashlib
import os
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from durastreamd import cli
from durastreamd.cli import STATUSES, main
from durastreamd.config import ConfigError, defaults_text
from durastreamd.errors import (
    CorruptDataError,
    DataDirectoryError,
    DirectoryLockedError,
    ListenError,
    SyncFailedError,
    WriteFailedError,
)
from durastreamd.kit.status import NAMES
from durastreamd.service.access.tokens import read_table
from tests.support.daemon import ROOT, Daemon
from tests.support.patience import PATIENCE_S


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of the machine's decides."""
    for name in list(os.environ):
        if name.startswith("DURASTREAMD_") or name.endswith("_DIRECTORY"):
            monkeypatch.delenv(name)
    monkeypatch.setattr("durastreamd.logs.set_up", lambda *_: None)


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(list(arguments))
    out, err = capsys.readouterr()
    return status, out, err


def test_the_defaults_are_printed_and_pass_the_check(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    status, out, _ = said(capsys, "--print-defaults")
    assert (status, out) == (0, defaults_text())
    file = tmp_path / "durastreamd.toml"
    file.write_text(out)
    for option in ("-t", "--check-config"):
        status, out, err = said(capsys, option, "--config", str(file))
        assert (status, out, err) == (0, f"durastreamd: {file}: the settings are valid\n", "")


def test_flags_are_settings(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = said(
        capsys,
        *("--listen", "127.0.0.1:1", "--listen", "unix:/x", "--data-dir", "/d", "--read-only"),
        *("--log-level", "debug", "--log-format", "json", "--set", "reads.sse_s=5"),
        "--print-config",
    )
    assert status == 0
    found = tomllib.loads(out)
    assert found["server"]["listen"] == ["127.0.0.1:1", "unix:/x"]
    assert (found["server"]["data_dir"], found["server"]["read_only"]) == ("/d", True)
    assert (found["log"]["level"], found["log"]["format"]) == ("debug", "json")
    assert found["reads"]["sse_s"] == 5
    for option in ("--listen", "--data-dir", "--read-only", "--log-level", "--log-format"):
        assert f"# {option}\n" in out


def test_the_environment_is_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "durastreamd.toml").write_text("[reads]\nsse_s = 2\n")
    monkeypatch.setenv("CONFIGURATION_DIRECTORY", str(tmp_path))
    monkeypatch.setenv("DURASTREAMD_READS__LONG_POLL_S", "3")
    _, out, _ = said(capsys, "--print-config")
    found = tomllib.loads(out)["reads"]
    assert (found["sse_s"], found["long_poll_s"]) == (2, 3)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["server.listen=x"], "server.listen 'x' is none of host:port"),
        (["server.listen=::1:80"], "is none of host:port"),
        (["server.listen=h:65536"], "a port is at most 65535, not 65536"),
        (["server.listen="], "server.listen is empty"),
        (["tls.key=k"], "tls.certificate and tls.key go together"),
        (["tls.client_ca=k"], "tls.client_ca needs tls.certificate and tls.key"),
        (["tls.key=/nowhere/k", "tls.certificate=/nowhere/c"], "there is no file /nowhere/c"),
        ([f"tls.key={__file__}", f"tls.certificate={__file__}"], "cannot be used"),
        (["reads.sse=1"], "did you mean reads.sse_s?"),
    ],
)
def test_the_check_finds_what_a_start_would(
    capsys: pytest.CaptureFixture[str], settings: list[str], says: str
) -> None:
    arguments = [f"--set={setting}" for setting in settings]
    status, out, err = said(capsys, "-t", *arguments)
    assert (status, out) == (78, "")
    assert says in err
    assert err.endswith("(EX_CONFIG, 78)\n")
    assert said(capsys, *arguments)[::2] == (status, err), "and a start finds it, too"


def test_everything_that_is_wrong_with_the_settings_is_told_at_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "durastreamd.toml"
    file.write_text(
        "stray = 1\n[reads]\nsse = 1\nlong_poll_s = 'x'\n[nothing]\n[engine]\nhandles_max = -1\n"
    )
    monkeypatch.setenv("DURASTREAMD_READS_SSE_S", "1")
    monkeypatch.setenv("DURASTREAMD_READS__SSE", "1")
    wrong = ("--set", "log.level=inof", "--set", "writes", "--set", "access.anonymous=read")
    status, out, err = said(capsys, "-t", "--config", str(file), *wrong)
    assert (status, out) == (78, "")
    for place in (":1: stray", ":3: unknown", ":4: reads.long_poll_s", ":5: unknown", ":7: engine"):
        assert f"{file}{place}" in err
    for words in ("SSE_S: two underscores", "READS__SSE: unknown", "did you mean 'info'?"):
        assert words in err
    for words in ("'writes' does not have the form", "section access does not fit"):
        assert words in err
    assert all(line.startswith("durastreamd: ") for line in err.splitlines())


def test_everything_that_is_wrong_with_addresses_and_files_is_told_at_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = ("--listen", "x", "--listen", "h:99999", "--set", "tls.key=k")
    status, _, err = said(capsys, "-t", *places, "--set", "access.tokens_file=/nowhere")
    assert (status, len(err.splitlines())) == (78, 4)


@pytest.mark.parametrize("arguments", [["--no-such"], ["--conf", "x"], ["extra"], ["--config"]])
def test_a_wrong_command_line_is_a_wrong_usage(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 64
    assert "see durastreamd --help" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (ConfigError("x"), 78),
        (DirectoryLockedError("x"), 75),
        (DataDirectoryError("x"), 66),
        (CorruptDataError("f", 1, "x"), 65),
        (SyncFailedError("x"), 74),
        (PermissionError(errno.EACCES, "x", "f"), 77),
        (ListenError("x"), 69),
        (OSError(errno.EIO, "x"), 74),
        (OSError(errno.EMFILE, "x", "f"), 74),
        (OSError(errno.EROFS, "x", "f"), 74),
        (ExceptionGroup("", [ExceptionGroup("", [SyncFailedError("x")])]), 74),
        (RuntimeError("x"), 70),
    ],
)
def test_what_ends_the_server_is_told_by_the_status(
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    raised: Exception,
    code: int,
) -> None:
    assert cli._failed(raised) == code
    assert code in STATUSES
    err = capsys.readouterr().err
    assert "x" in err + caplog.text
    assert f"({NAMES[code]}, {code})" in err or code == 70


def test_an_interrupt_is_not_a_bug() -> None:
    with pytest.raises(KeyboardInterrupt):
        cli._failed(KeyboardInterrupt())


FAILED = [
    (CorruptDataError("f", 1, "x"), 65),
    (DataDirectoryError("x"), 66),
    (WriteFailedError("x"), 74),
    (SyncFailedError("x"), 74),
    (OSError(errno.EIO, "x"), 74),
    (OSError(errno.EMFILE, "x"), 74),
    (DirectoryLockedError("x"), 75),
    (PermissionError(errno.EACCES, "x"), 77),
    (ValueError("x"), 70),
]


@pytest.mark.parametrize(("raised", "code"), FAILED)
@pytest.mark.parametrize(
    "where", ["daemon.recovering.open_engine", "daemon.serving.Daemon.run"], ids=["start", "run"]
)
def test_an_end_has_the_status_of_its_reason(
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    raised: Exception,
    code: int,
    where: str,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr(f"durastreamd.{where}", fail)
    status, _, err = said(
        capsys, "--init", "--data-dir", str(tmp_path / "d"), "--listen", "127.0.0.1:0"
    )
    raised.__traceback__ = raised.__context__ = None  # it and the log hold what the daemon held
    caplog.clear()
    assert status == code
    assert "x" in err or code == 70


@pytest.mark.parametrize(
    ("address", "code"),
    [
        ("fd:0", 69),  # not a socket
        ("unix:/nowhere/at/all.sock", 69),
        ("no-such-host.invalid:1", 69),
        ("192.0.2.1:1", 69),  # not an address of this host
    ],
)
def test_an_address_that_cannot_be_listened_on_is_unavailable(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, address: str, code: int
) -> None:
    where = ("--data-dir", str(tmp_path / "d"), "--listen", address)
    status, _, err = said(capsys, *where)
    assert (status, f"cannot listen on {address}: " in err) == (code, True)
    assert not (tmp_path / "d").exists(), "addresses come before the data"


def test_a_port_that_is_not_ours_to_take_is_a_missing_permission(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def forbidden(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("durastreamd.daemon.listening.bind_tcp", forbidden)
    status, _, err = said(capsys, "--data-dir", str(tmp_path / "d"), "--listen", "127.0.0.1:80")
    assert (status, "no permission to listen on 127.0.0.1:80" in err) == (77, True)


# --- tokens and hints ---


def test_a_made_token_opens_what_its_line_says(capsys: pytest.CaptureFixture[str]) -> None:
    fields = ("scopes=read", "prefix=/v1/stream/a", "expires=2100-01-01T00:00:00Z", "rate=5/s")
    status, line, err = said(capsys, "--gen-token", "ci", *fields)
    token = err.removeprefix("the token, shown this once: ").strip()
    assert (status, len(token) >= 40, token in line) == (0, True, False)
    ((digest, grant),) = read_table(line, "tokens").values()
    assert digest == hashlib.sha256(token.encode()).digest()
    assert (grant.name, set(grant.scopes)) == ("ci", {"read"})
    assert said(capsys, "--gen-token", "ci")[1] != said(capsys, "--gen-token", "ci")[1]
    assert " scopes=read,write name=ci\n" in said(capsys, "--gen-token", "ci")[1]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["a b"], "a field has no spaces"),
        (["ü"], "a name is up to 64 letters"),
        (["ci", "scope=read"], "'scope' is not one of scopes="),
        (["ci", "scopes=all"], "all"),
        (["ci", "expires=tomorrow"], "is no time such as"),
        (["ci", "name=x"], "name= is given twice"),
    ],
)
def test_a_token_with_a_field_that_does_not_fit_is_not_made(
    capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    status, out, err = said(capsys, "--gen-token", *arguments)
    assert (status, out, says in err) == (64, "", True)


def test_the_hints_are_the_lines_of_the_readme() -> None:
    lines = cli.hints_text("http://127.0.0.1:4437", Path("/nowhere")).splitlines()[1:]
    readme = (ROOT / "README.md").read_text().splitlines()
    assert [line for line in lines if line.strip() not in readme] == []


def test_hints_are_for_the_address_that_is_listened_on(tmp_path: Path) -> None:
    (tmp_path / "dsadmin").touch()
    text = cli.hints_text("http+unix:/run/x.sock", tmp_path)
    assert "curl --unix-socket /run/x.sock -X PUT http://localhost/v1/stream/hello" in text
    assert text.endswith(f"commands: {tmp_path / 'dsadmin'}\n")
    assert "curl -k -N 'https://[::1]:5/v1" in cli.hints_text("https://[::1]:5", tmp_path)


# --- real starts that fail ---


def start(*arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "durastreamd", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    return done.returncode, done.stderr


@pytest.mark.system
def test_a_start_that_cannot_be_says_why(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    status, err = start("--data-dir", str(tmp_path / "empty"))
    assert (status, "--init makes an empty directory" in err) == (66, True)
    assert f"durastreamd: {tmp_path / 'empty'}: " in err
    status, err = start("--data-dir", str(tmp_path / "missing"), "--read-only")
    assert (status, "nothing to serve read-only" in err) == (66, True)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        status, err = start("--data-dir", str(tmp_path / "new"), "--listen", address)
    assert (status, f"cannot listen on {address}: Address already in use" in err) == (69, True)
    assert not (tmp_path / "new").exists()


@pytest.mark.system
def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    with Daemon(tmp_path):
        status, err = start("--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0")
    assert (status, "is in use by another durastreamd or dsadmin" in err) == (75, True)

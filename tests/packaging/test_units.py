"""The units of systemd/: accepted by systemd, well shut off, and agreeing with the server."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from durastreamd import cli
from durastreamd.kit.status import IO_ERROR
from tests.packaging.built import ROOT

pytestmark = pytest.mark.system

UNITS = ROOT / "systemd"
EXPOSURE_MAX = 2.0
A_HUMAN_IS_NEEDED = {64, 65, 66, 77, 78}


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """The units, with a program that is there in place of an installed durastreamd."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    for path in UNITS.iterdir():
        text = path.read_text().replace("/usr/bin/durastreamd", "/bin/true")
        (tmp_path / path.name).write_text(text)
    return tmp_path


def analyze(*arguments: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["systemd-analyze", *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )


def section(unit: str, name: str) -> dict[str, list[str]]:
    """Return the settings of one section; systemd allows a name more than once."""
    text = (UNITS / unit).read_text()
    found: dict[str, list[str]] = {}
    current = ""
    for line in text.splitlines():
        if line.startswith("["):
            current = line.strip("[]")
        elif "=" in line and not line.startswith("#") and current == name:
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def test_systemd_accepts_them_without_a_word(units: Path) -> None:
    # Man pages are not installed here; test_deb knows that the package has them.
    done = analyze("verify", "--man=no", "./durastreamd.service", "./durastreamd.socket", cwd=units)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_verify_would_have_something_to_say(units: Path) -> None:
    path = units / "durastreamd.service"
    path.write_text(path.read_text().replace("DynamicUser=", "DynamikUser="))
    done = analyze("verify", "--man=no", "./durastreamd.service", cwd=units)
    assert "DynamikUser" in done.stderr


def test_the_service_is_well_shut_off(units: Path) -> None:
    done = analyze("security", "--offline=true", "--no-pager", "./durastreamd.service", cwd=units)
    (exposure,) = re.findall(
        r"Overall exposure level for durastreamd.service: ([\d.]+)", done.stdout
    )
    assert float(exposure) <= EXPOSURE_MAX


def test_what_needs_a_human_is_not_restarted() -> None:
    service = section("durastreamd.service", "Service")
    (numbers,) = service["RestartPreventExitStatus"]
    assert set(map(int, numbers.split())) == A_HUMAN_IS_NEEDED
    assert service["Restart"] == ["on-failure"]
    # A failed disk is found out about by starting again, but not for ever.
    assert IO_ERROR not in A_HUMAN_IS_NEEDED
    assert int(section("durastreamd.service", "Unit")["StartLimitBurst"][0]) < 10


def test_the_command_line_of_the_service_is_one_the_server_takes() -> None:
    (command,) = section("durastreamd.service", "Service")["ExecStart"]
    program, *arguments = command.split()
    assert program == "/usr/bin/durastreamd"
    chosen = cli.parser().parse_args(arguments)
    assert chosen.config == "/etc/durastreamd/durastreamd.toml"
    assert chosen.data_dir == "/var/lib/durastreamd"


def test_the_socket_listens_where_the_server_would() -> None:
    socket = section("durastreamd.socket", "Socket")
    config = (ROOT / "durastreamd.toml").read_text()
    (address,) = socket["ListenStream"]
    assert f'listen = ["{address}"]' in config
    assert socket["FileDescriptorName"] == ["http"]
    assert f"backlog_count = {socket['Backlog'][0]} " in config


def test_open_files_are_enough_for_the_connections_allowed() -> None:
    config = (ROOT / "durastreamd.toml").read_text()
    (connections,) = re.findall(r"^connections_max = (\d+)", config, re.MULTILINE)
    (limit,) = section("durastreamd.service", "Service")["LimitNOFILE"]
    assert int(limit) >= 2 * int(connections) + 512

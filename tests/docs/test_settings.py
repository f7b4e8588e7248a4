"""durastreamd.toml, the man page and the program say the same."""

import re
import shutil
import subprocess
import tomllib
from dataclasses import asdict
from pathlib import Path

import pytest

from durastreamd.cli import STATUSES, parser
from durastreamd.config import Config, ConfigError, load

TOP = Path(__file__).parent.parent.parent
MAN = TOP / "man" / "durastreamd.8"


def test_the_shipped_file_is_the_defaults_to_the_last_key() -> None:
    path = TOP / "durastreamd.toml"
    assert load(str(path), []) == Config()
    found = tomllib.loads(path.read_text())
    wanted = asdict(Config())
    assert {name: list(keys) for name, keys in found.items()} == {
        name: list(keys) for name, keys in wanted.items()
    }


def test_settings_go_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("[reads]\nlong_poll_s = 7\nheartbeat_s = 3\n[cors]\norigins = ['https://a']\n")
    found = load(str(file), ["reads.long_poll_s=9", "server.listen=127.0.0.1:1,unix:/tmp/x"])
    assert (found.reads.long_poll_s, found.reads.heartbeat_s) == (9, 3)
    assert found.cors.origins == ("https://a",)
    assert found.server.listen == ("127.0.0.1:1", "unix:/tmp/x")


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("reads.long_pol_s=1", "did you mean reads.long_poll_s"),
        ("reads.long_poll_s", "section.key=value"),
        ("nothing.like.it=1", "unknown setting"),
        ("reads.long_poll_s=soon", "does not fit"),
        ("http.idle_s_max=-1", "does not fit"),
    ],
)
def test_a_wrong_setting_is_named(setting: str, says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        load(None, [setting])


@pytest.mark.parametrize(
    ("text", "says"),
    [("[reads\n", "not TOML"), ("a = 1\n", "outside a section"), ("[reads]\nx = 1\n", "unknown")],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "a.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=says) as caught:
        load(str(file), [])
    assert "a.toml" in str(caught.value)


def test_the_man_page_has_every_option_and_status() -> None:
    text = MAN.read_text()
    synopsis = set(re.findall(r"Fl (-[a-z-]+)", text))
    options = {
        option[1:]
        for action in parser()._actions
        for option in action.option_strings
        if option.startswith("--")
    }
    assert synopsis == options
    for _, status in STATUSES:
        assert f".It {status}\n" in text


@pytest.mark.skipif(shutil.which("groff") is None, reason="not run: no groff")
def test_the_man_page_renders_without_a_warning() -> None:
    command = ["groff", "-mdoc", "-ww", "-z", str(MAN)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="not run: no systemd-analyze")
def test_the_unit_is_hardened() -> None:
    unit = TOP / "systemd" / "durastreamd.service"
    command = ["systemd-analyze", "security", "--offline=yes", "--threshold=20", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout

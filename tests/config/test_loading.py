"""Where values come from, and what is said of those that do not fit."""

import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from durastreamd.config import SETTINGS, ConfigError, config_text, defaults_text, find_file, read
from durastreamd.config.loading import LoadedConfig
from durastreamd.config.printing import toml


def loaded(text: str, tmp_path: Path, **environment: str) -> LoadedConfig:
    file = tmp_path / "a.toml"
    file.write_text(text)
    return read(str(file), environment, [])


def test_each_source_goes_over_the_one_before(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("[reads]\nlong_poll_s = 1\nheartbeat_s = 1\nsse_s = 1\n")
    environment = {"DURASTREAMD_READS__HEARTBEAT_S": "2", "DURASTREAMD_READS__SSE_S": "2"}
    found = read(str(file), environment, [("reads.sse_s=3", "--set")])
    reads = found.config.reads
    assert (reads.long_poll_s, reads.heartbeat_s, reads.sse_s) == (1, 2, 3)
    assert reads.piece_bytes == 256 * 1024
    assert [found.source(f"reads.{key}") for key in ("long_poll_s", "heartbeat_s", "sse_s")] == [
        f"{file}:2",
        "environment DURASTREAMD_READS__HEARTBEAT_S",
        "--set",
    ]
    assert found.source("reads.piece_bytes") == "default"


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=lambda setting: setting.name)
def test_every_setting_can_be_given_by_every_source(setting: object, tmp_path: Path) -> None:
    from durastreamd.config import Setting

    assert isinstance(setting, Setting)
    assert setting.why, "a setting says why it is what it is"
    default = setting.default
    assert isinstance(default, tuple | str | int | float)
    text = ",".join(default) if isinstance(default, tuple) else str(default).lower()
    wanted = read(None, {}, []).config
    for found in (
        loaded(f"[{setting.section}]\n{setting.key} = {toml(default)}\n", tmp_path),
        read(None, {setting.variable: text}, []),
        read(None, {}, [(f"{setting.name}={text}", "--set")]),
    ):
        assert found.config == wanted
        assert setting.name in found.sources


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[reads]\n\nlong_pol_s = 1\n", "a.toml:3: unknown setting reads.long_pol_s; did you mean"),
        ("[readz]\nx = 1\n", "a.toml:2: unknown setting readz.x"),
        ("[zzzz]\n", "a.toml:1: unknown setting zzzz; --print-defaults shows every setting"),
        ("reads.sse_s = 'x'\n", "a.toml:1: reads.sse_s is 'x'; expected a number"),
        ("[reads]\nsse_s = '7'\n", "a.toml:2: reads.sse_s is '7'; expected a number"),
        ("[engine]\nhandles_max = 1.5\n", "a.toml:2: engine.handles_max is 1.5; expected a whole"),
        ("[engine]\nhandles_max = 0\n", "a.toml:2: engine.handles_max is 0; expected int >= 1"),
        ("[server]\nlisten = 'x:1'\n", "a.toml:2: server.listen is 'x:1'; expected a list"),
        ("[server]\nread_only = 1\n", "a.toml:2: server.read_only is 1; expected true or false"),
        ("[log]\nlevel = 'warn'\n", "expected one of 'debug', 'info', 'warning', 'error'; did you"),
        ("[reads]\nlong_poll_s = -1\n", "that is not below zero"),
        ("[reads]\nlong_poll_s = inf\n", "that is not below zero"),
        ("[http]\nidle_s_max = 0\n", "a.toml:2: section http does not fit: idle_s_max must be"),
        ("[disk]\nfree_bytes_min = 999999999999\n", "free_bytes_resume must not be below"),
        ("x = 1\n", "a.toml:1: x stands outside a section"),
        ("[reads\n", "not TOML"),
    ],
)
def test_what_is_wrong_in_a_file_is_said_with_line_key_and_expectation(
    text: str, says: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)) as caught:
        loaded(text, tmp_path)
    assert "a.toml" in str(caught.value)


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"DURASTREAMD_READS__SSE": "1"}, "DURASTREAMD_READS__SSE: unknown setting reads.sse; did"),
        ({"DURASTREAMD_READS_SSE_S": "1"}, "two underscores stand between section and key"),
        ({"DURASTREAMD_READS__SSE_S": "x"}, "environment DURASTREAMD_READS__SSE_S: reads.sse_s is"),
    ],
)
def test_a_wrong_variable_is_named(environment: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        read(None, environment, [])


@pytest.mark.parametrize(
    "text", ['["https://a.example", "https://b.example"]', "https://a.example,https://b.example"]
)
def test_a_list_is_given_as_in_a_file_or_with_commas(text: str) -> None:
    flag = read(None, {}, [(f"cors.origins={text}", "--set")])
    variable = read(None, {"DURASTREAMD_CORS__ORIGINS": text}, [])
    for found in (flag, variable):
        assert found.config.cors.origins == ("https://a.example", "https://b.example")


@pytest.mark.parametrize("text", ['["https://a.example"', "[1]", "[["])
def test_a_list_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected a list of strings"):
        read(None, {}, [(f"cors.origins={text}", "--set")])


def test_other_variables_are_left_alone() -> None:
    assert read(None, {"DURASTREAMD_HOME": "x", "PATH": "y"}, []).sources == {}


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*nothing\.toml: No such file"):
        read(str(tmp_path / "nothing.toml"), {}, [])


def test_the_file_is_sought_where_the_service_manager_says(tmp_path: Path) -> None:
    environment = {"CONFIGURATION_DIRECTORY": f"/nowhere:{tmp_path}"}
    assert find_file(environment) is None
    file = tmp_path / "durastreamd.toml"
    file.write_text("")
    assert find_file(environment) == str(file)


def test_state_and_credentials_come_from_the_service_manager(tmp_path: Path) -> None:
    (tmp_path / "tls.key").write_text("key")
    environment = {"STATE_DIRECTORY": "/var/lib/x:/y", "CREDENTIALS_DIRECTORY": str(tmp_path)}
    flags = [("tls.key=tls.key", "--set"), ("tls.certificate=/etc/tls.key", "--set")]
    found = read(None, environment, flags)
    assert found.config.server.data_dir == "/var/lib/x"
    assert found.source("server.data_dir") == "environment STATE_DIRECTORY"
    assert found.config.tls.key == str(tmp_path / "tls.key")
    assert found.source("tls.key") == "--set, a credential"
    assert found.config.tls.certificate == "/etc/tls.key"
    assert (
        read(None, environment, [("server.data_dir=/z", "--data-dir")]).config.server.data_dir
        == "/z"
    )
    assert read(None, {}, []).config.server.data_dir == "durastream-data"


def test_what_is_printed_is_read_back_as_the_same(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("[reads]\nsse_s = 7\n[cors]\norigins = ['https://a', 'https://b\\u0022']\n")
    first = read(str(file), {"DURASTREAMD_LOG__LEVEL": "debug"}, [("disk.check_s=3", "--set")])
    shown = config_text(first)
    again = loaded(shown, tmp_path)
    assert again.config == first.config
    for line in (
        f"sse_s = 7.0                               # {file}:2",
        'level = "debug"                           # environment DURASTREAMD_LOG__LEVEL',
        "check_s = 3.0                             # --set",
        "heartbeat_s = 15.0                        # default",
    ):
        assert line in shown.splitlines()


def test_secrets_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = SETTINGS["tls.key"]._replace(key="key_secret")
    assert setting.secret
    assert not SETTINGS["tls.key"].secret
    from durastreamd.config import loading

    wrong = loading.Given(setting, "hush", "--set", typed=False)
    assert "hush" not in str(loading._misfit(wrong, "better"))
    monkeypatch.setattr("durastreamd.config.settings._SECRET_WORDS", ("key",))
    shown = config_text(read(None, {}, [("tls.key=hush", "--set")]))
    assert "hush" not in shown
    assert 'key = "***"' in shown


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_survives_toml(text: str) -> None:
    assert tomllib.loads(f"x = {toml(text)}") == {"x": text}


def test_the_defaults_are_a_configuration() -> None:
    assert tomllib.loads(defaults_text()).keys() == {each.section for each in SETTINGS.values()}

"""The wheel in a fresh environment, and the sdist it was built from."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from durastreamd import __version__
from tests.packaging.built import Built, run

pytestmark = [pytest.mark.system, pytest.mark.slow]


def test_a_fresh_environment_runs_both_commands(built: Built, tmp_path: Path) -> None:
    home = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", home], check=True)
    pip = [str(home / "bin" / "python"), "-m", "pip", "-q", "--disable-pip-version-check"]
    done = subprocess.run(
        [*pip, "install", built.one("*.whl")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for command, name in (
        ("durastreamd", "durastreamd"),
        ("dsadmin", "dsadmin"),
        ("durastreamd admin", "dsadmin"),
        ("ds", "ds"),
    ):
        # From elsewhere and without PYTHONPATH: what is imported is what was installed.
        program, *words = command.split()
        called = [str(home / "bin" / program), *words, "--version"]
        done = run(["/usr/bin/env", "-C", str(tmp_path), *called], {})
        assert (done.returncode, done.stdout) == (0, f"{name} {__version__}\n"), done.stderr


def test_the_wheel_holds_the_packages_of_spark_too(built: Built) -> None:
    with zipfile.ZipFile(built.one("*.whl")) as wheel:
        names = wheel.namelist()
    packages = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    assert packages == {"durastreamd", "pyspark_durastream", "pyspark_durastream_segments"}
    assert f"durastreamd-{__version__}.dist-info/licenses/LICENSE" in names
    assert not [name for name in names if name.endswith(".pyc")]


def test_the_sdist_holds_what_building_and_testing_need(built: Built) -> None:
    with tarfile.open(built.one("*.tar.gz")) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "durastreamd.toml"} <= names
    assert {"systemd/durastreamd.service", "man/durastreamd.8", "tools/build"} <= names
    assert {"tools/packing/launcher.c", "tests/packaging/test_wheel.py"} <= names
    assert not [name for name in names if name.startswith((".venv", "dist/", ".git/"))]

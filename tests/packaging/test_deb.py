"""The Debian package: in lintian's eyes, unpacked and run, installed and purged."""

import os
import subprocess
from pathlib import Path

import pytest

from durastreamd import __version__
from tests.packaging.built import ROOT, Built, run, serving, write_and_read

pytestmark = [pytest.mark.system, pytest.mark.slow]


@pytest.fixture(scope="module")
def unpacked(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the package, as dpkg would lay them out."""
    root = tmp_path_factory.mktemp("deb") / "root"
    done = run(["dpkg-deb", "-x", str(built.deb), str(root)])
    assert done.returncode == 0, done.stderr
    return root


def test_lintian_finds_nothing_that_is_not_justified(built: Built) -> None:
    done = subprocess.run(
        ["lintian", "--fail-on", "none", "--allow-root", "--no-cfg", str(built.deb)],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
    )
    expected = "no-manual-page [usr/bin/dsadmin]"
    found = [line for line in done.stdout.splitlines() if line[:2] in ("E:", "W:")]
    if not (ROOT / "man" / "dsadmin.8").exists():
        found = [line for line in found if expected not in line]
    assert not found


def test_it_holds_what_a_package_of_a_server_holds(unpacked: Path) -> None:
    names = {path.relative_to(unpacked).as_posix() for path in unpacked.rglob("*")}
    assert {
        "etc/durastreamd/durastreamd.toml",
        "usr/bin/ds",
        "usr/bin/dsadmin",
        "usr/bin/durastreamd",
        "usr/lib/systemd/system/durastreamd.service",
        "usr/lib/systemd/system/durastreamd.socket",
        "usr/share/bash-completion/completions/dsadmin",
        "usr/share/bash-completion/completions/durastreamd",
        "usr/share/doc/durastreamd/changelog.gz",
        "usr/share/doc/durastreamd/copyright",
        "usr/share/zsh/vendor-completions/_dsadmin",
        "usr/share/zsh/vendor-completions/_durastreamd",
    } <= names
    pages = {f"usr/share/man/man{page.suffix[1:]}/{page.name}.gz" for page in _pages()}
    assert pages <= names
    shipped = (unpacked / "etc/durastreamd/durastreamd.toml").read_bytes()
    assert shipped == (ROOT / "durastreamd.toml").read_bytes()


def _pages() -> list[Path]:
    return sorted((ROOT / "man").glob("*.[1-8]"))


@pytest.mark.parametrize("name", ["durastreamd", "dsadmin", "ds"])
def test_both_commands_run_without_an_environment(unpacked: Path, name: str) -> None:
    done = run([str(unpacked / "usr/bin" / name), "--version"], {})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{name} {__version__}\n"


def test_it_serves_with_the_configuration_it_brings(unpacked: Path, tmp_path: Path) -> None:
    config = str(unpacked / "etc/durastreamd/durastreamd.toml")
    program = ["/usr/bin/env", "-i", str(unpacked / "usr/bin/durastreamd"), "--config", config]
    data = ["--init", "--data-dir", str(tmp_path / "data")]
    with serving([*program, "--listen", "127.0.0.1:0", *data], tmp_path / "log") as (url, process):
        assert write_and_read(url) == "one, two"
        maps = Path("/proc", str(process.pid), "maps").read_text().splitlines()
        mapped = {Path(line.split()[5]).name for line in maps if ".so" in line}
        inside = {path.name for path in unpacked.rglob("*.so*")}
        assert {name.split(".so")[0] for name in mapped - inside} <= {
            *("libc", "libm", "libdl", "libpthread", "libutil", "ld-linux-x86-64"),
            "ld-linux-aarch64",
        }


def test_installing_enables_the_service_and_purging_keeps_the_streams(
    built: Built, tmp_path: Path
) -> None:
    """dpkg's own run of the maintainer scripts, in a root where no systemd is running."""
    root = tmp_path / "root"
    for part in ("var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/private/durastreamd"):
        (root / part).mkdir(parents=True)
    (root / "var/lib/dpkg/status").touch()
    stream = root / "var/lib/private/durastreamd/stream"
    stream.write_text("acknowledged")
    options = ["--force-script-chrootless", "--force-depends", "--force-unsafe-io", "--no-triggers"]
    dpkg = ["dpkg", f"--root={root}", "--log=/dev/null", *options]
    done = run([*dpkg, "--install", str(built.deb)])
    assert done.returncode == 0, done.stderr
    link = root / "etc/systemd/system/multi-user.target.wants/durastreamd.service"
    assert link.is_symlink()
    (root / "etc/durastreamd/durastreamd.toml").write_text("# the administrator's\n")
    assert run([*dpkg, "--remove", "durastreamd"]).returncode == 0
    assert (root / "etc/durastreamd/durastreamd.toml").exists()
    done = run([*dpkg, "--purge", "durastreamd"])
    assert done.returncode == 0, done.stderr
    assert not (root / "etc/durastreamd").exists()
    assert not link.is_symlink()
    assert stream.read_text() == "acknowledged"

"""What deploy/Containerfile makes, put together by hand: no builder or registry is needed.

The stage before it makes two directories and brings certificates; all the rest is done as written.
"""

import json
import os
import re
from pathlib import Path

import pytest

from tests.packaging.built import ROOT, Built, run, serving, write_and_read

pytestmark = [pytest.mark.system, pytest.mark.slow]

RECIPE = (ROOT / "deploy" / "Containerfile").read_text()


class Image:
    """A root file system as the recipe's last stage leaves it."""

    def __init__(self, root: Path, dist: Path) -> None:
        self.root = root
        self.variables: list[str] = []
        self.user = "0:0"
        self.entry: list[str] = []
        self.words: list[str] = []
        for line in re.sub(r"(?m)^#.*\n", "", RECIPE.split("\nFROM ")[-1]).splitlines()[1:]:
            word, _, rest = line.partition(" ")
            self._follow(word, rest, dist)

    def _follow(self, word: str, rest: str, dist: Path) -> None:
        if word == "COPY":
            *_, source, target = rest.split()
            self._copy(rest, dist / source, self.root / target.lstrip("/"))
        elif word == "ENV":
            self.variables.append(rest)
        elif word == "USER":
            self.user = rest
        elif word == "RUN":
            done = run(self.command(*json.loads(rest)))
            assert (done.returncode, done.stderr) == (0, "")
        elif word == "ENTRYPOINT":
            self.entry = json.loads(rest)
        elif word == "CMD":
            self.words = json.loads(rest)
        else:
            assert word in ("VOLUME", "EXPOSE"), word

    def _copy(self, options: str, source: Path, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        if "--from=host" not in options:
            os.link(source, target)
        elif owner := re.search(r"--chown=(\d+):(\d+)", options):
            target.mkdir(0o700)
            os.chown(target, int(owner[1]), int(owner[2]))

    def command(self, *words: str, **more: str) -> list[str]:
        """Return the command that runs ``words`` in there, as its user, with its variables."""
        given = [f"{name}={value}" for name, value in more.items()]
        chroot = ["/usr/sbin/chroot", f"--userspec={self.user}", str(self.root)]
        return ["/usr/bin/env", "-i", *self.variables, *given, *chroot, *words]


@pytest.fixture
def image(built: Built, tmp_path: Path) -> Image:
    if os.geteuid() != 0:
        pytest.skip("another root needs root")
    root = tmp_path / "root"
    root.mkdir()
    return Image(root, built.home)


def test_it_serves_as_its_user_from_what_was_unpacked(image: Image, tmp_path: Path) -> None:
    trees = set((image.root / "var/cache/durastreamd").iterdir())
    command = image.command(
        *image.entry,
        *image.words,
        DURASTREAMD_SERVER__LISTEN="127.0.0.1:0",  # nobody else's business
    )
    with serving(command, tmp_path / "log") as (url, process):
        assert write_and_read(url) == "one, two"
        status = Path("/proc", str(process.pid), "status").read_text()
        uid = image.user.partition(":")[0]
        assert re.search(rf"(?m)^Uid:\t{uid}\t{uid}\t", status)
    assert set((image.root / "var/cache/durastreamd").iterdir()) == trees
    assert (image.root / "var/lib/durastreamd/data/DURASTREAMD").is_file()
    done = run(
        image.command(*image.entry, "admin", "--data-dir", "/var/lib/durastreamd/data", "ls")
    )
    assert (done.returncode, "packed" in done.stdout) == (0, True), done.stderr


def test_without_tokens_it_does_not_serve_the_network(image: Image) -> None:
    done = run(image.command(*image.entry, *image.words))
    assert done.returncode == 78
    assert "set access.tokens_file" in done.stderr

"""The maps in packages' docstrings: every part that is there is named, and nothing else."""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent.parent / "durastreamd"
MAPPED = ("admin", "client", "ds", "http", "kit", "offline", "spark")


def parts_of(package: Path) -> set[str]:
    below = {path.parent.name for path in package.glob("*/__init__.py")}
    return below | {path.stem for path in package.glob("*.py")} - {"__init__"}


def named_in(package: Path) -> set[str]:
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    return {found.split(".")[0] for found in re.findall(r"``([a-z_0-9.]+)", text)}


@pytest.mark.parametrize("name", MAPPED)
def test_the_map_names_every_part(name: str) -> None:
    assert parts_of(PACKAGE / name) - named_in(PACKAGE / name) == set()


@pytest.mark.parametrize("name", ["offline", "spark"])
def test_the_map_names_every_part_of_the_parts(name: str) -> None:
    below = [path.parent for path in (PACKAGE / name).glob("*/__init__.py")]
    inner = {part for package in below for part in parts_of(package)}
    # Of the jobs each module is the command of its name.
    commands = {"audit", "compact", "importing"} if name == "spark" else set()
    assert inner - named_in(PACKAGE / name) <= commands

"""Seeded bugs by changing a line: what a test must see if the line is there for a reason."""

import inspect
import textwrap
from types import FunctionType
from typing import Any

import pytest


def change(patch: pytest.MonkeyPatch, owner: Any, name: str, old: str, new: str) -> None:
    """Replace a function of a class or module by one in which ``old`` reads ``new``."""
    function = vars(owner)[name]
    assert isinstance(function, FunctionType)
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1, f"{old!r} is not once in {name}: mend the mutant"
    made: dict[str, Any] = {}
    exec(source.replace(old, new), function.__globals__, made)
    patch.setattr(owner, name, made[name])

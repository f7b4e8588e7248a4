"""Every test here has the state machines checked after each of their steps."""

import pytest

from durastreamd.streams.actor import Actor
from durastreamd.streams.committer import Committer
from tests.support.machines import check_after


@pytest.fixture(autouse=True)
def _states_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    check_after(monkeypatch, Actor, "put", "take", "landed", "retire", "_append", "_decide_one")
    submitting = ("submit", "submit_open", "mark", "rotate", "checkpoint_ended")
    check_after(monkeypatch, Committer, *submitting, "_hand_over", "rotated", "landed", "abandon")

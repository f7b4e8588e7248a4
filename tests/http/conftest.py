"""Every HTTP/1 test runs twice: bytes delivered as sent, and one at a time."""

import pytest

from durastreamd.http.h1.quick import QuickTurns, State


@pytest.fixture(params=["whole", "bytewise"])
def delivery(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def _states_keep_their_promises(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have quick turns check themselves whenever their state changes."""
    slot = QuickTurns.__dict__["state"]

    def change(turns: QuickTurns, state: State) -> None:
        begun = hasattr(turns, "_task")
        slot.__set__(turns, state)
        if begun:
            turns.check()

    monkeypatch.setattr(QuickTurns, "state", property(slot.__get__, change))

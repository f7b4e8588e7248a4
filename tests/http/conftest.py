"""Every HTTP/1 test runs twice: bytes delivered as sent, and one at a time."""

import pytest


@pytest.fixture(params=["whole", "bytewise"])
def delivery(request: pytest.FixtureRequest) -> str:
    return str(request.param)

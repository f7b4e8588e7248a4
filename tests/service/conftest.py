"""A running site per test, on the mock clock."""

from collections.abc import AsyncIterator

import pytest
from trio.testing import MockClock

from tests.service.harness import Site, serving


@pytest.fixture
async def site(autojump_clock: MockClock) -> AsyncIterator[Site]:
    async with serving() as made:
        yield made

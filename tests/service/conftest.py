"""A running site per test; one that waits asks for ``autojump_clock`` as well."""

from collections.abc import AsyncIterator

import pytest

from tests.service.harness import Site, serving
from tests.service.subscribing import Place, placed


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with serving() as made:
        yield made


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    async with placed() as made:
        yield made

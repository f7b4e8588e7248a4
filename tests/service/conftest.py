"""A running site per test; one that waits asks for ``autojump_clock`` as well."""

from collections.abc import AsyncIterator

import pytest

from tests.service.harness import Site, serving


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with serving() as made:
        yield made

"""A running site per test with a bucket in it, and a stream's URL on each surface."""

from collections.abc import AsyncIterator

import pytest

from tests.extension.tools import BUCKET
from tests.service.harness import PREFIX, Site, serving


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with serving() as made:
        reply = await made.raw("PUT", f"/{BUCKET}")
        assert reply.status == 201, reply
        yield made


@pytest.fixture(params=["path", "bucket"])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of a stream that is not there yet, on one surface and on the other."""
    return PREFIX + "notes/doc" if request.param == "path" else f"/{BUCKET}/doc"

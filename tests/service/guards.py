"""Tokens for tests: a file of them, and sites that ask for one."""

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from durastreamd.service.access.options import AccessOptions
from durastreamd.service.limits import Limits
from tests.service.harness import Site, serving

REALM = 'Bearer realm="durastreamd"'


def line(token: str, fields: str) -> str:
    return f"sha256:{hashlib.sha256(token.encode()).hexdigest()} {fields}\n"


def bearer(token: str, **more: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}", **more}


def write(path: Path, tokens: dict[str, str]) -> str:
    path.write_text("# who may do what\n\n" + "".join(line(*each) for each in tokens.items()))
    return str(path)


@asynccontextmanager
async def guarded(
    path: Path, tokens: dict[str, str], limits: Limits | None = None, **more: object
) -> AsyncIterator[Site]:
    """Serve to the bearers of these tokens; ``root`` may do everything."""
    file = write(path, {"root": "scopes=read,write,admin", **tokens})
    async with serving(limits) as site:
        site.app.operations.metrics.statistics = site.server.statistics
        site.app.restrict(AccessOptions(tokens_file=file, **more))  # type: ignore[arg-type]
        yield site

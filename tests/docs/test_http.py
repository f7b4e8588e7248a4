"""docs/http.md and the program name the same routes, methods, headers and settings."""

import re
from pathlib import Path

import pytest

from tests.service.harness import Site, serving

TOP = Path(__file__).parent.parent.parent
TEXT = (TOP / "docs" / "http.md").read_text()
BOTH = TEXT + (TOP / "docs" / "extension.md").read_text()
CODE = "\n".join(
    path.read_text()
    for package in ("protocol", "http", "service")
    for path in sorted((TOP / "durastreamd" / package).rglob("*.py"))
)
HEADER = re.compile(r"\b((?:Stream|Producer|Access-Control|Content|X)(?:-[A-Z][A-Za-z]+)+)\b")
# Of these the bodies' framing is made of, and forwarding; a reader of the page knows them.
ORDINARY = {"Content-Length", "Content-Range"}
ROUTES = re.findall(r"^\| (`/?[{/].*?) \| .* \| ([A-Z, ]+) \|$", TEXT, re.MULTILINE)
PLACES = {"{name}": "notes/doc", "{bucket}": "agents", "{id}": "run", "{slug}": "not-found"}


def test_every_header_of_the_page_is_in_the_program() -> None:
    named = set(HEADER.findall(BOTH))
    assert len(named) > 30
    low = CODE.lower()
    assert {name for name in named if name.lower() not in low} == set()


def test_every_header_of_the_program_is_in_the_page() -> None:
    spelled = {name.lower(): name for name in HEADER.findall(CODE)}
    here = BOTH.lower()
    assert {name for low, name in spelled.items() if low not in here} <= ORDINARY


async def allowed(site: Site, path: str) -> str:
    """Return which methods a path has, by asking with one that nothing has."""
    reply = await site.raw("BREW", path)
    assert (reply.status, reply.json["code"]) == (405, "METHOD_NOT_ALLOWED"), (path, reply)
    return reply.get("Allow") or ""


@pytest.mark.usefixtures("autojump_clock")
async def test_every_route_has_the_methods_that_the_page_says() -> None:
    assert len(ROUTES) == 15
    async with serving() as site:
        assert (await site.raw("PUT", "/agents")).status == 201
        await site.make("notes/doc")
        for paths, methods in ROUTES:
            for path in re.findall(r"`([^`]+)`", paths):
                path = path.replace("{stream}", "/v1/stream/{name}").replace("{offset}", "0" * 16)
                for word, meaning in PLACES.items():
                    path = path.replace(word, meaning)
                assert await allowed(site, path) == methods, path

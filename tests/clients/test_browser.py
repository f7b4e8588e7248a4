"""Headless Chromium: pages of this host over TLS and HTTP/2, and a page of another site."""

import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.clients.conftest import Program
from tests.support.daemon import Daemon
from tools.node import Node

pytestmark = [pytest.mark.system, pytest.mark.slow]

CHROMIUM = Path("/usr/bin/chromium")
TEXT = {"Content-Type": "text/plain"}


@pytest.fixture(scope="session")
def _chromium() -> None:
    """tools/test installs Debian's Chromium where it may."""
    if not CHROMIUM.exists():
        pytest.skip("not run: no Chromium")


@pytest.fixture
def client(tls_daemon: Daemon) -> Iterator[httpx.Client]:
    """A writer beside the browser."""
    assert tls_daemon.certificates is not None
    trust = ssl.create_default_context(cafile=tls_daemon.certificates.authority)
    with httpx.Client(verify=trust, headers=TEXT) as opened:
        yield opened


@pytest.mark.usefixtures("_chromium")
def test_a_native_event_source_resumes_after_a_crash_without_repeats(
    tls_daemon: Daemon, prepared_node: Node, client: httpx.Client
) -> None:
    url = tls_daemon.stream("browser")
    assert client.put(url, content="one").status_code == 201
    with Program(prepared_node.script("browser.mjs", "resume", url)) as browser:
        browser.told("following")
        assert client.post(url, content="two").status_code == 204
        browser.told("live")
        tls_daemon.kill9()
        tls_daemon.start()
        assert client.post(url, content="three").status_code == 204
        browser.tell("up")
        assert browser.told("seen")["seen"] == ["one", "two", "three"]
        assert browser.told("protocols")["protocols"] == ["h2"]


@pytest.mark.usefixtures("_chromium")
def test_twelve_event_sources_of_one_page_are_live_at_once(
    tls_daemon: Daemon, prepared_node: Node, client: httpx.Client
) -> None:
    url = tls_daemon.stream("browser")
    assert client.put(url, content="hello").status_code == 201
    with Program(prepared_node.script("browser.mjs", "many", url)) as browser:
        assert browser.told("seen")["seen"] == ["hello"] * 12
        assert browser.told("protocols")["protocols"] == ["h2"]


@pytest.mark.usefixtures("_chromium")
@pytest.mark.parametrize(
    ("script", "what", "expected"),
    [("upload", "text", "one two three"), ("binary", "seen", [0, 255, 254])],
    ids=["streams-an-upload-and-reads-it-by-sse", "of-another-origin-reads-binary-sse-as-bytes"],
)
def test_a_page(
    tls_daemon: Daemon, prepared_node: Node, script: str, what: str, expected: object
) -> None:
    command = prepared_node.script("browser.mjs", script, tls_daemon.stream("browser"))
    with Program(command) as browser:
        assert browser.told(what)[what] == expected
        assert browser.told("protocols")["protocols"] == ["h2"]


@pytest.mark.usefixtures("_chromium")
def test_a_page_of_another_site_neither_reads_nor_changes_anything(
    daemon: Daemon, prepared_node: Node
) -> None:
    url = daemon.stream("private")
    with httpx.Client(headers=TEXT) as client:
        assert client.put(url, content="mine").status_code == 201
        with Program(prepared_node.script("browser.mjs", "foreign", url)) as browser:
            tried = browser.told("tried")["tried"]
            browser.told("protocols")
        assert tried == {
            "read": "failed",
            "simple": "failed",
            "append": "failed",
            "remove": "failed",
            "make": "failed",
            "image": "failed",
            "script": "failed",
            "form": "sent",
            "rebound": "opaque",  # sent, and refused without the page's knowing
        }
        assert client.get(f"{url}?offset=-1").text == "mine"
        assert client.head(f"{url}-new").status_code == 404
        assert client.head(url).headers["Stream-Byte-Count"] == "4"


@pytest.mark.usefixtures("_chromium")
def test_stored_html_does_not_run(daemon: Daemon, prepared_node: Node) -> None:
    url = daemon.stream("page")
    body = "<title>shown</title><script>document.title = 'ran'</script>"
    kind = {"Content-Type": "text/html"}
    assert httpx.put(url, content=body, headers=kind).status_code == 201
    with Program(prepared_node.script("browser.mjs", "stored", url)) as browser:
        assert browser.told("title")["title"] == "shown"
        browser.told("protocols")

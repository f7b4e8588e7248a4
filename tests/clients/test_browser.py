"""Headless Chromium over TLS and HTTP/2, from a page of another origin."""

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
def test_a_page_streams_an_upload_and_reads_it_back_by_sse(
    tls_daemon: Daemon, prepared_node: Node
) -> None:
    command = prepared_node.script("browser.mjs", "upload", tls_daemon.stream("browser"))
    with Program(command) as browser:
        assert browser.told("text")["text"] == "one two three"
        assert browser.told("protocols")["protocols"] == ["h2"]


@pytest.mark.usefixtures("_chromium")
def test_a_page_of_another_origin_reads_binary_sse_as_bytes(
    tls_daemon: Daemon, prepared_node: Node
) -> None:
    command = prepared_node.script("browser.mjs", "binary", tls_daemon.stream("browser"))
    with Program(command) as browser:
        assert browser.told("seen")["seen"] == [0, 255, 254]
        assert browser.told("protocols")["protocols"] == ["h2"]

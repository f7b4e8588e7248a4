"""curl, as people try a server first: HTTP/1.1, HTTP/2, following by SSE, chunked upload."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.daemon import Daemon
from tests.support.patience import PATIENCE_S

pytestmark = [pytest.mark.system]

TEXT = ("-H", "Content-Type: text/plain")
PRIOR_KNOWLEDGE = "--http2-prior-knowledge"


@pytest.fixture(scope="module", autouse=True)
def _curl_speaks_http2() -> None:
    if shutil.which("curl") is None:
        pytest.skip("not run: no curl; on Debian: apt-get install curl")
    version = subprocess.run(["curl", "--version"], capture_output=True, text=True, check=True)
    if "HTTP2" not in version.stdout:
        pytest.fail("this curl lacks HTTP/2; Debian's package curl has it")


def curl(*arguments: str, data: bytes | None = None) -> tuple[str, str]:
    """Return what curl wrote to stdout and to stderr; it must succeed."""
    command = ["curl", "-sS", "--max-time", str(PATIENCE_S), *arguments]
    done = subprocess.run(command, input=data, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout.decode(), done.stderr.decode()


def status_of(*arguments: str, data: bytes | None = None) -> tuple[int, str]:
    """Return the status and the HTTP version of the answer."""
    out, _ = curl("-o", "/dev/null", "-w", "%{http_code} %{http_version}", *arguments, data=data)
    status, version = out.split()
    return int(status), version


@pytest.mark.parametrize(("option", "version"), [("--http1.1", "1.1"), (PRIOR_KNOWLEDGE, "2")])
def test_create_append_read_close_and_delete_work(
    daemon: Daemon, option: str, version: str
) -> None:
    url = daemon.stream("curl")
    assert status_of(option, "-X", "PUT", *TEXT, url) == (201, version)
    assert status_of(option, *TEXT, "--data-binary", "hello, ", url) == (204, version)
    assert status_of(option, *TEXT, "--data-binary", "world", url) == (204, version)
    assert curl(option, f"{url}?offset=-1")[0] == "hello, world"
    head, _ = curl(option, "-I", url)
    assert "stream-next-offset: " in head.lower()
    assert status_of(option, "-X", "POST", "-H", "Stream-Closed: true", url) == (204, version)
    assert status_of(option, *TEXT, "--data-binary", "late", url) == (409, version)
    assert status_of(option, "-X", "DELETE", url) == (204, version)
    assert status_of(option, url) == (404, version)


def test_tls_agrees_on_http2(tls_daemon: Daemon) -> None:
    assert tls_daemon.certificates is not None
    trust = ("--cacert", str(tls_daemon.certificates.authority))
    assert status_of(*trust, "-X", "PUT", *TEXT, tls_daemon.stream("curl")) == (201, "2")
    assert status_of(*trust, "--http1.1", tls_daemon.stream("curl")) == (200, "1.1")


@pytest.mark.parametrize("option", ["--http1.1", PRIOR_KNOWLEDGE])
def test_sse_shows_each_append_as_it_comes_and_ends_with_the_stream(
    daemon: Daemon, option: str
) -> None:
    url = daemon.stream("curl")
    assert status_of("-X", "PUT", *TEXT, "--data-binary", "early", url)[0] == 201
    follow = ["curl", "-sS", "-N", option, "--max-time", str(PATIENCE_S)]
    with subprocess.Popen(
        [*follow, f"{url}?offset=-1&live=sse"], stdout=subprocess.PIPE, text=True
    ) as reading:
        assert reading.stdout is not None
        seen = []
        for line in reading.stdout:
            seen.append(line.rstrip("\n"))
            if line == "data:early\n":
                assert status_of(*TEXT, "--data-binary", "two\nlines", url)[0] == 204
            if line == "data:lines\n":
                closing = ("-H", "Stream-Closed: true", "--data-binary", "end")
                assert status_of(*TEXT, *closing, url)[0] == 204
        assert reading.wait() == 0
    data = [line for line in seen if line.startswith("data:") and "{" not in line]
    assert data == ["data:early", "data:two", "data:lines", "data:end"]
    assert '"streamClosed":true' in "".join(seen)


def test_chunked_upload_waits_for_100_continue(daemon: Daemon, tmp_path: Path) -> None:
    url = daemon.stream("curl")
    assert status_of("-X", "PUT", "-H", "Content-Type: application/octet-stream", url)[0] == 201
    body = bytes(range(256)) * 8192  # 2 MiB: more than one buffer anywhere on the way.
    unknown_length = ("-H", "Transfer-Encoding: chunked", "-H", "Expect: 100-continue")
    kind = ("-H", "Content-Type: application/octet-stream")
    # Without the answer 100 curl would wait this long before it sends, and then time out.
    patience = ("--expect100-timeout", str(2 * PATIENCE_S), "--max-time", str(PATIENCE_S))
    _, spoken = curl(
        "-v", *patience, "-X", "POST", "-T", "-", *unknown_length, *kind, url, data=body
    )
    assert "< HTTP/1.1 100 Continue" in spoken
    assert "< HTTP/1.1 204" in spoken
    curl("-o", str(tmp_path / "got"), f"{url}?offset=-1")
    assert (tmp_path / "got").read_bytes() == body


def test_a_large_body_over_http2_comes_back_whole(daemon: Daemon, tmp_path: Path) -> None:
    url = daemon.stream("curl")
    kind = ("-H", "Content-Type: application/octet-stream")
    body = bytes(range(256)) * 8192
    sent = status_of(PRIOR_KNOWLEDGE, "-X", "PUT", *kind, "--data-binary", "@-", url, data=body)
    assert sent == (201, "2")
    curl(PRIOR_KNOWLEDGE, "-o", str(tmp_path / "got"), f"{url}?offset=-1")
    assert (tmp_path / "got").read_bytes() == body

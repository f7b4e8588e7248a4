"""The real process: tokens over TLS, both versions of HTTP, mutual TLS, where it may listen."""

import json
import signal
import ssl
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import trustme

from tests.service.guards import bearer, write
from tests.support.daemon import ROOT, Daemon
from tests.support.patience import PATIENCE_S

pytestmark = [pytest.mark.system]

VARIES = "Accept, Accept-Encoding, Authorization, Origin"
TOKENS = {
    "t0ken-of-root": "scopes=read,write,admin",
    "t0ken-of-team-a": "scopes=read,write prefix=/v1/stream/team-a",
}


def client(daemon: Daemon, **more: object) -> httpx.Client:
    assert daemon.certificates is not None
    verify = ssl.create_default_context(cafile=str(daemon.certificates.authority))
    return httpx.Client(base_url=daemon.url, verify=verify, **more)  # type: ignore[arg-type]


def test_tokens_over_tls_on_both_versions_and_nowhere_in_the_log(tmp_path: Path) -> None:
    file = write(tmp_path / "tokens", TOKENS)
    with Daemon(tmp_path, tls=True, settings={"access.tokens_file": file}) as daemon:
        metrics = ""
        for newer in (False, True):
            with client(daemon, http2=newer) as http:
                name = f"/v1/stream/team-a/{newer}"
                text = {"Content-Type": "text/plain"}
                assert http.put(name, headers=text).status_code == 401
                assert http.put(name, headers=bearer("t0ken-of-team-a", **text)).status_code == 201
                done = http.post(name, headers=bearer("t0ken-of-team-a", **text), content=b"hello")
                assert done.http_version == ("HTTP/2" if newer else "HTTP/1.1")
                assert done.status_code == 204
                read = http.get(f"{name}?offset=-1", headers=bearer("t0ken-of-team-a"))
                assert (read.content, read.headers["Vary"]) == (b"hello", VARIES)
                assert read.headers["Cache-Control"].startswith("private")
                denied = http.put("/v1/stream/team-b", headers=bearer("t0ken-of-team-a", **text))
                assert (denied.status_code, denied.json()["code"]) == (403, "PERMISSION_DENIED")
                assert 'error="insufficient_scope"' in denied.headers["WWW-Authenticate"]
                assert http.get("/-/readyz").json() == {"status": "ready"}
                assert http.get("/-/metrics", headers=bearer("t0ken-of-team-a")).status_code == 403
                metrics = http.get("/-/metrics", headers=bearer("t0ken-of-root")).text
        assert 'durastreamd_http_connections{protocol="h2"} 1.0' in metrics
        assert 'durastreamd_append_requests_total{result="new"} 2.0' in metrics
        assert 'durastreamd_auth_failures_total{reason="missing"} 2.0' in metrics
    log = daemon.stderr() + (tmp_path / "durastreamd.stdout").read_text()
    for secret in ("Bearer", "t0ken"):
        assert secret not in log


def test_as_shipped_pages_of_other_sites_get_nothing(tmp_path: Path) -> None:
    evil = "https://evil.example"
    text = {"Content-Type": "text/plain"}
    socket_path = tmp_path / "s.sock"
    with Daemon(tmp_path, arguments=["--listen", f"unix:{socket_path}"]) as daemon:
        name = "/v1/stream/s"
        with httpx.Client(base_url=daemon.url) as http:
            assert http.put(name, headers=text, content=b"mine").status_code == 201
            ways = ("GET", "POST", "PUT", "DELETE")
            for method in ways:
                head = {**text, "Origin": evil}
                done = http.request(
                    method, name, headers=head, content=b"" if method == "GET" else b"x"
                )
                assert (done.status_code, done.json()["reason"]) == (403, "FOREIGN_PAGE")
                assert "Access-Control-Allow-Origin" not in done.headers
                done = http.request(method, name, headers={**text, "Host": "evil.example"})
                assert (done.status_code, done.json()["code"]) == (421, "MISDIRECTED")
                assert "server.hosts" in done.json()["detail"]
            preflight = http.options(name, headers={"Origin": evil})
            assert preflight.status_code == 204
            assert "Access-Control-Allow-Origin" not in preflight.headers
            page = {**text, "Origin": "http://localhost:3000"}
            done = http.post(name, headers=page, content=b" too")
            assert done.headers["Access-Control-Allow-Origin"] == page["Origin"]
            assert http.get(name + "?offset=-1").content == b"mine too"
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(socket_path))) as http:
            there = "http://streams.example/v1/stream/s"
            assert http.get(there + "?offset=-1").content == b"mine too"
            assert http.delete(there, headers={"Origin": evil}).status_code == 403


def test_names_and_pages_are_reloaded_and_tokens_open_to_all(tmp_path: Path) -> None:
    file, tokens = tmp_path / "a.toml", write(tmp_path / "tokens", TOKENS)
    file.write_text("")
    proxied = {"Host": "streams.example", "Origin": "https://app.example"}
    with Daemon(tmp_path, arguments=["--config", str(file)]) as daemon:
        assert httpx.get(daemon.url + "/health", headers=proxied).status_code == 421
        file.write_text("[server]\nhosts = ['streams.example']\n")
        daemon.signal(signal.SIGHUP)
        daemon.wait_for("changed: server.hosts")
        assert httpx.get(daemon.url + "/health", headers=proxied).status_code == 403
        since = len(daemon.stderr())
        file.write_text(f"[access]\ntokens_file = '{tokens}'\n")
        daemon.signal(signal.SIGHUP)
        daemon.wait_for("reloaded", since)
        open_to_all = httpx.get(daemon.url + "/health", headers=proxied)
        assert open_to_all.status_code == 200
        assert open_to_all.headers["Access-Control-Allow-Origin"] == "*"


def test_a_client_without_a_certificate_does_not_get_in(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "clients.pem")
    settings = {"tls.client_ca": tmp_path / "clients.pem"}
    with Daemon(tmp_path, tls=True, settings=settings) as daemon:
        with client(daemon) as stranger, pytest.raises(httpx.HTTPError):
            stranger.get("/-/healthz")
        issued = authority.issue_cert("reader@example.org")
        with issued.private_key_and_cert_chain_pem.tempfile() as pem:
            assert daemon.certificates is not None
            context = ssl.create_default_context(cafile=str(daemon.certificates.authority))
            context.load_cert_chain(pem)
            with httpx.Client(base_url=daemon.url, verify=context) as known:
                assert known.put("/v1/stream/s").status_code == 201
                read = known.get("/v1/stream/s?offset=-1")
                assert read.headers["Cache-Control"].startswith("private")


def test_listening_for_everybody_is_refused_unless_said(tmp_path: Path) -> None:
    refused = subprocess.run(
        [sys.executable, "-m", "durastreamd", "--data-dir", str(tmp_path / "data"),
         "--listen", "127.0.0.1:0", "--listen", "0.0.0.0:0"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    assert refused.returncode == 78, refused.stderr
    assert "access.allow_anonymous = true" in refused.stderr


def test_a_wrong_file_is_named_at_the_start(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("sha256:12 scopes=read\n")
    refused = subprocess.run(
        [sys.executable, "-m", "durastreamd", "--data-dir", str(tmp_path / "data"),
         "--listen", "127.0.0.1:0", "--set", f"access.tokens_file={file}"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    assert refused.returncode == 78
    assert f"{file}:1: a line begins with sha256:" in refused.stderr


def test_what_the_page_says_fits_what_health_says(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon, httpx.Client(base_url=daemon.url) as http:
        http.put("/v1/stream/s")
        assert http.get("/health").json()["streams"] == 1
        assert json.loads(http.get("/-/healthz").text)["status"] == "ok"
        assert "durastreamd_streams 1.0" in http.get("/-/metrics").text

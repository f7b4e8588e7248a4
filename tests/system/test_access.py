"""The real process: tokens over TLS, both versions of HTTP, mutual TLS, where it may listen."""

import json
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
                assert (read.content, read.headers["Vary"]) == (b"hello", "Authorization, Accept")
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

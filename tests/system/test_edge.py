"""The configurations of examples/edge, run: what is shared is shared, and nothing else."""

import getpass
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from tests.service.guards import bearer, write
from tests.support.daemon import ROOT, Daemon
from tests.support.patience import PATIENCE_S

EXAMPLES = ROOT / "examples" / "edge"
CROWD = 100  # more of them cost the server no more, but the tests
HANDFUL = 5
JSON = {"Content-Type": "application/json"}
TEXT = {"Content-Type": "text/plain"}
TOKENS = {
    "t0ken-of-root": "scopes=read,write,admin",
    "t0ken-of-team-a": "scopes=read,write prefix=/v1/stream/team-a",
    "t0ken-of-team-b": "scopes=read,write prefix=/v1/stream/team-b",
}
# What has no cache of its own that fits stands before one that has.
BEHIND = {"nginx": "", "varnish": "", "haproxy": "varnish", "caddy": "nginx"}
PROGRAMS = {"nginx": "nginx", "varnish": "varnishd", "haproxy": "haproxy", "caddy": "caddy"}
pytestmark = [pytest.mark.system, pytest.mark.slow]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def nginx(home: Path, port: int, origin: int) -> list[str]:
    text = (EXAMPLES / "nginx.conf").read_text()
    text = text.replace("/var/cache/nginx/durastreamd", str(home / "cache"))
    text = text.replace("listen 80;", f"listen 127.0.0.1:{port};")
    (home / "site.conf").write_text(text.replace("127.0.0.1:4437", f"127.0.0.1:{origin}"))
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = "".join(f"{kind}_temp_path {home}/{kind};\n" for kind in kinds)
    (home / "nginx.conf").write_text(
        f"daemon off;\nuser {getpass.getuser()};\npid {home}/pid;\nerror_log stderr;\n"
        "events { worker_connections 2048; }\n"
        f"http {{\naccess_log off;\n{paths}include {home}/site.conf;\n}}\n"
    )
    return ["nginx", "-p", str(home), "-e", "stderr", "-c", str(home / "nginx.conf")]


def varnish(home: Path, port: int, origin: int) -> list[str]:
    text = (EXAMPLES / "varnish.vcl").read_text()
    (home / "edge.vcl").write_text(text.replace('"4437"', f'"{origin}"'))
    place = ["-n", str(home / "work"), "-f", str(home / "edge.vcl"), "-a", f"127.0.0.1:{port}"]
    return ["varnishd", "-F", "-j", "none", "-s", "malloc,32m", "-T", "none", *place]


def haproxy(home: Path, port: int, origin: int) -> list[str]:
    text = (EXAMPLES / "haproxy.cfg").read_text().replace("bind :80", f"bind 127.0.0.1:{port}")
    (home / "edge.cfg").write_text(text.replace("127.0.0.1:4437", f"127.0.0.1:{origin}"))
    return ["haproxy", "-db", "-f", str(home / "edge.cfg")]


def caddy(home: Path, port: int, origin: int) -> list[str]:
    text = (EXAMPLES / "Caddyfile").read_text().replace(":80 {", f"http://127.0.0.1:{port} {{")
    text = "{\n\tadmin off\n}\n" + text.replace("127.0.0.1:4437", f"127.0.0.1:{origin}")
    (home / "Caddyfile").write_text(text)
    return ["caddy", "run", "--adapter", "caddyfile", "--config", str(home / "Caddyfile")]


MADE: Mapping[str, Callable[[Path, int, int], list[str]]] = {
    "nginx": nginx,
    "varnish": varnish,
    "haproxy": haproxy,
    "caddy": caddy,
}


@contextmanager
def proxy(name: str, home: Path, origin: int) -> Iterator[int]:
    """Run a proxy before a port; give its own."""
    home.mkdir()
    port = free_port()
    environment = {"HOME": str(home), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    with (home / "said").open("wb") as said:
        process = subprocess.Popen(
            MADE[name](home, port, origin), stdout=said, stderr=said, cwd=home, env=environment
        )
    try:
        until = time.monotonic() + PATIENCE_S
        while True:
            assert process.poll() is None, (home / "said").read_text()
            assert time.monotonic() < until, (home / "said").read_text()
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.02)
        yield port
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


class Edge(NamedTuple):
    """A server with a proxy in front of it."""

    daemon: Daemon
    url: str
    http: httpx.Client  # by way of the proxy

    def asked(self, mode: str) -> int:
        """How many reads of a kind the server itself was asked for."""
        page = httpx.get(f"{self.daemon.url}/-/metrics", headers=bearer("t0ken-of-root")).text
        found = re.search(rf'durastreamd_read_requests_total{{mode="{mode}"}} ([0-9.]+)', page)
        assert found is not None, page
        return int(float(found[1]))


@contextmanager
def edge(name: str, home: Path, **settings: object) -> Iterator[Edge]:
    for program in filter(None, (name, BEHIND[name])):
        if shutil.which(PROGRAMS[program], path="/usr/sbin:/usr/bin") is None:
            pytest.skip(f"{PROGRAMS[program]} is not installed; tools/test installs it as root")
    chosen = {
        "reads.long_poll_s": 10,
        "server.hosts": "*",
        "server.trusted_proxies": "127.0.0.1",
        "log.access": "all",
        **settings,
    }
    with ExitStack() as stack:
        daemon = stack.enter_context(Daemon(home, settings=chosen))
        port = daemon.port
        if BEHIND[name]:
            port = stack.enter_context(proxy(BEHIND[name], home / "behind", port))
        port = stack.enter_context(proxy(name, home / "front", port))
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        url = f"http://127.0.0.1:{port}"
        http = httpx.Client(base_url=url, timeout=PATIENCE_S, limits=limits)
        yield Edge(daemon, url, stack.enter_context(http))


def crowd(seen: Edge, path: str, count: int) -> "list[Future[httpx.Response]]":
    """Ask for the same, many at a time."""
    pool = ThreadPoolExecutor(count)
    asked = [pool.submit(seen.http.get, path) for _ in range(count)]
    pool.shutdown(wait=False)
    return asked


every_proxy = pytest.mark.parametrize("name", PROGRAMS)


def check_crowd(seen: Edge) -> None:
    path = "/v1/stream/crowd"
    assert seen.http.put(path, headers=TEXT, content=b"hello").status_code == 201
    tail = seen.http.head(path).headers["Stream-Next-Offset"]
    waiting = crowd(seen, f"{path}?offset={tail}&live=long-poll&cursor=7", CROWD)
    until = time.monotonic() + PATIENCE_S
    while seen.asked("longpoll") == 0:
        assert time.monotonic() < until
    assert seen.http.post(path, headers=TEXT, content=b" world").status_code == 204
    answers = {(each.result().status_code, each.result().content) for each in waiting}
    assert answers == {(200, b" world")}
    assert seen.asked("longpoll") <= HANDFUL
    read = crowd(seen, f"{path}?offset=-1", CROWD)
    assert {each.result().content for each in read} == {b"hello world"}
    assert seen.asked("catchup") <= HANDFUL


@every_proxy
def test_a_crowd_costs_a_handful_and_all_else_is_as_without_a_proxy(
    name: str, tmp_path: Path
) -> None:
    with edge(name, tmp_path) as seen:
        check_crowd(seen)
        path, http = "/v1/stream/s", seen.http
        spoofed = {"X-Forwarded-Host": "evil.example", "X-Forwarded-Proto": "https"}
        spoofed |= {
            "X-Forwarded-For": "192.0.2.66",
            "Forwarded": "for=192.0.2.66",
        }
        made = http.put(path, headers={**JSON, **spoofed}, content="[1]")
        assert (made.status_code, made.headers["Location"]) == (201, seen.url + path)
        log = ""
        until = time.monotonic() + PATIENCE_S
        while f"method=PUT path={path} " not in log:  # written after the answer
            assert time.monotonic() < until
            log = seen.daemon.stderr()
        assert "evil.example" not in log
        assert "192.0.2.66" not in log
        # One form is not given out for another, nor an old end for the one of now.
        plain = http.get(f"{path}?offset=-1")
        lines = http.get(f"{path}?offset=-1", headers={"Accept": "application/x-ndjson"})
        assert (plain.content, lines.content) == (b"[1]", b"1\n")
        assert http.post(path, headers=JSON, content="2").is_success
        tail = http.head(path).headers["Stream-Next-Offset"]
        assert tail > plain.headers["Stream-Next-Offset"]
        # An event is there before the next one is made.
        with http.stream("GET", f"{path}?offset={tail}&live=sse") as events:
            lines_of = events.iter_lines()
            assert next(lines_of).startswith("event: control")
            for number in range(3, 6):
                http.post(path, headers=JSON, content=str(number))
                assert any(line == f"data:[{number}]" for line in _until_data(lines_of))
        # The end of an open stream is not kept, so nobody misses that it is closed.
        tail = http.head(path).headers["Stream-Next-Offset"]
        for _ in range(2):
            assert "Stream-Closed" not in http.get(f"{path}?offset={tail}").headers
        assert http.post(path, headers={"Stream-Closed": "true"}).status_code == 204
        for query in ("", "&live=long-poll", "&live=long-poll&cursor=1"):
            closed = http.get(f"{path}?offset={tail}{query}")
            assert closed.headers["Stream-Closed"] == "true", query


def _until_data(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        yield line
        if line.startswith("data:["):
            return


@pytest.mark.parametrize("name", [name for name, behind in BEHIND.items() if not behind])
def test_an_answer_to_one_token_is_given_to_no_other(name: str, tmp_path: Path) -> None:
    file = write(tmp_path / "tokens", TOKENS)
    with edge(name, tmp_path, **{"access.tokens_file": file}) as seen:
        path, http = "/v1/stream/team-a/s", seen.http
        mine, theirs = bearer("t0ken-of-team-a"), bearer("t0ken-of-team-b")
        assert http.put(path, headers={**mine, **TEXT}, content=b"secret").status_code == 201
        for query in ("?offset=-1", "?offset=-1&live=long-poll&cursor=1"):
            for _ in range(2):
                assert http.get(path + query, headers=mine).content == b"secret"
                assert http.get(path + query, headers=theirs).status_code == 403
                assert http.get(path + query).status_code == 401

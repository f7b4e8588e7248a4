"""The client: patient where it helps, clear where it does not, and one connection for many."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from durastreamd.client import (
    AnswerError,
    Client,
    ClientSettings,
    CutShortError,
    DeniedError,
    ServerRefusedError,
    SettingsError,
    UnreachableError,
    UrlError,
    Watch,
    shared_client,
)
from durastreamd.client.address import checked
from tests.support.daemon import Daemon
from tests.support.plain_server import PlainServer, Scripted, plain_server

QUICK = ClientSettings(retry_s=5, retry_interval_s=0.001, timeout_s=5)
PROBLEM = (
    b'{"code": "PERMISSION_DENIED", "reason": "STALE_EPOCH", '
    b'"detail": "A producer of this name has epoch 7."}'
)


def furnished(server: PlainServer) -> str:
    server.streams["/v1/stream/a"] = ("application/json", [b"1", b"2"])
    return f"{server.url}/v1/stream/a"


def test_one_connection_serves_many_requests() -> None:
    with plain_server() as server:
        client, url = Client(QUICK), furnished(server)
        for _ in range(5):
            assert client.get(url).body == b"[1, 2]"
        assert server.connections == 1
        client.hang_up()


@pytest.mark.parametrize("status", [429, 502, 503, 0, -1])
def test_it_tries_again_and_gets_there(status: int) -> None:
    with plain_server() as server:
        url = furnished(server)
        server.script += [Scripted(status)] * 3
        client = Client(QUICK)
        assert client.get(url).body == b"[1, 2]"
        assert len(server.seen) >= 4
        client.hang_up()


def test_a_connection_that_lay_idle_too_long_costs_no_wait() -> None:
    with plain_server() as server:
        url = furnished(server)
        client = Client(ClientSettings(retry_s=0))
        client.get(url)
        server.script.append(Scripted(0))
        assert client.get(url).status == 200
        client.hang_up()


def test_it_waits_as_long_as_it_is_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    with plain_server() as server:
        url = furnished(server)
        server.script.append(Scripted(503, {"Retry-After": "1"}))
        client = Client(QUICK)
        client.get(url)
        assert waits == [1.0]
        server.script.append(Scripted(429, {"Retry-After": "59"}))
        with pytest.raises(ServerRefusedError, match="429"):
            client.get(url)
        client.hang_up()


def test_it_gives_up_with_the_server_s_own_words() -> None:
    with plain_server() as server:
        url = furnished(server)
        server.script.append(Scripted(403, {}, PROBLEM))
        client = Client(QUICK)
        with pytest.raises(ServerRefusedError) as caught:
            client.request("POST", url, {}, b"x")
        assert (caught.value.status, caught.value.code) == (403, "PERMISSION_DENIED")
        assert (caught.value.name, type(caught.value)) == ("STALE_EPOCH", ServerRefusedError)
        said = "403 PERMISSION_DENIED (STALE_EPOCH): A producer of this name has epoch 7."
        assert str(caught.value).endswith(said)
        server.script.append(Scripted(500, {}, b"oh no"))
        with pytest.raises(ServerRefusedError, match="500 Internal Server Error: oh no"):
            client.get(url)
        server.script.append(Scripted(401))
        with pytest.raises(ServerRefusedError, match="401 Unauthorized: the server wants a token"):
            client.head(url)
        assert len(server.seen) == 3, "none is worth another try"
        client.hang_up()


@pytest.mark.parametrize(
    ("status", "code", "tries"),
    [
        (503, "UNAVAILABLE", 3),
        (503, 'UNAVAILABLE", "reason": "DISK_FAILED', 3),
        (503, 'UNAVAILABLE", "reason": "OUTCOME_UNKNOWN_REPEAT', 3),
        (429, "RATE_LIMITED", 3),
        (408, "REQUEST_TIMEOUT", 3),
        (503, "SOMETHING_ELSE", 1),
        (500, "STREAM_DAMAGED", 1),
        (507, "INSUFFICIENT_STORAGE", 1),
    ],
)
def test_the_problem_s_code_says_whether_to_try_again(status: int, code: str, tries: int) -> None:
    refusal = Scripted(status, {}, b'{"code": "%s", "detail": "so"}' % code.encode())
    with plain_server() as server:
        url = furnished(server)
        server.script += [refusal] * 2
        client = Client(QUICK)
        if tries > 1:
            assert client.get(url).status == 200
        else:
            with pytest.raises(ServerRefusedError, match=f"{status} {code[:9]}.*: so"):
                client.get(url)
        assert len(server.seen) == tries
        client.hang_up()


@pytest.mark.parametrize(
    ("status", "body", "denied"),
    [
        (401, b"", True),
        (403, b"go away", True),
        (403, b'{"code": "PERMISSION_DENIED", "detail": "x"}', True),
        (403, PROBLEM, False),
        (404, b"", False),
    ],
)
def test_a_refused_token_is_told_from_other_refusals(
    status: int, body: bytes, *, denied: bool
) -> None:
    with plain_server() as server:
        server.script.append(Scripted(status, {}, body))
        client = Client(QUICK)
        with pytest.raises(ServerRefusedError) as caught:
            client.get(f"{server.url}/x")
        assert isinstance(caught.value, DeniedError) == denied
        assert caught.value.problem == (json.loads(body) if body.startswith(b"{") else {})
        client.hang_up()


def test_what_may_not_be_repeated_is_not() -> None:
    with plain_server() as server:
        url = furnished(server)
        server.script += [Scripted(0)]
        client = Client(QUICK)
        with pytest.raises(UnreachableError):
            client.request("POST", url, {}, b"x", repeatable=False)
        assert len(server.seen) == 1
        client.get(url)
        server.script += [Scripted(0)]
        with pytest.raises(UnreachableError):  # on a kept connection it would be sent again
            client.request("POST", url, {}, b"x", repeatable=False)
        assert len(server.seen) == 3
        client.hang_up()


def test_nobody_there_is_told_with_the_address() -> None:
    with plain_server() as server:
        url = furnished(server)
    with pytest.raises(UnreachableError, match=r"no answer from http://127\.0\.0\.1:\d+ "):
        Client(ClientSettings(retry_s=0)).get(url)
    with pytest.raises(UrlError, match="not a URL of a server"):
        Client().get("nonsense")


def test_a_body_cut_short_is_never_taken_for_a_whole_one() -> None:
    with plain_server() as server:
        server.script.append(Scripted(-1))
        client = Client(QUICK)
        with client.reading(f"{server.url}/x") as body:
            with pytest.raises(CutShortError, match="96 bytes before its end"):
                list(body.pieces())
        client.hang_up()


def test_tokens_and_headers_go_with_every_request(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with plain_server() as server:
        url = furnished(server)
        client = Client(ClientSettings(token="one", headers=(("X-Team", "blue"),)))
        client.get(url, {"Accept": "text/plain"})
        filed = Client(ClientSettings(token_file=str(file)))
        for token in ("two", "Basic three"):
            file.write_text(token + "\n")
            filed.get(url)
        sent = [headers for _, _, headers in server.seen]
        assert [each["authorization"] for each in sent] == [
            "Bearer one",
            "Bearer two",
            "Basic three",
        ]
        assert (sent[0]["x-team"], sent[0]["accept"]) == ("blue", "text/plain")
        client.hang_up()
        filed.hang_up()


def test_tls_trusts_the_authority_it_is_given_and_no_other(tmp_path: Path) -> None:
    with Daemon(tmp_path, tls=True) as daemon:
        assert daemon.certificates is not None
        url = daemon.stream("a")
        trusting = Client(ClientSettings(ca_file=str(daemon.certificates.authority)))
        assert trusting.request("PUT", url, {"Content-Type": "text/plain"}).status == 201
        with pytest.raises(UnreachableError, match="CERTIFICATE_VERIFY_FAILED"):
            Client(QUICK).head(url)
        careless = Client(ClientSettings(verify=False))
        assert careless.head(url).status == 200
        careless.hang_up()
        trusting.hang_up()


def test_no_more_is_held_than_the_settings_allow() -> None:
    settings = ClientSettings(answer_bytes_max=100)
    with plain_server() as server:
        server.script += [Scripted(200, {}, b"x" * size) for size in (100, 101, 101, 5000)]
        client = Client(settings)
        assert client.get(server.url).body == b"x" * 100
        with pytest.raises(AnswerError, match="larger than the 100 bytes"):
            client.get(server.url)
        with client.reading(server.url) as body, pytest.raises(AnswerError):
            list(body.lines())
        with client.reading(server.url) as body:
            assert sum(map(len, body.pieces(7))) == 5000, "by pieces there is no end to it"
        client.hang_up()


@pytest.mark.parametrize(
    "settings",
    [
        ClientSettings(token_file="/no/token"),
        ClientSettings(ca_file="/no/ca.pem"),
        ClientSettings(certificate_file="/no/a.pem"),
    ],
)
def test_a_file_that_is_missing_is_named_at_once(settings: ClientSettings) -> None:
    with pytest.raises(SettingsError, match=r"cannot read .*/no/"):
        Client(settings).get("https://127.0.0.1:9/")


def test_a_unix_socket_is_an_address_like_any_other(tmp_path: Path) -> None:
    socket = tmp_path / "a b.sock"
    with Daemon(tmp_path, arguments=["--listen", f"unix:{socket}"]) as daemon:
        url = checked(f"unix:{socket}:/v1/stream/a")
        client = Client(QUICK)
        assert client.request("PUT", url, {"Content-Type": "text/plain"}, b"hello").status == 201
        assert client.get(url).body == b"hello"
        assert client.get(daemon.stream("a")).body == b"hello"
        with client.reading(f"{url}?offset=-1") as body:
            assert body.whole() == b"hello"
        client.hang_up()
    with pytest.raises(UnreachableError, match=f"no answer from unix:{socket}"):
        Client(ClientSettings(retry_s=0)).get(url)


def test_news_of_one_of_many_end_the_wait(tmp_path: Path) -> None:
    with Daemon(tmp_path, settings={"reads.long_poll_s": 60}) as daemon:
        client = Client(QUICK)
        urls = [daemon.stream(name) for name in "abc"]
        for url in urls:
            client.request("PUT", url, {"Content-Type": "text/plain"})
        offset = client.head(urls[0]).headers["stream-next-offset"]
        watch = Watch(client)
        watch.wait(dict.fromkeys(urls, offset), 0.05)  # nothing: the time ends it
        client.request("POST", urls[1], {"Content-Type": "text/plain"}, b"x")
        watch.wait(dict.fromkeys(urls, offset), 600)  # one that was left open tells
        watch.hang_up()
        client.hang_up()


def test_it_needs_the_standard_library_alone() -> None:
    """Executors may get the package as a zip: no trio, no msgspec, nothing."""
    program = (
        "import sys; before = set(sys.modules); import durastreamd.client;"
        "found = {name.partition('.')[0] for name in set(sys.modules) - before};"
        "print(sorted(found - sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.decode().strip() == "['durastreamd']"


def test_equal_settings_share_a_client() -> None:
    assert shared_client(QUICK) is shared_client(ClientSettings(**vars(QUICK)))
    assert shared_client(QUICK) is not shared_client(ClientSettings())

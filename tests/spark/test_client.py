"""The client: patient where it helps, clear where it does not, and one connection for many."""

import http.client
from pathlib import Path

import pytest

from durastreamd.spark.client import (
    Client,
    ClientSettings,
    ServerRefusedError,
    ServerUnreachableError,
    shared_client,
)
from tests.spark.plain_server import PlainServer, Scripted, plain_server
from tests.support.daemon import Daemon

QUICK = ClientSettings(retry_s=5, retry_interval_s=0.001, timeout_s=5)
PROBLEM = b'{"code": "STALE_EPOCH", "detail": "A producer of this name has epoch 7."}'


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
        assert (caught.value.status, caught.value.code) == (403, "STALE_EPOCH")
        assert str(caught.value).endswith("A producer of this name has epoch 7.")
        server.script.append(Scripted(500, {}, b"oh no"))
        with pytest.raises(ServerRefusedError, match="500 Internal Server Error: oh no"):
            client.get(url)
        server.script.append(Scripted(401))
        with pytest.raises(ServerRefusedError, match=r"401 Unauthorized: .* set option authToken"):
            client.head(url)
        assert len(server.seen) == 3, "none is worth another try"
        client.hang_up()


def test_what_may_not_be_repeated_is_not() -> None:
    with plain_server() as server:
        url = furnished(server)
        server.script += [Scripted(0)]
        client = Client(QUICK)
        with pytest.raises(ServerUnreachableError):
            client.request("POST", url, {}, b"x", repeatable=False)
        assert len(server.seen) == 1
        client.hang_up()


def test_nobody_there_is_told_with_the_address() -> None:
    with plain_server() as server:
        url = furnished(server)
    with pytest.raises(ServerUnreachableError, match=r"no answer from http://127\.0\.0\.1:\d+ "):
        Client(ClientSettings(retry_s=0)).get(url)
    with pytest.raises(ServerUnreachableError, match="not the URL of a server"):
        Client().get("nonsense")


def test_a_body_cut_short_is_never_taken_for_a_whole_one() -> None:
    with plain_server() as server:
        server.script.append(Scripted(-1))
        client = Client(QUICK)
        with client.reading(f"{server.url}/x") as body:
            with pytest.raises(http.client.IncompleteRead):
                list(body.pieces())
        client.hang_up()


def test_tokens_and_headers_go_with_every_request(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with plain_server() as server:
        url = furnished(server)
        client = Client(ClientSettings(token="one", headers=(("X-Team", "blue"),)))
        client.get(url, {"Accept": "text/plain"})
        filed = Client(ClientSettings(token_file=str(file)))
        for token in ("two", "three"):
            file.write_text(token + "\n")
            filed.get(url)
        sent = [headers for _, _, headers in server.seen]
        assert [each["authorization"] for each in sent] == [
            "Bearer one",
            "Bearer two",
            "Bearer three",
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
        with pytest.raises(ServerUnreachableError, match="CERTIFICATE_VERIFY_FAILED"):
            Client(QUICK).head(url)
        careless = Client(ClientSettings(verify=False))
        assert careless.head(url).status == 200
        careless.hang_up()
        trusting.hang_up()


def test_equal_settings_share_a_client() -> None:
    assert shared_client(QUICK) is shared_client(ClientSettings(**vars(QUICK)))
    assert shared_client(QUICK) is not shared_client(ClientSettings())

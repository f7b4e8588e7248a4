"""Who may subscribe to what, and what a server that writes nothing still tells."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import trio

from durastreamd.service.access.guard import Guard
from durastreamd.service.access.options import AccessOptions
from tests.service.harness import JSON, TEXT, Reply
from tests.service.subscribing import DS, Place, code

ALL, INSIDE, READER = "a" * 32, "b" * 32, "c" * 32


@pytest.fixture
async def guarded(place: Place, tmp_path: Path) -> Place:
    file = tmp_path / "tokens"
    allowed = {
        ALL: "scopes=read,write,admin name=all",
        INSIDE: "scopes=read,write prefix=/v1/stream/a name=inside",
        READER: "scopes=read prefix=/v1/stream/a name=reader",
    }
    lines = [
        f"sha256:{sha256(token.encode()).hexdigest()} {what}" for token, what in allowed.items()
    ]
    file.write_text("\n".join(lines) + "\n")
    place.site.app.restrict(AccessOptions(tokens_file=str(file)))
    return place


async def ask(place: Place, token: str, method: str, what: str, **body: Any) -> Reply:
    head = {**JSON, "Authorization": f"Bearer {token}"} if token else JSON
    content = json.dumps(body).encode() if body else b""
    return await place.site.ask(method, DS + what, head, content)


def pull(pattern: str, wake: str = "a/wakes") -> dict[str, Any]:
    return {"type": "pull-wake", "pattern": pattern, "wake_stream": wake}


async def test_a_token_subscribes_to_what_it_reaches_and_to_nothing_else(guarded: Place) -> None:
    assert (await ask(guarded, INSIDE, "PUT", "s", **pull("a/**"))).status == 201
    for body in (pull("**"), pull("*"), pull("b/*"), pull("ab/*"), pull("a/**", "wakes")):
        refused = await ask(guarded, INSIDE, "PUT", "t", **body)
        assert (refused.status, code(refused)) == (403, "PERMISSION_DENIED")
    assert (await ask(guarded, ALL, "PUT", "all", **pull("**"))).status == 201
    assert (await ask(guarded, READER, "PUT", "r", **pull("a/**"))).status == 403
    assert (await ask(guarded, READER, "GET", "s")).status == 200
    for token, status in (("", 401), (INSIDE, 403), (READER, 403)):
        assert (await ask(guarded, token, "GET", "all")).status == status
        assert (await ask(guarded, token, "DELETE", "all")).status == status
    linked = await ask(guarded, INSIDE, "POST", "s/streams", streams=["b/x"])
    assert linked.status == 403
    assert (await ask(guarded, READER, "DELETE", "s")).status == 403
    assert (await ask(guarded, INSIDE, "DELETE", "s")).status == 204


async def test_a_wakes_own_token_is_all_that_a_holder_needs(guarded: Place) -> None:
    await ask(guarded, INSIDE, "PUT", "s", **pull("a/*"))
    head = {**TEXT, "Authorization": f"Bearer {ALL}"}
    assert (await guarded.site.ask("PUT", "a/x", head, b"1")).status == 201
    assert (await ask(guarded, "", "POST", "s/claim", worker="w")).status == 401
    claimed = (await ask(guarded, READER, "POST", "s/claim", worker="w")).json
    body = {"wake_id": claimed["wake_id"], "generation": claimed["generation"]}
    assert code(await ask(guarded, ALL, "POST", "s/ack", **body)) == "TOKEN_INVALID"
    assert (await ask(guarded, claimed["token"], "POST", "s/ack", **body)).status == 200


async def test_the_keys_are_for_everybody_and_the_list_for_operators(guarded: Place) -> None:
    assert (await guarded.site.ask("GET", "__ds/jwks.json")).status == 200
    for token, status in (("", 401), (INSIDE, 403), (ALL, 200)):
        reply = await guarded.site.raw(
            "GET", "/v1/stream/__ds/subscriptions", {"Authorization": f"Bearer {token}"}
        )
        assert reply.status == (401 if not token else status)


async def test_a_read_only_server_tells_and_changes_nothing(place: Place) -> None:
    await place.pull("s", streams=["x"])
    place.site.app.admission.guard = Guard(read_only=True)
    place.site.app.subscribing.read_only = True
    assert (await place.look("s"))["id"] == "s"
    assert (await place.site.ask("GET", "__ds/jwks.json")).status == 200
    for method, what in (("PUT", "t"), ("DELETE", "s"), ("POST", "s/claim"), ("POST", "s/ack")):
        reply = await place.site.ask(method, DS + what, JSON, b"{}")
        assert (reply.status, code(reply)) == (405, "METHOD_NOT_ALLOWED")
    with trio.fail_after(5):
        await place.site.app.subscribing.run()  # returns at once: nothing is delivered

"""The public Yjs provider and its server (y-durable-streams) on the real daemon."""

import httpx
import pytest

from tests.clients.conftest import Program
from tests.support.daemon import Daemon
from tools.node import Node

pytestmark = [pytest.mark.system, pytest.mark.slow]

EDITS = 150
UPDATES = "yjs/tests/docs/book/chapter-1/.updates"


def test_three_editors_agree_after_compaction_and_a_killed_server(
    daemon: Daemon, prepared_node: Node
) -> None:
    with Program(prepared_node.script("yjs.mjs", daemon.url, str(EDITS))) as editors:
        first = editors.told("first")
        editors.tell("edit")
        editors.told("editing")
        daemon.kill9()
        daemon.start()
        editors.tell("up")
        said = editors.told("texts")
    texts, maps = said["texts"], said["maps"]
    assert isinstance(texts, list)
    assert isinstance(maps, list)
    assert texts[0] == texts[1] == texts[2]
    for word in (f"ann{3 * EDITS - 1} ", f"bob{2 * EDITS - 1} ", f"cat{EDITS - 1} "):
        assert word in texts[0]
    assert maps[0] == maps[1] == maps[2]
    assert maps[0]["ann9"] == 3 * EDITS - 1
    assert first["snapshot"] != said["snapshot"], "compacted once more"
    updates = httpx.head(daemon.stream(UPDATES))
    assert (updates.status_code, updates.headers.get("Stream-Closed")) == (200, None)

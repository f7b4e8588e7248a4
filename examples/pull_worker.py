"""A worker that asks for work: it claims what is pending, reads it, and moves the cursors.

    examples/pull_worker.py http://127.0.0.1:4437/v1/stream 'jobs/**'

prints every new message until nothing is pending any more. Any number of these may run: one at a
time has the lease, and one that lost it is told so (409 FENCED). Run it again, or let it follow the
stream ``wakes``, whose events say when there is work.
"""

import json
import sys
import urllib.error
import urllib.request

ROOT, PATTERN = sys.argv[1], sys.argv[2]
SUBSCRIPTION = f"{ROOT}/__ds/subscriptions/pull-worker"


def ask(method: str, url: str, body: object = None, token: str = "") -> bytes:
    """Send JSON, return what is answered."""
    head = {"Content-Type": "application/json"}
    if token:
        head["Authorization"] = f"Bearer {token}"
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(url, data, head, method=method)
    with urllib.request.urlopen(request) as answer:
        return bytes(answer.read())


ask("PUT", f"{ROOT}/wakes", [])
ask("PUT", SUBSCRIPTION, {"type": "pull-wake", "pattern": PATTERN, "wake_stream": "wakes"})
while True:
    try:
        work = json.loads(ask("POST", f"{SUBSCRIPTION}/claim", {"worker": "example"}))
    except urllib.error.HTTPError as exc:
        code = json.loads(exc.read())["error"]["code"]
        if code == "NO_PENDING_WORK":
            break
        raise
    pending = [stream for stream in work["streams"] if stream["has_pending"]]
    for stream in pending:
        url = f"{ROOT}/{stream['path']}?offset={stream['acked_offset']}"
        print(stream["path"], ask("GET", url).decode(), flush=True)
    acks = [{"stream": stream["path"], "offset": stream["tail_offset"]} for stream in pending]
    wake = {"wake_id": work["wake_id"], "generation": work["generation"]}
    ask("POST", f"{SUBSCRIPTION}/ack", {**wake, "acks": acks, "done": True}, work["token"])

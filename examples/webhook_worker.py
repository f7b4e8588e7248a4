"""A worker that is woken by a webhook: it checks the signature, reads what is new, and is done.

    examples/webhook_worker.py http://127.0.0.1:4437/v1/stream 'jobs/**' 8080

subscribes to streams of a server on this host and prints every new message until it is stopped. The
answer ``{"done": true}`` moves the cursors; if the worker dies before it, the wake comes again.
"""

import base64
import json
import sys
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

REPLAY_S = 300  # an older signature may have been overheard
ROOT, PATTERN, PORT = sys.argv[1], sys.argv[2], int(sys.argv[3])


def get(url: str) -> bytes:
    """Return what a URL has."""
    with urllib.request.urlopen(url) as answer:
        return bytes(answer.read())


def verified(body: bytes, signature: str) -> bool:
    """Tell whether the server has signed this, lately."""
    parts = dict(part.split("=", 1) for part in signature.split(","))
    known = {key["kid"]: key["x"] for key in json.loads(get(f"{ROOT}/__ds/jwks.json"))["keys"]}
    if parts["kid"] not in known or abs(time.time() - int(parts["t"])) > REPLAY_S:
        return False
    x, signed = (
        base64.urlsafe_b64decode(f"{s}==") for s in (known[parts["kid"]], parts["ed25519"])
    )
    try:
        Ed25519PublicKey.from_public_bytes(x).verify(signed, f"{parts['t']}.".encode() + body)
    except InvalidSignature:
        return False
    return True


class Worker(BaseHTTPRequestHandler):
    """Is woken by POST."""

    def do_POST(self) -> None:
        """Work on what a wake shows."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        good = verified(body, self.headers["Webhook-Signature"])
        for stream in json.loads(body)["streams"] if good else ():
            if stream["has_pending"]:
                messages = get(f"{ROOT}/{stream['path']}?offset={stream['acked_offset']}")
                print(stream["path"], messages.decode(), flush=True)
        answer = b'{"done": true}'
        self.send_response(200 if good else 401)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Say nothing of each request."""


config = {"type": "webhook", "pattern": PATTERN, "webhook": {"url": f"http://127.0.0.1:{PORT}/"}}
put = urllib.request.Request(
    f"{ROOT}/__ds/subscriptions/webhook-worker",
    json.dumps(config).encode(),
    {"Content-Type": "application/json"},
    method="PUT",
)
with HTTPServer(("127.0.0.1", PORT), Worker) as server:
    urllib.request.urlopen(put).close()
    server.serve_forever()

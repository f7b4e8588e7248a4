"""Tokens of a language model, streamed to a browser that may be reloaded at any time.

    python examples/tokens.py http://127.0.0.1:4437 --port 8000

Open http://127.0.0.1:8000/ and ask something. The answer is a stream: the model's side appends to
it whether anybody looks or not, and the page reads it straight from the server as events. Its name
is in the page's address, so a reload, a second window or a phone that slept shows all of the answer
and goes on with what comes. The model here only repeats the question; put yours into ``model``.
"""

import argparse
import json
import secrets
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from durastreamd.client import DurableStream, IdempotentProducer

QUESTION_BYTES_MAX = 10_000
PAGE = """<!doctype html>
<meta charset="utf-8">
<title>Tokens</title>
<form><input name="question" autofocus size="60"> <button>Ask</button></form>
<p id="answer" style="white-space: pre-wrap"></p>
<script>
const STREAMS = {streams};
let source;
function show() {
  if (source) source.close();
  answer.textContent = "";
  const id = location.hash.slice(1);
  if (!/^[0-9a-f]+$/.test(id)) return;
  // A broken connection is made anew by the browser, which tells the last offset it saw.
  source = new EventSource(STREAMS + id + "?offset=-1&live=sse");
  source.addEventListener("data", event => {
    answer.textContent += JSON.parse(event.data).join("");
  });
  source.addEventListener("control", event => {
    if (JSON.parse(event.data).streamClosed) source.close();
  });
}
document.forms[0].onsubmit = async event => {
  event.preventDefault();
  const reply = await fetch("ask", {method: "POST", body: event.target.question.value});
  if (reply.ok) location.hash = await reply.text();
};
onhashchange = show;
show();
</script>
"""


def model(question: str) -> Iterator[str]:
    """Yield the tokens of an answer."""
    for word in f"You asked: {question}".split():
        time.sleep(0.05)  # a model thinks
        yield f"{word} "


def write(url: str, question: str) -> None:
    """Append the tokens to the answer's stream, each once, then close it."""
    with DurableStream(url) as stream:
        with IdempotentProducer(stream) as producer:
            for token in model(question):
                producer.append_json(token)
                producer.flush()
        stream.close()


class Handler(BaseHTTPRequestHandler):
    """The page, and questions."""

    streams = ""

    def do_GET(self) -> None:
        """Send the page."""
        self._answer(
            200, "text/html; charset=utf-8", PAGE.replace("{streams}", json.dumps(self.streams))
        )

    def do_POST(self) -> None:
        """Begin an answer and tell where it is."""
        told = self.headers.get("Content-Length", "")
        length = int(told) if told.isdecimal() else 0
        if self.path != "/ask" or not 0 < length <= QUESTION_BYTES_MAX:
            self._answer(400, "text/plain", f"ask with 1 to {QUESTION_BYTES_MAX} bytes\n")
            return
        question = self.rfile.read(length).decode(errors="replace")
        name = secrets.token_hex(16)
        url = self.streams + name
        with DurableStream(url) as stream:
            stream.create("application/json", ttl_s=86400)
        threading.Thread(target=write, args=(url, question)).start()
        self._answer(200, "text/plain", name)

    def _answer(self, status: int, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    """Serve the page on this host."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("server", help="of the streams, as browsers reach it")
    parser.add_argument("--port", type=int, default=8000, help="of the page; 0: any")
    given = parser.parse_args()
    Handler.streams = f"{given.server}/v1/stream/answers/"
    with ThreadingHTTPServer(("127.0.0.1", given.port), Handler) as pages:
        print(f"http://127.0.0.1:{pages.server_port}/", flush=True)
        pages.serve_forever()


if __name__ == "__main__":
    main()

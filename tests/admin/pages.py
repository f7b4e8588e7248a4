"""A server of fixed pages, for what a client does with answers no daemon gives on request."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

Page = tuple[int, str, bytes]
MISSING: Page = (404, "text/plain", b"")


class Pages:
    """Serves ``answers`` by path, one after the other and the last for ever.

    Keeps the tokens it was sent and the addresses it was asked for.
    """

    def __init__(self, answers: dict[str, list[Page]]) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.tokens: list[str | None] = []
        pages = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                pages.tokens.append(self.headers.get("Authorization"))
                left = pages.answers.get(self.path.partition("?")[0], [MISSING])
                reading = self.command == "GET"
                status, kind, body = left.pop(0) if reading and len(left) > 1 else left[0]
                if reading:
                    pages.asked.append(self.path)
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if reading:
                    self.wfile.write(body)

            do_HEAD = do_GET  # noqa: N815  # the name http.server looks for

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                del format, args

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

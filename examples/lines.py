"""The lines of a file as messages of a stream, each stored once, however often this is run.

    python examples/lines.py journal.txt http://127.0.0.1:4437/v1/stream/journal

Each line is an append of its own with the three producer headers: the producer is named after the
file, and the number of the line is its sequence number. Killed in the middle and run again it
sends the same numbers, and the server recognises what it has; a line that was added since is new.
The standard library is all it needs.
"""

import argparse
import http.client
from pathlib import Path
from urllib.parse import urlsplit

TEXT = {"Content-Type": "text/plain; charset=utf-8"}


def ask(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: bytes,
    head: dict[str, str],
) -> int:
    """Send one request; return the status, or end with what the server says is wrong."""
    connection.request(method, path, body, head)
    reply = connection.getresponse()
    said = reply.read().decode()
    if reply.status not in (200, 201, 204):
        raise SystemExit(f"{method} {path}: {reply.status}: {said}")
    return reply.status


def main() -> None:
    """Parse the command line and send what is new."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("url", help="of a stream; made if it is missing")
    given = parser.parse_args()
    url = urlsplit(given.url)
    connection = http.client.HTTPConnection(url.hostname or "", url.port or 80)
    ask(connection, "PUT", url.path, b"", TEXT)
    stored = 0
    for number, line in enumerate(given.file.read_bytes().splitlines(keepends=True)):
        head = {**TEXT, "Producer-Id": given.file.name, "Producer-Epoch": "0"}
        head["Producer-Seq"] = str(number)
        # 200: stored now. 204: it was there already.
        stored += ask(connection, "POST", url.path, line, head) == 200
    connection.close()
    print(f"{stored} lines are new")


if __name__ == "__main__":
    main()

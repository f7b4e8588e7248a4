"""The truth of the damage table: streams of every kind, as their clients were told of them."""

import http.client
import json
import random
from typing import NamedTuple

PATIENCE_S = 120
JSON = "application/json"
BINARY = "application/octet-stream"
TEXT = "text/plain"


class Answer(NamedTuple):
    """What the server said; status 0 where it broke off."""

    status: int
    head: dict[str, str]
    body: bytes


class Client:
    """One connection at a time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connection: http.client.HTTPConnection | None = None

    def ask(
        self, method: str, path: str, body: bytes | None = None, head: dict[str, str] | None = None
    ) -> Answer:
        """Send a request and return the whole answer, as far as it came."""
        if self._connection is None:
            self._connection = http.client.HTTPConnection("127.0.0.1", self._port, PATIENCE_S)
        try:
            self._connection.request(method, path, body, head or {})
            reply = self._connection.getresponse()
            content = reply.read()
        except http.client.IncompleteRead as exc:
            self._connection = None
            return Answer(0, {}, exc.partial)
        except (OSError, http.client.HTTPException):
            self._connection = None
            return Answer(0, {}, b"")
        names = {name.lower(): value for name, value in reply.getheaders()}
        return Answer(reply.status, names, content)


# --- the truth ---


class Truth:
    """One stream as it was told to its clients."""

    def __init__(self, path: str, kind: str) -> None:
        self.path = path
        self.kind = kind
        self.messages: list[bytes] = []
        self.flushed = 0  # messages that segments hold
        self.closed = False
        self.snapshot: tuple[int, bytes] | None = None
        self.producer: tuple[dict[str, str], bytes] | None = None
        self.id = 0
        self.sources: list[Truth] = []  # what it was forked from, and that from

    @property
    def separator(self) -> int:
        return 2 if self.kind == JSON else 0

    def position(self, messages: int) -> int:
        """Return where so many messages end."""
        return sum(len(one) + self.separator for one in self.messages[:messages])

    @property
    def floor(self) -> int:
        return self.snapshot[0] if self.snapshot is not None else 0

    @property
    def tail(self) -> int:
        return self.position(len(self.messages))

    def content(self, start: int) -> bytes | None:
        """Return what a reader gets from a position on, None where no message of JSON begins."""
        if self.kind != JSON:
            return b"".join(self.messages)[start:]
        at = 0
        for number, one in enumerate(self.messages):
            if at == start:
                return b"".join(line + b"\n" for line in self.messages[number:])
            at += len(one) + 2
        return b"" if at == start else None


class Maker:
    """Makes the directory, and remembers what it said."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.streams: dict[str, Truth] = {}
        self._rng = random.Random(7)
        self._number = 0

    def _ask(self, method: str, path: str, body: bytes | None, head: dict[str, str]) -> None:
        answer = self.client.ask(method, path, body, head)
        assert answer.status in (200, 201, 204), (method, path, answer)

    def bucket(self, name: str) -> None:
        self._ask("PUT", f"/{name}", None, {})

    def create(self, path: str, kind: str) -> None:
        self.streams[path] = Truth(path, kind)
        self._ask("PUT", path, None, {"Content-Type": kind})

    def append(self, path: str, *, producer: str = "") -> None:
        stream = self.streams[path]
        self._number += 1
        size = self._rng.choice((20, 100, 300, 900))
        if stream.kind == JSON:
            text = self._rng.randbytes(size // 2).hex()
            message = json.dumps({"n": self._number, "x": text}, separators=(",", ":")).encode()
            body = b"[" + message + b"]"
        else:
            message = body = b"%d:" % self._number + self._rng.randbytes(size)
            if stream.kind == TEXT:
                message = body = b"%d:" % self._number + self._rng.randbytes(size).hex().encode()
        head = {"Content-Type": stream.kind}
        if producer:
            known = stream.producer
            seq = int(known[0]["Producer-Seq"]) + 1 if known is not None else 0
            head |= {"Producer-Id": producer, "Producer-Epoch": "0", "Producer-Seq": str(seq)}
            stream.producer = head, body
        self._ask("POST", path, body, head)
        stream.messages.append(message)

    def fork(self, path: str, source: str, messages: int) -> None:
        origin = self.streams[source]
        made = Truth(path, origin.kind)
        made.messages = origin.messages[:messages]
        made.sources = [origin, *origin.sources]
        offset = f"{origin.position(messages):016d}"
        head = {"Stream-Forked-From": source, "Stream-Fork-Offset": offset}
        self._ask("PUT", path, None, {"Content-Type": origin.kind, **head})
        self.streams[path] = made

    def publish(self, path: str, messages: int) -> None:
        stream = self.streams[path]
        position, blob = stream.position(messages), self._rng.randbytes(700)
        self._ask("PUT", f"{path}/snapshot/{position:016d}", blob, {"Content-Type": BINARY})
        stream.snapshot = position, blob

    def close(self, path: str) -> None:
        self._ask("POST", path, None, {"Stream-Closed": "true"})
        self.streams[path].closed = True


PATH = "/v1/stream/"


def make_streams(maker: Maker) -> None:
    """What segments hold."""
    maker.bucket("agents")
    for number in range(6):
        maker.create(f"{PATH}bin{number}", BINARY)
        maker.create(f"{PATH}json{number}", JSON)
    for number in range(4):
        maker.create(f"{PATH}text{number}", TEXT)
        maker.create(f"/agents/snap-{number}", JSON)
        maker.create(f"{PATH}prod{number}", BINARY)
    for turn in range(30):
        for path in list(maker.streams):
            maker.append(path, producer="p" if "prod" in path else "")
        if turn == 20:
            for number in range(4):
                maker.publish(f"/agents/snap-{number}", 10 + number)
    maker.fork(f"{PATH}fork-bin", f"{PATH}bin0", 25)
    maker.fork(f"{PATH}fork-json", f"{PATH}json0", 12)
    maker.fork(f"{PATH}fork-fork", f"{PATH}fork-bin", 20)
    for path in (f"{PATH}fork-bin", f"{PATH}fork-json", f"{PATH}fork-fork"):
        for _ in range(8):
            maker.append(path)
    maker.close(f"{PATH}bin4")
    maker.close(f"{PATH}json4")


def make_end(maker: Maker) -> None:
    """What only the journal holds."""
    for stream in maker.streams.values():
        stream.flushed = len(stream.messages)
    maker.create(f"{PATH}late", TEXT)
    for _ in range(5):
        for path in ("bin0", "json1", "text2", "prod0", "prod1", "fork-bin", "late"):
            maker.append(PATH + path, producer="p" if "prod" in path else "")
        maker.append("/agents/snap-1")
    maker.publish("/agents/snap-1", 31)

"""Work that a server hands out: pull-wake subscriptions, claimed one wake at a time.

    for claim in PullSubscription("jobs").claims("worker-1"):
        for stream, message in claim.messages():
            ...

A claim is this worker's alone while its lease lasts. When the loop comes round it is done, and the
subscription stands behind what the claim named; when the loop is left by an error, or the program
dies, another worker gets it. So work is done at least once.
"""

import json
from collections.abc import Generator, Iterator, Mapping
from typing import NamedTuple
from urllib.parse import quote, urlencode

from durastreamd.client.address import PATH_SURFACE, resolve, server_of
from durastreamd.client.client import Ask, Client, Reply
from durastreamd.client.errors import AnswerError, ServerRefusedError
from durastreamd.client.reading import StreamMessage
from durastreamd.client.settings import ClientSettings
from durastreamd.client.stream import DurableStream, usual_settings

FENCED = "FENCED"
_NOTHING = ("NO_PENDING_WORK", "ALREADY_CLAIMED")  # not now; not an error


class ClaimedStream(NamedTuple):
    """A stream with work in it: what is done, and how far there is more."""

    path: str
    acked_offset: str
    tail_offset: str


class WorkClaim:
    """One wake, held by this worker."""

    def __init__(self, subscription: "PullSubscription", told: Mapping[str, object]) -> None:
        self._subscription = subscription
        try:
            self.generation = int(str(told["generation"]))
            self.wake_id, self._token = str(told["wake_id"]), str(told["token"])
            self.lease_s = int(str(told["lease_ttl_ms"])) / 1000
            rows = told["streams"]
            self.streams = [
                ClaimedStream(row["path"], row["acked_offset"], row["tail_offset"])
                for row in (rows if isinstance(rows, list) else [])
                if row["has_pending"]
            ]
        except (KeyError, TypeError, ValueError) as exc:
            message = f"{subscription.url}/claim: the answer is not a claim"
            raise AnswerError(message) from exc
        self.held = True

    def messages(self) -> Iterator[tuple[str, StreamMessage]]:
        """Yield what is to be done: the stream's path, and the message."""
        for each in self.streams:
            stream = self._subscription.stream(each.path)
            for message in stream.messages(each.acked_offset, end=each.tail_offset):
                yield each.path, message

    def extend(self, acks: Mapping[str, str] | None = None) -> None:
        """Have the lease begin anew, and move the cursors of streams, by path, to offsets."""
        self._send("ack", acks or {}, done=False)

    def done(self) -> None:
        """Say that all of it is done."""
        self._send("ack", {each.path: each.tail_offset for each in self.streams}, done=True)
        self.held = False

    def release(self) -> None:
        """Give it back as it is."""
        self._send("release", {}, done=False)
        self.held = False

    def _send(self, action: str, acks: Mapping[str, str], *, done: bool) -> None:
        said: dict[str, object] = {"wake_id": self.wake_id, "generation": self.generation}
        if acks:
            said["acks"] = [{"stream": path, "offset": offset} for path, offset in acks.items()]
        if done:
            said["done"] = True
        headers = {"Authorization": f"Bearer {self._token}"}
        reply = self._subscription.post(action, said, headers)
        if reply.status == 409 and not (_code(reply) == FENCED and reply.again):
            raise _refused(self._subscription, action, reply)


class PullSubscription:
    """A subscription that hands out claims, by its id, on one server."""

    def __init__(
        self,
        name: str,
        server: str | None = None,
        settings: ClientSettings | None = None,
        *,
        client: Client | None = None,
    ) -> None:
        self._root = f"{server_of(resolve(None, server))}{PATH_SURFACE}"
        self.url = f"{self._root}/__ds/subscriptions/{quote(name, safe='')}"
        self.client = client or Client(settings or usual_settings())

    def stream(self, path: str) -> DurableStream:
        """Return a stream that the subscription names."""
        return DurableStream(f"{self._root}/{quote(path)}", client=self.client)

    def put(
        self, pattern: str, wake_stream: str, *, lease_ms: int = 30_000, description: str = ""
    ) -> dict[str, object]:
        """Make it, or find it made the same; it begins at the streams' ends as they are now."""
        said: dict[str, object] = {
            "type": "pull-wake",
            "pattern": pattern,
            "wake_stream": wake_stream,
            "lease_ttl_ms": lease_ms,
        }
        if description:
            said["description"] = description
        return self._object(Ask("PUT", self.url, _JSON, json.dumps(said).encode()))

    def describe(self) -> dict[str, object]:
        """Return what the server tells of it."""
        return self._object(Ask("GET", self.url))

    def delete(self) -> None:
        """Delete it."""
        self.client.ask(Ask("DELETE", self.url))

    def post(
        self, action: str, said: Mapping[str, object], headers: Mapping[str, str] | None = None
    ) -> Reply:
        """Send what a worker says; a 409 is an answer."""
        body = json.dumps(said).encode()
        return self.client.ask(
            Ask("POST", f"{self.url}/{action}", {**_JSON, **(headers or {})}, body, (409,))
        )

    def claims(self, worker: str, *, wait: bool = True) -> Generator[WorkClaim, None, None]:
        """Yield claims as there is work; without ``wait`` until there is none for now."""
        wakes = self.stream(str(self.describe().get("wake_stream")))
        while True:
            offset = wakes.head().next_offset if wait else ""
            reply = self.post("claim", {"worker": worker})
            if reply.status == 409:
                if _code(reply) not in _NOTHING:
                    raise _refused(self, "claim", reply)
                if not wait:
                    return
                self._wait(wakes.url, offset)
                continue
            claim = WorkClaim(self, _document(self.url, reply))
            try:
                yield claim
            except BaseException:
                if claim.held:
                    claim.release()
                raise
            if claim.held:
                claim.done()

    def _wait(self, url: str, offset: str) -> None:
        """Return when a wake is announced, or after a time: a lease may have run out unseen."""
        asked = urlencode({"offset": offset, "live": "long-poll"})
        self.client.ask(Ask("GET", f"{url}?{asked}"))

    def _object(self, ask: Ask) -> dict[str, object]:
        return _document(self.url, self.client.ask(ask))


_JSON = {"Content-Type": "application/json"}


def _document(url: str, reply: Reply) -> dict[str, object]:
    try:
        found = json.loads(reply.body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        message = f"{url}: the answer is not a JSON object; does this server have subscriptions?"
        raise AnswerError(message)
    return found


def _code(reply: Reply) -> str:
    try:
        match json.loads(reply.body):
            case {"error": {"code": str(code)}}:
                return code
            case _:
                return ""
    except (ValueError, RecursionError):
        return ""


def _refused(subscription: PullSubscription, action: str, reply: Reply) -> ServerRefusedError:
    url = f"{subscription.url}/{action}"
    return ServerRefusedError.of("POST", url, reply.status, reply.headers, reply.body[:10_000])

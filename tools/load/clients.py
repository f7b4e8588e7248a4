"""The load generator beside wrk: plain sockets, ready-made requests, as little parsing as will do.

Run as a process of its own, ``python -m tools.load.clients NAME '{"port": ..., ...}'``; the figures
come back as one line of JSON, with the processor time that the generator itself took.
"""

import itertools
import json
import re
import resource
import select
import socket
import statistics
import sys
import time
from collections.abc import Callable

Figures = dict[str, float]
TIMEOUT_S = 60.0
PIPELINES = 16  # connections, and requests under way on each
PIECE_BYTES = 1024 * 1024
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_NEXT = re.compile(rb"stream-next-offset: *([^\r]+)", re.IGNORECASE)
_STAMP = re.compile(rb"t=(\d{19});")


def request(method: str, target: str, kind: str = "", body: bytes = b"", *more: str) -> bytes:
    """Return the bytes of a request."""
    lines = [f"{method} {target} HTTP/1.1", "Host: 127.0.0.1", *more]
    if kind:
        lines.append(f"Content-Type: {kind}")
    if body or method in ("POST", "PUT"):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def connected(port: int) -> socket.socket:
    """Return a blocking connection."""
    sock = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def answer(sock: socket.socket, scratch: bytearray) -> tuple[bytes, int]:
    """Read one whole answer; return its head and the length of its body."""
    view = memoryview(scratch)
    data = b""
    while (end := data.find(b"\r\n\r\n")) < 0:
        data += _some(sock, view)
    head, got = data[: end + 2], len(data) - end - 4
    status = int(head[9:12])
    if status >= 400:
        text = f"the server answered {status}: {data[:400]!r}"
        raise RuntimeError(text)
    if status in (204, 304):
        return head, 0
    length = _LENGTH.search(head)
    if length is not None:
        left = int(length[1]) - got
        while left > 0:
            left -= sock.recv_into(view, min(len(view), left)) or _gone()
        return head, int(length[1])
    last = data[-5:]
    while last != b"0\r\n\r\n":
        count = sock.recv_into(view) or _gone()
        got += count
        last = (last + bytes(view[max(0, count - 5) : count]))[-5:]
    return head, got


def _some(sock: socket.socket, view: memoryview) -> bytes:
    count = sock.recv_into(view, 64 * 1024) or _gone()
    return bytes(view[:count])


def _gone() -> int:
    text = "the server hung up"
    raise RuntimeError(text)


def ask(port: int, *requests: bytes) -> None:
    """Make requests one after the other."""
    scratch = bytearray(64 * 1024)
    with connected(port) as sock:
        for each in requests:
            sock.sendall(each)
            answer(sock, scratch)


Next = Callable[[int], bytes | None]


def saturate(port: int, following: Next, seconds: float, connections: int = 64) -> Figures:
    """Have one request under way on each connection; ``following`` gives a connection's next.

    Ends with the time, or when nobody has a request any more.
    """
    epoll = select.epoll()
    sockets = {sock.fileno(): sock for sock in (connected(port) for _ in range(connections))}
    places = {number: place for place, number in enumerate(sockets)}
    begun: dict[int, float] = {}
    took: list[float] = []
    errors = 0
    begin = time.perf_counter()
    for number, sock in sockets.items():
        epoll.register(number, select.EPOLLIN)
        first = following(places[number])
        if first is not None:
            begun[number] = time.perf_counter()
            sock.send(first)
    while begun and time.perf_counter() < begin + seconds:
        for number, _ in epoll.poll(0.1):
            data = sockets[number].recv(65536)
            if data[9:10] != b"2":
                errors += 1
            took.append(time.perf_counter() - begun.pop(number))
            more = following(places[number])
            if more is not None:
                begun[number] = time.perf_counter()
                sockets[number].send(more)
    spent = time.perf_counter() - begin
    found = {"requests": float(len(took)), "seconds": spent, "errors": float(errors)}
    return found | _quantiles(took)


def appends(
    port: int,
    path: str,
    kind: str,
    body: str,
    streams: int,
    *,
    seconds: float,
    connections: int = 64,
) -> Figures:
    """Stand in for wrk: each connection has one append under way."""
    ready = [request("POST", f"{path}{number}", kind, body.encode()) for number in range(streams)]
    turn = itertools.count()
    return saturate(port, lambda _: ready[next(turn) % streams], seconds, connections)


def producers(
    port: int, path: str, kind: str, body: str, streams: int, *, seconds: float
) -> Figures:
    """Like ``appends``; each connection is an idempotent producer and keeps to its own streams."""
    named = time.monotonic_ns()
    sequences: dict[tuple[int, int], int] = {}
    turns = [0] * 64

    def following(place: int) -> bytes:
        stream = (place + 64 * turns[place]) % streams
        turns[place] += 1
        seq = sequences.get((place, stream), -1) + 1
        sequences[place, stream] = seq
        fields = (f"Producer-Id: {named}.{place}", "Producer-Epoch: 0", f"Producer-Seq: {seq}")
        return request("POST", f"{path}{stream}", kind, body.encode(), *fields)

    return saturate(port, following, seconds)


def creates(port: int, path: str, kind: str, count: int) -> Figures:
    """Make many streams, as fast as it goes."""
    ready = iter([request("PUT", f"{path}{number}", kind) for number in range(count)])
    return saturate(port, lambda _: next(ready, None), TIMEOUT_S * 5)


def each(port: int, path: str, kind: str, body: str, streams: int) -> Figures:
    """One append to each stream, in pipelines of 16 over 16 connections."""
    ready = (request("POST", f"{path}{number}", kind, body.encode()) for number in range(streams))
    sockets = {sock.fileno(): sock for sock in (connected(port) for _ in range(PIPELINES))}
    owed = dict.fromkeys(sockets, 0)
    epoll = select.epoll()
    errors = 0
    begin = time.perf_counter()

    def more(number: int) -> None:
        pipeline = list(itertools.islice(ready, PIPELINES))
        owed[number] = len(pipeline)
        sockets[number].sendall(b"".join(pipeline))

    for number in sockets:
        epoll.register(number, select.EPOLLIN)
        more(number)
    while any(owed.values()):
        for number, _ in epoll.poll(TIMEOUT_S):
            # An answer to an append is short; the kernel hands out whole ones.
            data = sockets[number].recv(65536)
            owed[number] -= data.count(b"HTTP/1.1 ") if data else _gone()
            errors += data.count(b"HTTP/1.1 ") - data.count(b"HTTP/1.1 2")
            if not owed[number]:
                more(number)
    spent = time.perf_counter() - begin
    return {"requests": float(streams), "seconds": spent, "errors": float(errors)}


def stampede(port: int, path: str, readers: int, size: int) -> Figures:
    """Many readers at once, each of a stream of its own, from the start to the end."""
    epoll = select.epoll()
    scratch = memoryview(bytearray(PIECE_BYTES))
    sockets = [connected(port) for _ in range(readers)]
    waiting = {sock.fileno(): (sock, _Whole(size)) for sock in sockets}
    took: list[float] = []
    begin = time.perf_counter()
    for place, sock in enumerate(sockets):
        epoll.register(sock.fileno(), select.EPOLLIN)
        sock.sendall(request("GET", f"{path}{place}?offset=-1"))
    while waiting and time.perf_counter() < begin + TIMEOUT_S:
        for number, _ in epoll.poll(0.1):
            sock, whole = waiting[number]
            count = sock.recv_into(scratch) or _gone()
            if whole.ended(scratch[:count]):
                took.append(time.perf_counter() - begin)
                epoll.unregister(number)
                del waiting[number]
    spent = time.perf_counter() - begin
    done = {"requests": float(len(took)), "seconds": spent, "errors": float(len(waiting))}
    return done | {"mb_per_s": len(took) * size / spent / 1e6} | _quantiles(took)


def paced(port: int, path: str, streams: int, rate: float, *, seconds: float) -> Figures:
    """Append at a fixed rate, round robin over the streams; latency counts from the due time."""
    ready = [
        request("POST", f"{path}{number}", "application/octet-stream", b"x" * 256)
        for number in range(streams)
    ]
    epoll = select.epoll()
    sockets = {sock.fileno(): sock for sock in (connected(port) for _ in range(64))}
    free = list(sockets)
    for number in sockets:
        epoll.register(number, select.EPOLLIN)
    begun: dict[int, float] = {}
    took: list[float] = []
    sent = errors = 0
    begin = time.perf_counter()
    while (now := time.perf_counter()) < begin + seconds or (begun and now < begin + seconds + 5):
        while free and now < begin + seconds and begin + sent / rate <= now:
            number = free.pop()
            begun[number] = begin + sent / rate
            sockets[number].send(ready[sent % streams])
            sent += 1
        for number, _ in epoll.poll(0.001):
            errors += sockets[number].recv(65536)[9:10] != b"2"
            took.append(time.perf_counter() - begun.pop(number))
            free.append(number)
    found = {"requests": float(len(took)), "seconds": now - begin, "errors": float(errors)}
    return found | _quantiles(took)


def catch_up(port: int, path: str, size: int, *, seconds: float, connections: int = 8) -> Figures:
    """Read the whole stream again and again over a few connections."""
    scratch = bytearray(PIECE_BYTES)
    view = memoryview(scratch)
    get = request("GET", f"{path}?offset=-1")
    epoll = select.epoll()
    answers: dict[int, _Whole] = {}
    sockets = {sock.fileno(): sock for sock in (connected(port) for _ in range(connections))}
    for number, sock in sockets.items():
        epoll.register(number, select.EPOLLIN)
        sock.sendall(get)
        answers[number] = _Whole(size)
    total = done = 0
    begin = time.perf_counter()
    while (now := time.perf_counter()) < begin + seconds:
        for number, _ in epoll.poll(0.1):
            sock = sockets[number]
            count = sock.recv_into(view) or _gone()
            total += count
            if answers[number].ended(view[:count]):
                sock.sendall(get)
                answers[number] = _Whole(size)
                done += 1
    return {"mb_per_s": total / (now - begin) / 1e6, "requests": total / size, "answers": done}


class _Whole:
    """Finds the end of one answer, which must carry at least ``size`` bytes."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._got = 0
        self._length = -1  # Head included; 0 if only a last chunk tells.
        self._last = b""

    def ended(self, piece: memoryview) -> bool:
        """Take a piece that came; tell whether it was the last one."""
        self._got += len(piece)
        if self._length < 0:
            head, _, _ = bytes(piece[:8192]).partition(b"\r\n\r\n")
            found = _LENGTH.search(head)
            self._length = len(head) + 4 + int(found[1]) if found else 0
            if not head.startswith(b"HTTP/1.1 200 ") or 0 < self._length < self._size:
                text = f"not an answer with {self._size} bytes: {head!r}"
                raise RuntimeError(text)
        if self._length:
            return self._got == self._length
        self._last = (self._last + bytes(piece[-5:]))[-5:]
        return self._got > self._size and self._last == b"0\r\n\r\n"


def events(port: int, path: str, readers: int, *, seconds: float, rate: float = 50.0) -> Figures:
    """One writer, many SSE readers; each event carries the time at which it was sent."""
    writer = connected(port)
    scratch = bytearray(64 * 1024)
    epoll = select.epoll()
    sockets: dict[int, socket.socket] = {}
    for _ in range(readers):
        sock = connected(port)
        sock.sendall(request("GET", f"{path}?offset=now&live=sse"))
        sockets[sock.fileno()] = sock
    for number, sock in sockets.items():
        _await_control(sock)
        epoll.register(number, select.EPOLLIN)
    epoll.register(writer.fileno(), select.EPOLLIN)
    took: list[float] = []
    sent = 0
    due = begin = time.perf_counter()
    end = begin + seconds
    while (now := time.perf_counter()) < end or (now < end + 1.0 and len(took) < sent * readers):
        if now >= due and now < end:
            stamp = b"t=%019d;" % time.monotonic_ns()
            writer.sendall(request("POST", path, "text/plain", stamp + b"x" * 79 + b"\n"))
            sent += 1
            due += 1 / rate
        for number, _ in epoll.poll(max(0.0, min(due - time.perf_counter(), 0.1))):
            if number == writer.fileno():
                writer.recv_into(scratch)
                continue
            data = sockets[number].recv(65536) or _gone_quietly(epoll, number)
            at = time.monotonic_ns()
            took += [(at - int(found)) / 1e9 for found in _STAMP.findall(data)]
    return {"sent": sent, "share": len(took) / (sent * readers), **_quantiles(took)}


def _gone_quietly(epoll: select.epoll, number: int) -> bytes:
    epoll.unregister(number)
    return b""


def _await_control(sock: socket.socket) -> None:
    data = b""
    while b"event: control" not in data or not data.endswith(b"\n\n\r\n"):
        more = sock.recv(65536)
        if not more or b" 200 " not in (data + more)[:20]:
            text = f"no SSE answer: {(data + more)[:300]!r}"
            raise RuntimeError(text)
        data += more


def long_poll(port: int, path: str, rounds: int) -> Figures:
    """Time from an append to the answer of the reader that waits for it."""
    scratch = bytearray(64 * 1024)
    reader, writer = connected(port), connected(port)
    post = request("POST", path, "text/plain", b"x" * 100)
    writer.sendall(post)
    offset = _next_offset(answer(writer, scratch)[0])
    took = []
    for _ in range(rounds):
        reader.sendall(request("GET", f"{path}?offset={offset}&live=long-poll"))
        time.sleep(0.003)  # It has to be waiting by then.
        begin = time.perf_counter()
        writer.sendall(post)
        offset = _next_offset(answer(reader, scratch)[0])
        took.append(time.perf_counter() - begin)
        answer(writer, scratch)
    return {"requests": 2.0 * rounds, **_quantiles(took)}


def _next_offset(head: bytes) -> str:
    found = _NEXT.search(head)
    if found is None:
        text = f"no Stream-Next-Offset in {head!r}"
        raise RuntimeError(text)
    return found[1].decode()


def _quantiles(took: list[float]) -> Figures:
    """Return median, 99th and 99.9th percentile in milliseconds."""
    if len(took) < 2:
        return {"p50_ms": 0.0, "p99_ms": 0.0, "p999_ms": 0.0}
    cuts = statistics.quantiles(took, n=1000)
    return {"p50_ms": cuts[499] * 1e3, "p99_ms": cuts[989] * 1e3, "p999_ms": cuts[998] * 1e3}


WORK: dict[str, Callable[..., Figures]] = {  # type: ignore[explicit-any]  # arguments vary
    "appends": appends,
    "producers": producers,
    "creates": creates,
    "each": each,
    "stampede": stampede,
    "paced": paced,
    "catch_up": catch_up,
    "events": events,
    "long_poll": long_poll,
}


def main() -> None:
    """Do one piece of work and print its figures."""
    name, arguments = sys.argv[1:]
    found = WORK[name](**json.loads(arguments))
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({**found, "generator_cpu_s": usage.ru_utime + usage.ru_stime}))


if __name__ == "__main__":
    main()

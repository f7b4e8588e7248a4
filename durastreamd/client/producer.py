"""An idempotent producer for programs that block.

    with IdempotentProducer(stream, state="readings.state") as producer:
        for number, line in lines_after(producer.mark):
            producer.append(line, mark=str(number))

Batches go out one behind the other on one connection, several before the first is answered. At the
first trouble what is on its way is collected, and what was not acknowledged is sent again, one by
one and patiently. ``producing`` has the rules.
"""

from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Self

from durastreamd.client.address import split
from durastreamd.client.client import Body, Reply
from durastreamd.client.connections import BROKEN
from durastreamd.client.errors import ClientError, ServerRefusedError
from durastreamd.client.flows import json_text
from durastreamd.client.pipeline import Pipeline
from durastreamd.client.producer_state import Outgoing, StateFile
from durastreamd.client.producing import Judged, ProducerCore, ProducerLimits, opened
from durastreamd.client.retry import is_unsure
from durastreamd.client.stream import DurableStream
from durastreamd.protocol.content_type import is_json


class IdempotentProducer:
    """Appends to one stream, each message once.

    Without a state file that holds while the program lives; with one, a program that was killed
    goes on: ``mark`` says how far the input is that must not be appended again. Nothing is sent by
    itself while the program does something else: ``flush`` when there is nothing more for now.
    """

    def __init__(
        self,
        stream: DurableStream,
        name: str = "",
        *,
        state: Path | str | None = None,
        limits: ProducerLimits | None = None,
        join: bool = False,
    ) -> None:
        self._stream = stream
        self._file = None if state is None else StateFile(state)
        self._flight: deque[Outgoing] = deque()
        self._line: Pipeline | None = None
        try:
            head = stream.head()
            found = self._file.load() if self._file else None
            known = opened(found, stream.url, name, head.incarnation)
            self._core = ProducerCore(
                known,
                head.content_type,
                limits or ProducerLimits(),
                as_json=is_json(head.content_type),
                join=join,
            )
        except BaseException:
            self.abandon()
            raise

    # --- what it knows ---

    @property
    def name(self) -> str:
        """Who appends."""
        return self._core.state.producer

    @property
    def epoch(self) -> int:
        """Which life of it this is."""
        return self._core.state.epoch

    @property
    def mark(self) -> str:
        """The mark of the last message that need not be given again; empty before the first."""
        return self._core.state.mark

    @property
    def next_offset(self) -> str:
        """Where the stream ended after the last batch that was acknowledged."""
        return self._core.next_offset

    @property
    def pending(self) -> int:
        """How many messages are not acknowledged."""
        core = self._core
        batches = [*core.state.pending, *core.ready]
        return core.open_count + sum(each.count for each in batches)

    # --- appending ---

    def append(self, data: bytes | str, *, mark: str = "") -> None:
        """Take one message: bytes, text, or for a JSON stream the text of one value."""
        self._core.add(data.encode() if isinstance(data, str) else data, mark)
        if self._core.full:
            self._send_ready()

    def checked(self, data: bytes) -> bytes:
        """Return a message as it may be appended, or raise ValueError."""
        return self._core.checked(data)

    def append_json(self, value: object, *, mark: str = "") -> None:
        """Take one value for a stream of JSON."""
        self.append(json_text(value), mark=mark)

    def flush(self) -> str:
        """Have everything stored; return where the stream ends."""
        self._core.take()
        self._send_ready()
        self._settle_all()
        return self.next_offset

    def close_stream(self, *, mark: str | None = None) -> str:
        """Have everything stored and the stream closed with it; return where it ended."""
        self._core.take(close=True, mark=mark)
        return self.flush()

    def forget(self, mark: str = "") -> None:
        """Have everything stored, then set the mark anew: the input is at its end."""
        self.flush()
        self._core.state.mark = mark
        self._save()

    def give_up(self) -> bool:
        """Forget what a server refused for good; tell whether that was possible.

        It is not where something was sent and nobody said what became of it.
        """
        given_up = self._core.give_up()
        if given_up:
            self._save()
        return given_up

    def _send_ready(self) -> None:
        core = self._core
        if core.state.pending and not self._flight:
            self._send_again()
        while core.ready:
            batches = core.note(core.window - len(self._flight))
            if batches:
                self._save()
            for batch in batches:
                self._launch(batch)
            # Half of it stays on its way while the caller finds more.
            half = len(self._flight) // 2 if core.ready else core.limits.in_flight_max // 2
            while len(self._flight) > half:
                self._settle_oldest()

    def _launch(self, batch: Outgoing) -> None:
        """Send a batch; its answer is read later."""
        client = self._stream.client
        ask = self._core.ask(batch)
        origin, target = split(ask.url)
        headers = {**client.settings.request_headers(), **ask.headers}
        self._flight.append(batch)
        try:
            if self._line is None and len(self._flight) == 1:
                self._line = Pipeline(client.connections.connect(origin))
            if self._line is not None:
                batch.unsure = True  # until it is answered
                self._line.send(ask.method, target, headers, ask.body or b"")
        except BROKEN:
            self._hang_up()

    def _settle_oldest(self) -> None:
        if not self._settled(self._flight.popleft()):
            while self._flight:
                self._settled(self._flight.popleft())
            self._send_again()

    def _settle_all(self) -> None:
        while self._flight:
            self._settle_oldest()
        if self._core.state.pending:
            self._send_again()

    def _settled(self, batch: Outgoing) -> bool:
        """Read an answer; tell whether the batch is stored. What it says else is asked again."""
        if self._line is None:
            return False
        try:
            body = Body(self._line.receive(), self._stream.client.settings.answer_bytes_max)
            reply = Reply(body.status, body.headers, body.whole())
        except (*BROKEN, ClientError):
            self._hang_up()
            return False
        batch.unsure = reply.status >= 500
        if body.headers.get("connection", "").lower() == "close":
            self._hang_up()
        if reply.status not in (200, 204):
            return False
        return self._core.judge(batch, reply) is Judged.STORED

    def _send_again(self) -> None:
        """Send what is pending one by one, as patiently as the settings say."""
        client = self._stream.client
        for batch in list(self._core.state.pending):
            while True:
                try:
                    reply = client.ask(self._core.ask(batch))
                except ServerRefusedError as exc:
                    batch.unsure = batch.unsure or is_unsure(exc)
                    raise
                except ClientError:
                    batch.unsure = True
                    raise
                if self._core.judge(batch, reply) is Judged.STORED:
                    break
                self._save()  # another epoch

    def _save(self) -> None:
        if self._file is not None:
            self._file.save(self._core.state)

    # --- the end ---

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abandon()

    def close(self) -> None:
        """Have everything stored and let go of the state file."""
        try:
            self.flush()
            self._save()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Hang up; what is pending stays in the state file, for the next one."""
        self._flight.clear()
        self._hang_up()
        if self._file is not None:
            self._file.release()

    def _hang_up(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None

"""An idempotent producer for trio and asyncio.

Appending exactly once means syncing a file before sending, which blocks; so the work is done by the
blocking producer, in a thread, and tasks hand it what has gathered meanwhile. While a batch is on
its way the next one grows, so a busy program sends few and large ones.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
from anyio import to_thread

from durastreamd.client.flows import json_text
from durastreamd.client.producer import IdempotentProducer
from durastreamd.client.producing import ProducerLimits
from durastreamd.client.settings import ClientSettings
from durastreamd.client.stream import DurableStream

LINGER_S = 0.005  # before a batch goes, for others to come along
GATHERED_BYTES_MAX = 4 * 1024 * 1024  # that wait for the thread; then ``append`` waits, too


class AsyncIdempotentProducer:
    """Appends to one stream, each message once; ``open`` lends one.

    ``append`` takes a message and returns; ``flush`` returns when all are stored. What goes wrong
    is raised by the next of them, and at the end of the block. Leaving the block waits for what is
    on its way, as long as the settings have patience.
    """

    def __init__(self, producer: IdempotentProducer, linger_s: float) -> None:
        self._producer = producer
        self._linger_s = linger_s
        self._gathered: list[tuple[bytes, str]] = []
        self._gathered_bytes = 0
        self._more = anyio.Event()
        self._settled = anyio.Event()
        self._busy = False
        self._failed: Exception | None = None

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        url: str,
        name: str = "",
        *,
        state: Path | str | None = None,
        settings: ClientSettings | None = None,
        limits: ProducerLimits | None = None,
        join: bool = False,
        linger_s: float = LINGER_S,
    ) -> AsyncIterator["AsyncIdempotentProducer"]:
        """Lend a producer for a block; at its end everything is stored, or it raises."""
        stream = DurableStream(url, settings)
        made = partial(IdempotentProducer, state=state, limits=limits, join=join)
        producer = await to_thread.run_sync(made, stream, name)
        lent, failed = cls(producer, linger_s), None
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lent._send)
                # Caught here, so that it does not come out in a group of one.
                try:
                    yield lent
                    await lent.flush()
                except Exception as exc:  # noqa: BLE001  # raised again below
                    failed = exc
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(producer.abandon)
                await to_thread.run_sync(stream.hang_up)
        if failed is not None:
            raise failed

    @property
    def mark(self) -> str:
        """The mark of the last message that need not be given again; empty before the first."""
        return self._producer.mark

    async def append(self, data: bytes | str, *, mark: str = "") -> None:
        """Take one message: bytes, text, or for a JSON stream the text of one value."""
        self._check()
        message = self._producer.checked(data.encode() if isinstance(data, str) else data)
        while self._gathered_bytes > GATHERED_BYTES_MAX:
            await self._settled.wait()
            self._check()
        self._gathered.append((message, mark))
        self._gathered_bytes += len(message)
        self._more.set()

    async def append_json(self, value: object, *, mark: str = "") -> None:
        """Take one value for a stream of JSON."""
        await self.append(json_text(value), mark=mark)

    async def flush(self) -> str:
        """Return where the stream ends, when everything is stored."""
        self._check()
        while self._gathered or self._busy:
            await self._settled.wait()
            self._check()
        return self._producer.next_offset

    def _check(self) -> None:
        if self._failed is not None:
            raise self._failed

    async def _send(self) -> None:
        while self._failed is None:
            await self._more.wait()
            await anyio.sleep(self._linger_s)
            taken, self._gathered, self._gathered_bytes = self._gathered, [], 0
            self._more = anyio.Event()
            self._busy = True
            try:
                await to_thread.run_sync(self._append_all, taken)
            except Exception as exc:  # noqa: BLE001  # raised where somebody waits for it
                self._failed = exc
            finally:
                self._busy = False
                self._settled.set()
                self._settled = anyio.Event()

    def _append_all(self, taken: list[tuple[bytes, str]]) -> None:
        producer = self._producer
        for data, mark in taken:
            producer.append(data, mark=mark)
        producer.flush()

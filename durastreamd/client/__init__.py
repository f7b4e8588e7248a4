"""A client of Durable Streams servers: HTTP, HTTPS and unix sockets; docs/client.md introduces it.

The blocking half needs the standard library alone: executors of Spark get it in a zip without the
server's dependencies, so nothing is imported here that Python does not bring. ``aio`` and
``aio_producer`` are the half for trio and asyncio; the extra ``client`` brings what it needs.

For programs: ``stream`` and ``producer`` (a stream; appending to it exactly once), ``reading``
(messages and places), ``claims`` (work that a server hands out), ``webhook`` (whether a request
comes from it), ``flows`` (what is asked and answered), ``producing`` and ``producer_state`` (the
rules of a producer, and its file), ``messages`` (forms of a page), ``pipeline``.

Below: ``address`` reads URLs and the environment, ``settings`` says how to talk, ``connections``
keeps connections, ``retry`` says when and how long a request is repeated, ``client`` sends requests
and reads answers, ``sse`` takes events apart, ``watch`` waits for news of many streams at once.
Everything that goes wrong is a ``ClientError`` (``errors``), a refusal with the server's problem
document.
"""

from durastreamd.client.address import DEFAULT_URL, TOKEN_VARIABLE, URL_VARIABLE, resolve
from durastreamd.client.client import Ask, Body, Client, Reply, shared_client
from durastreamd.client.errors import (
    AnswerError,
    ClientError,
    CutShortError,
    DeniedError,
    FencedError,
    ProducerError,
    ReplacedError,
    ServerRefusedError,
    SettingsError,
    StateError,
    StateLockedError,
    UnreachableError,
    UrlError,
)
from durastreamd.client.flows import (
    AppendResult,
    BootstrapAnswer,
    FoundPlace,
    ListedStream,
    SnapshotBlob,
    StreamHead,
)
from durastreamd.client.producer import IdempotentProducer
from durastreamd.client.producing import ProducerLimits
from durastreamd.client.reading import Bookmark, StreamMessage
from durastreamd.client.retry import Patience
from durastreamd.client.settings import ClientSettings
from durastreamd.client.sse import Delivery, deliveries
from durastreamd.client.stream import DurableStream, list_streams, usual_settings
from durastreamd.client.watch import Watch

__all__ = [
    "DEFAULT_URL",
    "TOKEN_VARIABLE",
    "URL_VARIABLE",
    "AnswerError",
    "AppendResult",
    "Ask",
    "Body",
    "Bookmark",
    "BootstrapAnswer",
    "Client",
    "ClientError",
    "ClientSettings",
    "CutShortError",
    "Delivery",
    "DeniedError",
    "DurableStream",
    "FencedError",
    "FoundPlace",
    "IdempotentProducer",
    "ListedStream",
    "Patience",
    "ProducerError",
    "ProducerLimits",
    "ReplacedError",
    "Reply",
    "ServerRefusedError",
    "SettingsError",
    "SnapshotBlob",
    "StateError",
    "StateLockedError",
    "StreamHead",
    "StreamMessage",
    "UnreachableError",
    "UrlError",
    "Watch",
    "deliveries",
    "list_streams",
    "resolve",
    "shared_client",
    "usual_settings",
]

"""A client of Durable Streams servers: HTTP, HTTPS and unix sockets; standard library alone.

dsadmin and the Spark pipeline talk to servers with it, and executors may get it in a zip without
the server's dependencies, so nothing is imported here that Python does not bring.

``address`` reads URLs and the environment, ``settings`` says how to talk, ``connections`` keeps
connections, ``retry`` says when and how long a request is repeated, ``client`` sends requests and
reads answers, ``sse`` takes events apart, ``watch`` waits for news of many streams at once.
Everything that goes wrong is a ``ClientError`` (``errors``), a refusal with the server's problem
document.
"""

from durastreamd.client.address import DEFAULT_URL, TOKEN_VARIABLE, URL_VARIABLE, resolve
from durastreamd.client.client import Body, Client, Reply, shared_client
from durastreamd.client.errors import (
    AnswerError,
    ClientError,
    CutShortError,
    DeniedError,
    ServerRefusedError,
    SettingsError,
    UnreachableError,
    UrlError,
)
from durastreamd.client.retry import Patience
from durastreamd.client.settings import ClientSettings
from durastreamd.client.sse import Delivery, deliveries
from durastreamd.client.watch import Watch

__all__ = [
    "DEFAULT_URL",
    "TOKEN_VARIABLE",
    "URL_VARIABLE",
    "AnswerError",
    "Body",
    "Client",
    "ClientError",
    "ClientSettings",
    "CutShortError",
    "Delivery",
    "DeniedError",
    "Patience",
    "Reply",
    "ServerRefusedError",
    "SettingsError",
    "UnreachableError",
    "UrlError",
    "Watch",
    "deliveries",
    "resolve",
    "shared_client",
]

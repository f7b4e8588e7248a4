"""What every command shares: which server, with which token, and what its refusals mean."""

import argparse

from durastreamd.client import (
    TOKEN_VARIABLE,
    URL_VARIABLE,
    AnswerError,
    Client,
    ClientError,
    ClientSettings,
    DeniedError,
    DurableStream,
    ReplacedError,
    ServerRefusedError,
    SettingsError,
    StateError,
    StateLockedError,
    UrlError,
    resolve,
)
from durastreamd.client.address import environment_token, server_of
from durastreamd.client.stream import SILENCE_S_MAX
from durastreamd.kit.command import CommandError
from durastreamd.kit.status import (
    CORRUPT,
    IO_ERROR,
    LOCKED,
    NO_INPUT,
    NO_PERMISSION,
    UNAVAILABLE,
    USAGE,
    Failures,
)

RETRY_S = 60.0  # a server that restarts is back by then

# What ended a command, by the first kind that fits; refusals are told apart in ``failure``.
FAILURES: Failures = (
    (UrlError, USAGE),
    (SettingsError, NO_INPUT),
    (StateLockedError, LOCKED),
    (StateError, IO_ERROR),
    (ReplacedError, NO_INPUT),
    (AnswerError, UNAVAILABLE),
    (ClientError, UNAVAILABLE),
)


def add_stream(parser: argparse.ArgumentParser, metavar: str = "STREAM") -> None:
    """Add the stream that a command is about."""
    what = f"a name, a path or a URL; a name is one of the server in ${URL_VARIABLE}"
    parser.add_argument("stream", metavar=metavar, help=what)


def settings_of(args: argparse.Namespace) -> ClientSettings:
    """Return how the arguments ask to talk to a server."""
    token = args.token or ("" if args.token_file else environment_token())
    return ClientSettings(
        token=token,
        token_file=args.token_file or "",
        headers=(("User-Agent", "ds"),),
        ca_file=args.cacert or "",
        timeout_s=SILENCE_S_MAX,
        retry_s=args.retry,
    )


def connect(args: argparse.Namespace, name: str | None = None) -> DurableStream:
    """Return the stream that the arguments name."""
    url = resolve(name or args.stream, args.server)
    return DurableStream(url, settings_of(args))


def server_url(args: argparse.Namespace) -> str:
    """Return the URL of the server."""
    return server_of(resolve(None, args.server))


def client_of(args: argparse.Namespace) -> Client:
    """Return a client for requests that are not about one stream."""
    return Client(settings_of(args))


def failure(exc: ServerRefusedError) -> CommandError:
    """Return how a command ends that a server refused."""
    if isinstance(exc, DeniedError):
        hint = f"give a token with --token-file or {TOKEN_VARIABLE}, or another one"
        return CommandError(NO_PERMISSION, f"{exc}; {hint}")
    if exc.status in (404, 410):
        return CommandError(NO_INPUT, str(exc))
    if exc.status >= 500 or exc.status == 429:
        return CommandError(UNAVAILABLE, str(exc))
    return CommandError(CORRUPT, str(exc))

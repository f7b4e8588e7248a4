"""What the commands that talk to a running server share: its address, what its refusals mean."""

import argparse

from durastreamd.client import (
    TOKEN_VARIABLE,
    URL_VARIABLE,
    Client,
    ClientError,
    ClientSettings,
    CutShortError,
    DeniedError,
    ServerRefusedError,
    SettingsError,
    UnreachableError,
    UrlError,
    resolve,
)
from durastreamd.client.address import environment_token
from durastreamd.client.retry import is_passing
from durastreamd.kit.command import CommandError
from durastreamd.kit.status import CORRUPT, NO_INPUT, NO_PERMISSION, UNAVAILABLE, USAGE
from durastreamd.protocol.problems import (
    DATA_LOST,
    HTTP_VERSION_NOT_SUPPORTED,
    NOT_IMPLEMENTED,
    RETENTION_PASSED,
    STREAM_DAMAGED,
)

# Longer than any long-poll and than the heartbeat of events: silence beyond it is a lost peer.
SILENCE_S_MAX = 90.0

# Of the errors of a server those that asking again does not mend.
_LASTING = {STREAM_DAMAGED.code, NOT_IMPLEMENTED.code, HTTP_VERSION_NOT_SUPPORTED.code}

# What became of what lies before the first offset that can be read, by the reason of the refusal.
_GONE = {
    DATA_LOST.reason: "was lost, as its operator knows",
    RETENTION_PASSED.reason: "is retained no longer",
}


def add_arguments(parser: argparse.ArgumentParser, what: str) -> None:
    """Add what every command that talks to a server takes."""
    parser.add_argument("url", nargs="?", metavar="URL", help=f"{what} (${URL_VARIABLE})")
    parser.add_argument("--cacert", metavar="FILE", help="authority of the server's certificate")


def connect(args: argparse.Namespace) -> tuple[Client, str]:
    """Return a client and the URL that the arguments ask for; it tries everything once."""
    try:
        url = resolve(args.url)
    except UrlError as exc:
        raise CommandError(USAGE, str(exc)) from exc
    settings = ClientSettings(
        token=environment_token(),
        headers=(("User-Agent", "dsadmin"),),
        ca_file=args.cacert or "",
        timeout_s=SILENCE_S_MAX,
        retry_s=0,
    )
    return Client(settings), url


def may_pass(exc: ClientError) -> bool:
    """Tell whether it is worth asking again: the server is not there, went away or is busy."""
    if isinstance(exc, ServerRefusedError):
        return is_passing(exc) or (exc.status >= 500 and exc.code not in _LASTING)
    return isinstance(exc, UnreachableError | CutShortError)


def failure(exc: ClientError) -> CommandError:
    """Return how a command ends that cannot go on."""
    if isinstance(exc, SettingsError):
        return CommandError(NO_INPUT, str(exc))
    if isinstance(exc, DeniedError):
        said = "was not accepted" if environment_token() else "is not set"
        return CommandError(NO_PERMISSION, f"{exc}; the token in {TOKEN_VARIABLE} {said}")
    if not isinstance(exc, ServerRefusedError) or may_pass(exc):
        return CommandError(UNAVAILABLE, f"{exc}; is the server running?")
    if exc.code == STREAM_DAMAGED.code:
        return CommandError(CORRUPT, f"{exc}; `dsadmin verify` on the server's machine says more")
    told = exc.headers.get("stream-next-offset", "")
    if exc.status == 410 and told:
        what = _GONE.get(exc.reason, "is folded into a snapshot")
        text = f"what lies before {told} {what}; --from {told} reads on"
        return CommandError(NO_INPUT, text)
    return CommandError(NO_INPUT, str(exc))

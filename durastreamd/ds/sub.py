"""``ds sub``: pull-wake subscriptions, and a worker that runs a program for each claim."""

import argparse
import json
import os
import subprocess
import tempfile
import time

from durastreamd.client.claims import PullSubscription, WorkClaim
from durastreamd.ds.server import client_of, server_url
from durastreamd.kit.command import Command, CommandError
from durastreamd.kit.console import Console
from durastreamd.kit.status import NO_INPUT, OK, USAGE

ACTIONS = ("put", "show", "rm", "work")
PAUSE_S, PAUSE_S_MAX = 0.5, 30.0  # after a program that failed: its work is handed out again


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("action", choices=ACTIONS, metavar="ACTION", help=", ".join(ACTIONS))
    add("id", metavar="ID", help="of the subscription")
    add("program", nargs="*", metavar="COMMAND", help="work: what to run, after --")
    add("--pattern", metavar="GLOB", help="put: the streams, as jobs/* or jobs/**")
    add("--wake", metavar="STREAM", help="put: where wakes are announced; made if missing")
    add("--lease", metavar="SECONDS", type=float, default=30.0, help="put: of a claim (30)")
    add("--worker", metavar="NAME", help="work: who asks (host and process)")
    add("--once", action="store_true", help="work: end when there is no work")


def _run(args: argparse.Namespace, console: Console) -> int:
    client = client_of(args)
    subscription = PullSubscription(args.id, server_url(args), client=client)
    try:
        if args.action == "put":
            return _put(subscription, args, console)
        if args.action == "rm":
            subscription.delete()
            return OK
        if args.action == "show":
            _show(console, subscription.describe())
            return OK
        return _work(subscription, args, console)
    finally:
        client.hang_up()


def _put(subscription: PullSubscription, args: argparse.Namespace, console: Console) -> int:
    if not args.pattern or not args.wake:
        raise CommandError(USAGE, "ds sub put needs --pattern and --wake")
    subscription.stream(args.wake).create()
    told = subscription.put(args.pattern, args.wake, lease_ms=round(args.lease * 1000))
    if console.as_json or console.on_terminal:
        _show(console, told)
    return OK


def _show(console: Console, told: dict[str, object]) -> None:
    if console.as_json:
        console.record(told)
        return
    width = max(map(len, told), default=0)
    for name, value in told.items():
        text = value if isinstance(value, str) else json.dumps(value)
        console.line(f"{name.ljust(width)}  {text}")


def _work(subscription: PullSubscription, args: argparse.Namespace, console: Console) -> int:
    if not args.program:
        raise CommandError(USAGE, "ds sub work needs a program to run: ds sub work ID -- COMMAND")
    worker = args.worker or f"{os.uname().nodename}-{os.getpid()}"
    pause_s = PAUSE_S
    for claim in subscription.claims(worker, wait=not args.once):
        status = _carried_out(claim, args.program)
        if status == 0:
            pause_s = PAUSE_S
            continue
        claim.release()
        console.note(f"{args.program[0]} ended with {status}; its work is given back")
        if args.once:
            return status if status > 0 else 128 - status
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, PAUSE_S_MAX)
    return OK


def _carried_out(claim: WorkClaim, program: list[str]) -> int:
    """Run the program with the messages on its standard input, and keep the lease meanwhile."""
    with tempfile.TemporaryFile() as messages:
        for path, message in claim.messages():
            text = message.data.decode(errors="replace")
            row = {"stream": path, "after": str(message.after), "data": text}
            messages.write(json.dumps(row).encode() + b"\n")
        messages.seek(0)
        try:
            process = subprocess.Popen(program, stdin=messages)
        except OSError as exc:
            claim.release()
            raise CommandError(NO_INPUT, f"{program[0]}: {exc.strerror}") from exc
        with process:
            while True:
                try:
                    return process.wait(claim.lease_s / 3)
                except subprocess.TimeoutExpired:
                    claim.extend()


COMMAND = Command("sub", "subscriptions, and workers for them", _add_arguments, _run)

"""``dsadmin verify``: is everything in the data directory as it must be?

One line per finding on standard output, ``file:position: kind: detail``. Reads only, and beside a
running server, too: what changes under its hands is looked at again, and only what is found twice
at the same place is reported.
"""

import argparse
import time

from durastreamd.admin.place import disk_of, root_of
from durastreamd.kit.command import Command
from durastreamd.kit.console import Console
from durastreamd.offline.opening import in_use
from durastreamd.offline.repair.apply import mark_of
from durastreamd.offline.verify.census import stream_in
from durastreamd.offline.verify.findings import Finding, status_of
from durastreamd.offline.verify.verification import Examination, Runner, Scope, examine
from durastreamd.offline.verify.workers import cores, running
from durastreamd.storage import format as fmt
from durastreamd.storage.disk import RealDisk

# A checkpoint lasts well under a second; four looks this far apart outlast it.
LOOKS = 4
LOOK_AGAIN_S = 0.25


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("streams", metavar="STREAM", nargs="*", help="only these streams")
    parser.add_argument("--deep", action="store_true", help="read and check every byte of data")
    parser.add_argument("--jobs", type=int, default=cores(), metavar="N", help="processes at work")


def _run(args: argparse.Namespace, console: Console) -> int:
    disk = disk_of(args)
    mark = mark_of(disk)
    if mark is not None:
        detail = f"{mark.name} was cut short; `dsadmin repair --apply` finishes it"
        findings = [Finding(fmt.IDENTITY_FILE, 0, "repair", detail)]
    else:
        with running(str(root_of(args)), max(args.jobs, 1), console, "verify") as run:
            findings = _verify(disk, args, console, run)
    report(findings, console)
    return status_of(findings)


def _verify(
    disk: RealDisk, args: argparse.Namespace, console: Console, run: Runner
) -> list[Finding]:
    live = in_use(disk)
    if live:
        console.note("a daemon is running here; what it is changing is looked at again")
    only: frozenset[int] | None = None
    if args.streams:
        # A first look for the names alone: it reads no stream.
        census = examine(disk, Scope(live=live, only=frozenset()), run).census
        only = frozenset(stream_in(census, name) for name in args.streams)
    scope = Scope(args.deep, live, only)
    seen = examine(disk, scope, run)
    live = live or in_use(disk)
    return _settled(disk, seen, scope._replace(live=live), run) if live else seen.findings


def _settled(disk: RealDisk, seen: Examination, scope: Scope, run: Runner) -> list[Finding]:
    """Look again, until what is left was found at the same place each time."""
    foreign = [finding for finding in seen.findings if finding.kind == "foreign"]
    still = [finding for finding in seen.findings if finding.kind != "foreign"]
    for _ in range(LOOKS - 1):
        if not still:
            break
        time.sleep(LOOK_AGAIN_S)
        affected = {seen.census.names.get(f.stream, 0) for f in still}
        seen = examine(disk, scope._replace(only=frozenset(affected)), run)
        places = {finding.place for finding in seen.findings}
        still = [finding for finding in still if finding.place in places]
    return still + foreign


def report(findings: list[Finding], console: Console) -> None:
    """Write the findings, and on standard error what they come to."""
    for finding in findings:
        if console.as_json:
            console.record(finding.members())
        else:
            console.line(str(finding))
    damage = sum(not finding.harmless for finding in findings)
    if damage:
        console.note(f"{damage} findings of damage; `dsadmin repair` says what can be done")
    elif findings:
        console.note(f"{len(findings)} findings, none of damage")
    else:
        console.note("clean")


COMMAND = Command("verify", "check every file of the data directory", _add_arguments, _run)

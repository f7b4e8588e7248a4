"""``dsadmin verify``: is everything in the data directory as it must be?

One line per finding on standard output, ``file:position: kind: detail``. Reads only, and beside a
running server, too: what changes under its hands is looked at again, and only what is found twice
at the same place is reported.
"""

import argparse
import time

from durastreamd.admin.findings import report, status_of
from durastreamd.admin.place import disk_of, root_of
from durastreamd.kit import show
from durastreamd.kit.command import Command
from durastreamd.kit.console import Console
from durastreamd.kit.show import counted
from durastreamd.offline.opening import in_use
from durastreamd.offline.repair.apply import mark_of
from durastreamd.offline.verify.census import stream_in
from durastreamd.offline.verify.findings import Finding
from durastreamd.offline.verify.verification import Checked, Runner, Scope, examine, settled
from durastreamd.offline.verify.workers import cores, running
from durastreamd.storage import format as fmt
from durastreamd.storage.disk import RealDisk


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
        report(findings, "", console)
        return status_of(findings)
    begin = time.monotonic()
    with running(str(root_of(args)), max(args.jobs, 1), console, "verify") as run:
        findings, checked = _verify(disk, args, console, run)
    report(findings, _amount(checked, time.monotonic() - begin, deep=args.deep), console)
    return status_of(findings)


def _amount(checked: Checked, seconds: float, *, deep: bool) -> str:
    """Say how much was checked."""
    streams, segments = counted(checked.streams, "stream"), counted(checked.segments, "segment")
    records = counted(checked.records, "journal record")
    more = "" if deep else "; --deep reads the data, too"
    read = show.size(checked.bytes)
    return f"{streams}, {segments}, {read} read, {records}, {seconds:.1f} s{more}"


def _verify(
    disk: RealDisk, args: argparse.Namespace, console: Console, run: Runner
) -> tuple[list[Finding], Checked]:
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
    findings = settled(disk, seen, scope._replace(live=live), run) if live else seen.findings
    return findings, seen.checked


COMMAND = Command("verify", "check every file of the data directory", _add_arguments, _run)

"""``dsadmin repair`` and ``dsadmin reindex``: a plan by default, carried out with ``--apply``.

The plan names every offset that is lost before anything is touched. Holds the server's lock.
"""

import argparse
import os
import shlex

from durastreamd.admin.findings import status_of
from durastreamd.admin.mend.plans import tell, undecided
from durastreamd.admin.place import confirm, disk_of, root_of
from durastreamd.kit.command import Command, CommandError
from durastreamd.kit.console import Console
from durastreamd.kit.status import CORRUPT, FOUND, IO_ERROR, LOCKED, OK, USAGE
from durastreamd.offline.opening import in_use
from durastreamd.offline.repair.apply import Repair, mark_of
from durastreamd.offline.repair.losses import PROOFLESS, SIDES, TAKE, Keep
from durastreamd.offline.repair.plan import Plan, make_plan
from durastreamd.offline.verify.census import stream_in
from durastreamd.offline.verify.verification import Examination, Scope, examine
from durastreamd.offline.verify.workers import cores, running
from durastreamd.storage import format as fmt
from durastreamd.storage.disk import RealDisk


def _add_apply(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--apply", action="store_true", help="carry the plan out")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--verbose", action="store_true", help="name the files of the plan, too")


def _add_repair(parser: argparse.ArgumentParser) -> None:
    _add_apply(parser)
    parser.add_argument(
        "--keep",
        action="append",
        default=[],
        metavar="[STREAM=]SIDE",
        help="which side of a loss is served: larger (the default), older or newer; repeatable",
    )
    _add_unproven(parser)
    parser.add_argument("--undo", metavar="REPAIR", help="take a repair back")


def _add_unproven(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--unproven",
        action="append",
        default=[],
        metavar="[STREAM=]DEED",
        help="what to do with bytes whose checksums are lost: take or drop; repeatable",
    )


def _add_reindex(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("streams", metavar="STREAM", nargs="*", help="default: those with a fault")
    _add_apply(parser)
    _add_unproven(parser)


def _run_repair(args: argparse.Namespace, console: Console) -> int:
    disk = disk_of(args)
    keep = _keep_of(args)
    if args.undo is not None:
        return _undo(disk, args, console)
    if not args.apply:
        return _show(disk, args, keep, console)
    confirm(args, "carry out the repair of this data directory")
    with Repair(disk) as repair:
        mark = mark_of(disk)
        if mark is not None:
            repair.resume(mark)
            console.note(f"{mark.name}, which was cut short, is finished")
        seen = _examine(args, console)
        plan = make_plan(disk, seen, make_uuid=os.urandom(16), keep=keep)
        return _carry_out(repair, plan, args, console)


def _show(disk: RealDisk, args: argparse.Namespace, keep: Keep, console: Console) -> int:
    _refuse_in_use(disk, args)
    mark = mark_of(disk)
    if mark is not None:
        console.note(f"{mark.name} was cut short; `dsadmin repair --apply` finishes it")
        return CORRUPT
    seen = _examine(args, console)
    plan = make_plan(disk, seen, make_uuid=os.urandom(16), keep=keep)
    tell(plan, root_of(args), console, verbose=args.verbose)
    if plan.empty:
        console.note("nothing can be repaired" if plan.left else "nothing to repair")
        return IO_ERROR if plan.left else OK
    _nothing_changed(plan, console)
    return status_of(plan.findings) or FOUND


def _run_reindex(args: argparse.Namespace, console: Console) -> int:
    disk = disk_of(args)
    if not args.apply:
        _refuse_in_use(disk, args)
        plan = _reindex_plan(disk, args, console)
        tell(plan, root_of(args), console, verbose=args.verbose)
        if not plan.empty:
            _nothing_changed(plan, console)
        return OK if plan.empty else status_of(plan.findings)
    confirm(args, "write indexes anew")
    with Repair(disk) as repair:
        return _carry_out(repair, _reindex_plan(disk, args, console), args, console)


def _reindex_plan(disk: RealDisk, args: argparse.Namespace, console: Console) -> Plan:
    if mark_of(disk) is not None:
        raise CommandError(CORRUPT, "a repair was cut short; run `dsadmin repair --apply` first")
    seen = _examine(args, console)
    names = seen.census.names
    faulty = [f.stream for f in seen.findings if f.path.endswith(".idx") and not f.harmless]
    wanted = {stream_in(seen.census, name) for name in args.streams}
    if not args.streams:
        wanted = {names[key] for key in faulty if key in names}
    if not wanted:
        console.note("every index is whole; name a stream to have its indexes written again")
        return Plan(seen.findings)
    unproven, named = _choice("--unproven", args.unproven, (TAKE,))
    plan = make_plan(
        disk,
        seen,
        make_uuid=os.urandom(16),
        keep=Keep(unproven=unproven, unproven_named=named),
        rebuild=frozenset(wanted),
    )
    if any(loss["what"] != "without proof" for loss in plan.losses):
        text = "more than indexes is damaged; `dsadmin repair` says what can be done"
        raise CommandError(CORRUPT, text)
    return plan


def _nothing_changed(plan: Plan, console: Console) -> None:
    what = f"before --apply, {undecided(plan)}" if plan.undecided else "--apply carries this out"
    console.note(f"nothing was changed; {what}")


def _carry_out(repair: Repair, plan: Plan, args: argparse.Namespace, console: Console) -> int:
    tell(plan, root_of(args), console, verbose=args.verbose)
    if plan.empty:
        console.note("nothing can be repaired" if plan.left else "nothing to repair")
        return IO_ERROR if plan.left else OK
    if plan.undecided:
        raise CommandError(USAGE, f"nothing was changed; {undecided(plan)}")
    name = repair.apply(plan)
    root = shlex.quote(str(root_of(args)))
    undo = f"dsadmin --data-dir {root} repair --undo {name} --apply --yes"
    if console.as_json:
        console.record({"type": "done", "repair": name, "undo": undo})
    else:
        console.line(f"done: originals and manifest are in {fmt.QUARANTINE_DIR}/{name}")
        console.line(f"undo: {undo}")
    return IO_ERROR if plan.left else OK


def _keep_of(args: argparse.Namespace) -> Keep:
    """Return what was chosen of a loss: what was said last counts, of all and of each stream."""
    side, named = _choice("--keep", args.keep, SIDES)
    unproven, of_some = _choice("--unproven", args.unproven, PROOFLESS)
    return Keep(side or SIDES[0], named, unproven, of_some)


def _choice(option: str, said: list[str], words: tuple[str, ...]) -> tuple[str, dict[str, str]]:
    chosen = ""
    named: dict[str, str] = {}
    for text in said:
        name, _, wanted = text.rpartition("=")
        if wanted not in words:
            among = " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))
            told = f"{option} takes {among}, for all streams or after STREAM="
            raise CommandError(USAGE, f"{told}, not {text!r}")
        if name:
            named[name] = wanted
        else:
            chosen = wanted
    return chosen, named


def _undo(disk: RealDisk, args: argparse.Namespace, console: Console) -> int:
    if not args.apply:
        text = "--undo changes files at once; add --apply to confirm"
        raise CommandError(USAGE, text)
    confirm(args, f"take {args.undo} back")
    with Repair(disk) as repair:
        mark = mark_of(disk)
        if mark is not None:
            repair.resume(mark)
        if mark is None or mark.direction != "back":
            repair.undo(args.undo)
    console.note(f"{args.undo} is undone; the data directory is as it was before")
    return OK


def _refuse_in_use(disk: RealDisk, args: argparse.Namespace) -> None:
    if in_use(disk):
        raise CommandError(LOCKED, f"{root_of(args)} is in use; stop the daemon first")


def _examine(args: argparse.Namespace, console: Console) -> Examination:
    with running(str(root_of(args)), cores(), console, "verify") as run:
        return examine(disk_of(args), Scope(deep=True), run)


REPAIR = Command("repair", "mend what is damaged; shows a plan first", _add_repair, _run_repair)
REINDEX = Command("reindex", "write damaged indexes again", _add_reindex, _run_reindex)

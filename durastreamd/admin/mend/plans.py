"""How the plan of a repair is told: what it comes to, then each stream that is not as it was.

The order is that of the questions an operator has: how bad is it, which streams, what do they keep,
could they keep something else. Which files are written and moved is told on request. As JSON a plan
is one object, whatever it holds; dsadmin(8) names its members.
"""

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from durastreamd.kit import show
from durastreamd.kit.console import Console
from durastreamd.kit.show import counted
from durastreamd.offline.repair.losses import TAKE
from durastreamd.offline.repair.plan import Plan
from durastreamd.offline.repair.settling import Affected
from durastreamd.offline.verify.census import Ranges

_LEFT = "make it readable and repair again, or move it away to give up what it holds"
_OUTCOMES = ("untouched", "left alone", "whole", "in part", "lost", "undecided")
# Of the ranges of one stream; more are in the JSON form and in the manifest.
RANGES_SHOWN_MAX = 3
SCREEN_STREAMS = 8
NAME_TYPED_MAX = 60  # characters that anybody would type or copy into a command


def tell(plan: Plan, root: Path, console: Console, *, verbose: bool) -> None:
    """Write a plan."""
    if console.as_json:
        console.record(_members(plan, root))
        return
    for line in _lines(plan, root):
        console.line(line)
    if verbose:
        for path in plan.out:
            console.line(f"quarantine: {show.name(path)}")
        for file in plan.made:
            console.line(f"write: {file.path}")
        for path in plan.emptied:
            console.line(f"remove: {path}/")
    elif not plan.empty:
        files = counted(len(plan.made), "file")
        console.line(
            f"{files} to write, {len(plan.out):,} to move to quarantine (--verbose names them)"
        )


def _outcomes(plan: Plan) -> dict[str, int]:
    found = Counter(told.outcome for told in plan.affected)
    found["left alone"] = len(plan.left)
    found["untouched"] = plan.streams - found.total()
    return {name: found[name] for name in _OUTCOMES}


def undecided(plan: Plan) -> str:
    """Say what an operator has to choose."""
    which = counted(len(plan.undecided), "stream has", "streams have")
    return (
        f"{which} bytes that nothing proves: --unproven take serves them as they are, "
        "--unproven drop leaves them in quarantine (STREAM=take, STREAM=drop for one stream)"
    )


def _lines(plan: Plan, root: Path) -> Iterator[str]:
    left = [
        f"left alone: {show.name(key)}: {show.name(why)}; {_LEFT}" for key, why in plan.left.items()
    ]
    if plan.empty:
        yield from left
        return
    words = {
        "whole": "whole, but see below",
        "in part": "kept in part",
        "undecided": "for you to decide",
    }
    sums = [
        f"{number:,} {words.get(name, name)}"
        for name, number in _outcomes(plan).items()
        if number or name == "untouched"
    ]
    summary = f"plan for {root}: {counted(plan.streams, 'stream')}: {', '.join(sums)}"
    yield summary
    yield from left
    for told in plan.affected:
        yield from _stream(told)
    for loss in plan.losses:
        if "from" not in loss and loss["what"] != "snapshot":
            whose = f"{loss['stream']}: " if loss["stream"] else ""
            yield show.name(f"lost: {whose}{loss['detail']}")
    yield from (show.name(f"not known: {doubt}") for doubt in plan.doubts)
    yield from (show.name(f"note: {note}") for note in plan.notes)
    if any(told.unproven for told in plan.affected):
        yield (
            "taken without proof: served as it is; the checksums are lost, so nobody can tell "
            "whether it is what was written"
        )
    forgotten = any(told.producers_lost for told in plan.affected)
    if forgotten:
        yield "forgotten producers: a retry of theirs may be refused, or stored again"
    if not plan.losses and not plan.doubts and not plan.left:
        yield "no byte is lost, but producers are forgotten" if forgotten else "nothing is lost"
    if len(plan.affected) > SCREEN_STREAMS:  # it has left the screen by now
        yield summary


def streams_told(plan: Plan) -> Iterator[str]:
    """Yield a line for each stream that is not as it was: what stays of it."""
    for told in plan.affected:
        yield next(_stream(told))


def _stream(told: Affected) -> Iterator[str]:
    name = show.name(told.stream)
    low, high = told.served
    messages = "" if told.messages is None else f", {counted(told.messages, 'message')}"
    unproven = sum(last - first for first, last in told.unproven)
    size = f"{told.bytes_served:,} of {told.bytes_before:,} bytes"
    if told.outcome == "whole":
        proof = f", {unproven:,} of them taken without proof" if unproven else ""
        yield f"{name}: whole, {counted(told.bytes_served, 'byte')}{proof}"
    elif told.undecided:
        yield f"{name}: {size} are proven, offsets {low} to {high}{messages}"
    elif told.bytes_served:
        yield f"{name}: keeps {size}, offsets {low} to {high}{messages}"
    else:
        yield f"{name}: none of {told.bytes_before:,} bytes is left; it goes on at {high}"
    yield from _what_goes(told)
    yield from _otherwise(told)
    if told.unproven and told.outcome != "whole":
        yield f"  taken without proof: {_ranges(told.unproven)}"
    if told.producers_lost:
        yield f"  producers: {told.producers_lost}"


def _what_goes(told: Affected) -> Iterator[str]:
    if told.lost:
        yield f"  lost: {_ranges(told.lost)}"
    if told.doubtful:
        yield f"  without proof, its checksums are lost: {_ranges(told.doubtful)}"
    if told.given_up:
        yield f"  given up with it, though whole: {_ranges(told.given_up)}"
    if told.snapshot_lost:
        yield f"  lost: its snapshot, {told.snapshot_lost}"
    elif told.snapshot is not None and told.snapshot < told.served[0]:
        yield f"  its snapshot at {told.snapshot} stays, to be read by itself"


def _otherwise(told: Affected) -> Iterator[str]:
    """Yield what each other choice would keep, with the option that makes it."""
    choices = [("--keep", side, told.id, told.stream, run) for side, run in told.instead.items()]
    if told.if_taken is not None:
        taken = ("--unproven", TAKE, told.doubtful_id, told.doubtful_of, told.if_taken)
        choices.insert(0, taken)
    for option, word, stream, key, (first, last) in choices:
        # An id names a stream as well, and can be typed whatever characters the name is made of.
        name = key if key.isprintable() and len(key) <= NAME_TYPED_MAX else f"{stream:016x}"
        said = shlex.quote(f"{name}={word}")
        yield f"  otherwise: {option} {said} keeps {last - first:,} bytes, {first} to {last}"


def _ranges(ranges: Ranges) -> str:
    shown = ", ".join(f"{low} to {high}" for low, high in ranges[:RANGES_SHOWN_MAX])
    more = len(ranges) - RANGES_SHOWN_MAX
    total = sum(high - low for low, high in ranges)
    return f"{counted(total, 'byte')}, {shown}{f' and {more} more places' if more > 0 else ''}"


def _members(plan: Plan, root: Path) -> dict[str, object]:
    return {
        "type": "plan",
        "data_dir": str(root),
        "streams": {name.replace(" ", "_"): n for name, n in _outcomes(plan).items()},
        "affected": [_affected(told) for told in plan.affected],
        "losses": [
            {"what": loss["what"], "stream": loss["stream"] or None, "detail": loss["detail"]}
            for loss in plan.losses
            if "from" not in loss
        ],
        "left": [{"stream": key, "detail": why} for key, why in plan.left.items()],
        "doubts": plan.doubts,
        "notes": plan.notes,
        "quarantine": plan.out,
        "write": [file.path for file in plan.made],
        "remove": plan.emptied,
    }


def _affected(told: Affected) -> dict[str, object]:
    return {
        "stream": told.stream,
        "outcome": told.outcome.replace(" ", "_"),
        "bytes_before": told.bytes_before,
        "bytes": told.bytes_served,
        "messages": told.messages,
        "from": told.served[0],
        "to": told.served[1],
        "lost": _pairs(told.lost),
        "given_up": _pairs(told.given_up),
        "unproven": _pairs(told.unproven),
        "without_proof": _pairs(told.doubtful),
        "if_taken": list(told.if_taken) if told.if_taken is not None else None,
        "snapshot": told.snapshot,
        "snapshot_lost": told.snapshot_lost or None,
        "producers_lost": told.producers_lost or None,
        "keep": told.keep or None,
        "instead": {side: list(run) for side, run in told.instead.items()},
    }


def _pairs(ranges: Iterable[tuple[int, int]]) -> list[list[int]]:
    return [list(run) for run in ranges]

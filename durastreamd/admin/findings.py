"""What findings come to: lines on standard output, a word on standard error, an exit status."""

from collections.abc import Iterable

from durastreamd.kit import show
from durastreamd.kit.console import Console
from durastreamd.kit.show import counted
from durastreamd.kit.status import CORRUPT, FOUND, IO_ERROR, OK
from durastreamd.offline.verify.findings import UNREADABLE, Finding


def status_of(findings: Iterable[Finding]) -> int:
    """Return the exit status that a set of findings comes to."""
    worst = OK
    findings = list(findings)
    if any(finding.kind == UNREADABLE for finding in findings):
        return IO_ERROR
    for finding in findings:
        if not finding.harmless:
            return CORRUPT
        worst = FOUND
    return worst


def report(findings: list[Finding], checked: str, console: Console) -> None:
    """Write the findings, and on standard error what they come to and of how much."""
    for finding in findings:
        if console.as_json:
            console.record(finding.members())
        else:
            console.line(show.name(str(finding)))
    damage = sum(not finding.harmless for finding in findings)
    if damage:
        found = counted(damage, "finding")
        console.note(f"{found} of damage; `dsadmin repair` says what can be done")
    elif findings:
        console.note(f"{counted(len(findings), 'finding')}, none of damage")
    else:
        console.note(f"clean: {checked}")

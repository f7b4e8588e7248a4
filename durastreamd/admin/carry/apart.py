"""What does not verify is set apart in a backup, so that the rest of it verifies and can be served.

A backup in the making is a data directory of its own. If something in it does not verify, it is
repaired there as any other would be: the larger side of each loss stays, bytes without proof do
not, and the originals lie in the backup's own quarantine/, where no server looks. The directory
that is backed up is left as it is; repairing that one is for its operator.
"""

import os
from pathlib import Path

from durastreamd.admin.carry.tree import Tree
from durastreamd.kit.console import Console
from durastreamd.offline.repair.apply import Repair
from durastreamd.offline.repair.losses import DROP, Keep
from durastreamd.offline.repair.plan import Plan, make_plan
from durastreamd.offline.verify.verification import Scope, examine
from durastreamd.offline.verify.workers import cores, running
from durastreamd.storage import format as fmt
from durastreamd.storage.disk import RealDisk


def set_apart(draft: Path, tree: Tree, console: Console) -> Plan:
    """Have a tree hold nothing but what verifies, and the rest in quarantine; return the plan."""
    disk = RealDisk(str(draft))
    with running(str(draft), cores(), console, "set apart") as run:
        seen = examine(disk, Scope(deep=True), run)
    plan = make_plan(disk, seen, make_uuid=os.urandom(16), keep=Keep(unproven=DROP))
    if not plan.empty:
        with Repair(disk) as repair:
            repair.apply(plan)
        tree.look_again({fmt.IDENTITY_FILE, *(file.path for file in plan.made)})
    return plan

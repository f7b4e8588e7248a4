"""The cheap part of the damage table: a kind of each sort, with the choice that is the default."""

import subprocess
import sys
from pathlib import Path

from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parent.parent.parent


def test_no_damage_makes_the_server_or_a_repair_say_what_is_not_true(tmp_path: Path) -> None:
    """Wrong bytes before and after a repair, streams altered, left unclean, tracebacks: none."""
    words = ["--every", "14", "--keep", "larger", "--dir", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools/damage_table.py"), *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=10 * PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| **all 9** | | **0** | **0** | **0** | **0** | **0** |" in done.stdout

"""House rules are a test, too."""

import subprocess
import sys
from pathlib import Path


def test_the_tree_is_tidy() -> None:
    script = Path(__file__).parent.parent / "tools" / "tidy.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout

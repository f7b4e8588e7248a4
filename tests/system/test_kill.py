"""kill -9 at any moment, again and again, on one directory: nothing promised is lost or doubled."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_S, wait_until
from tests.system import writer_process

ROOT = Path(__file__).parents[2]
LIVES = 9
ACKS_BYTES = 8_000  # up to some hundred promises in a life


def spawn(data: Path, acks: Path, run: int, *more: str) -> "subprocess.Popen[bytes]":
    script = str(ROOT / "tests/system/writer_process.py")
    return subprocess.Popen(
        [sys.executable, script, str(data), str(acks), str(run), *more],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
    )


def wait_for_acks(process: "subprocess.Popen[bytes]", acks: Path, size: int) -> None:
    """Wait until what the writer has been promised takes more than ``size`` bytes."""

    def more() -> bool:
        if process.poll() is not None:
            assert process.stderr is not None
            pytest.fail(f"the writer ended: {process.stderr.read().decode()[-2000:]}")
        return acks.exists() and acks.stat().st_size > size

    wait_until(more, "the writer does not get on")


@pytest.mark.slow
@pytest.mark.system
def test_acknowledged_appends_survive_kills(tmp_path: Path) -> None:
    data, acks = tmp_path / "data", tmp_path / "acks"
    data.mkdir()
    rng = random.Random(2026)
    checked = writer_process.Checked(0, 0, 0)
    for life in range(LIVES):
        size = acks.stat().st_size if acks.exists() else 0
        process = spawn(data, acks, life)
        try:
            wait_for_acks(process, acks, size + rng.randrange(ACKS_BYTES))
        finally:
            process.kill()
            _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == -9, errors.decode()[-2000:]
        if life % 4 == 3:  # a recovery between lives that is not followed by writes
            checked = writer_process.check(data, acks)
    again = writer_process.check(data, acks)
    assert again.acknowledged >= checked.acknowledged > 0
    assert again.stored > 200, "too little was written to prove anything"
    assert again.deleted > 0
    assert writer_process.check(data, acks) == again, "recovering twice is recovering once"

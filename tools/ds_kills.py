"""Kills a server under ``ds append`` and ``ds tail``, and ``ds append`` itself, over and over.

Run as ``python -m tools.ds_kills [KILLS]``. One ``ds append`` writes numbered lines, each an append
of its own, one ``ds tail`` follows. The server is killed and started again; then the writer is
killed and given again. In the end the stream, and what the follower printed, are the lines, once.
"""

import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from durastreamd.client.producer_state import StateFile
from tests.support.daemon import ROOT, Daemon
from tests.support.patience import PATIENCE_S

DS = [sys.executable, "-m", "durastreamd.ds.cli"]
LINES_AT_ONCE = 10  # what comes down the pipe between two looks at the time


def hunt(home: Path, *, kills: int, own_kills: int, lines: int) -> list[str]:
    """Kill so often; return what was wrong."""
    wanted = [f"line {number}" for number in range(lines)]
    environ = {**os.environ, "XDG_STATE_HOME": str(home / "state"), "PYTHONPATH": str(ROOT)}
    chance = random.Random(kills)
    with Daemon(home) as daemon, (home / "seen").open("wb") as seen:
        url = daemon.stream("killed")
        append = [*DS, "append", "--retry", "900", "--no-state", url]
        tail = [*DS, "tail", "--retry", "900", "--from", "-1", url]
        subprocess.run([*DS, "create", url], env=environ, check=True, capture_output=True)
        follower = subprocess.Popen(tail, env=environ, stdout=seen)
        try:
            half = lines // 2
            _under_server_kills(daemon, append, environ, wanted[:half], kills, chance)
            _under_own_kills([*DS, "append", url], environ, home, wanted[half:], own_kills, chance)
            subprocess.run([*DS, "close", url], env=environ, check=True)
            follower.wait(PATIENCE_S)
        finally:
            follower.kill()
            follower.wait()
        stored = subprocess.run([*DS, "cat", url], env=environ, check=True, capture_output=True)
    return [
        *_compared("stored", stored.stdout.decode().splitlines(), wanted),
        *_compared("followed", (home / "seen").read_text().splitlines(), wanted),
    ]


def _under_server_kills(
    daemon: Daemon,
    append: list[str],
    environ: dict[str, str],
    lines: list[str],
    kills: int,
    chance: random.Random,
) -> None:
    """Feed one ``ds append`` its lines, piece by piece, and kill the server in between."""
    pieces = [lines[at : at + LINES_AT_ONCE] for at in range(0, len(lines), LINES_AT_ONCE)]
    deaths = set(chance.sample(range(1, len(pieces)), kills))
    with subprocess.Popen(
        append, env=environ, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as writer:
        assert writer.stdin is not None
        for number, piece in enumerate(pieces):
            writer.stdin.write("".join(f"{line}\n" for line in piece).encode())
            writer.stdin.flush()
            time.sleep(chance.uniform(0.0, 0.08))  # somewhere in an append, or between two
            if number in deaths:
                daemon.kill9()
                daemon.start()
        writer.stdin.close()
        if writer.wait(PATIENCE_S) != 0:
            message = f"ds append ended with {writer.returncode}"
            raise RuntimeError(message)


def _under_own_kills(
    append: list[str],
    environ: dict[str, str],
    home: Path,
    lines: list[str],
    kills: int,
    chance: random.Random,
) -> None:
    """Kill ``ds append`` of a file again and again, then let it finish."""
    source = home / "rest"
    source.write_text("".join(f"{line}\n" for line in lines))
    command = [*append, "--file", str(source)]
    for _ in range(kills):
        with subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL) as writer:
            time.sleep(chance.uniform(0.2, 0.6))
            writer.kill()
            writer.wait()
        if _finished(home):
            return  # to give it again would be to append it again
    subprocess.run(command, env=environ, check=True, stdout=subprocess.DEVNULL)


def _finished(home: Path) -> bool:
    """Tell whether the append is done: its state is there, and holds no mark."""
    for path in (home / "state").rglob("*.state"):
        file = StateFile(path)
        found = file.load()
        file.release()
        if found is not None and not found.mark:
            return True
    return False


def _compared(what: str, found: list[str], wanted: list[str]) -> list[str]:
    if found == wanted:
        return []
    lost, doubled = len(set(wanted) - set(found)), len(found) - len(set(found))
    return [f"{what}: {len(found)} of {len(wanted)} lines, {lost} lost, {doubled} doubled"]


def main() -> int:
    """Kill as often as the argument says."""
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    with tempfile.TemporaryDirectory() as home:
        wrong = hunt(Path(home), kills=kills, own_kills=kills, lines=200 * kills)
    print("\n".join(wrong) or f"{kills} kills of the server, {kills} of ds append: all lines once")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""The single executable on a host that has nothing: no Python, no C library, no /proc."""

import ctypes
import fcntl
import os
import shutil
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from durastreamd import __version__
from tests.packaging.built import Built, EmptyRoot, run, serving, write_and_read
from tests.support.patience import PATIENCE_S, wait_until

pytestmark = [pytest.mark.system, pytest.mark.slow]

PR_SET_MDWE, MDWE_REFUSE_EXEC_GAIN = 65, 1  # linux/prctl.h; since Linux 6.3
NOBODY = 65534


@pytest.fixture(scope="module")
def root(built: Built, tmp_path_factory: pytest.TempPathFactory) -> EmptyRoot:
    """An empty root in which the executable has been started once."""
    made = EmptyRoot(tmp_path_factory.mktemp("host") / "root", built.binary)
    done = made.run("/durastreamd", "--version")
    assert (done.returncode, done.stderr) == (0, "")
    return made


@pytest.fixture
def fresh(built: Built, tmp_path: Path) -> EmptyRoot:
    """An empty root in which nothing has run."""
    return EmptyRoot(tmp_path / "root", built.binary)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["/durastreamd"], "durastreamd"),
        (["/dsadmin"], "dsadmin"),
        (["/durastreamd", "admin"], "dsadmin"),
        (["/durastreamd", "ds"], "ds"),
    ],
)
def test_both_commands_in_an_empty_root(root: EmptyRoot, words: list[str], told: str) -> None:
    done = root.run(*words, "--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{told} {__version__}\n"


def test_it_serves_from_an_empty_root_as_the_process_that_was_started(
    root: EmptyRoot, tmp_path: Path
) -> None:
    command = root.command(
        "/durastreamd", "--init", "--listen", "127.0.0.1:0", "--data-dir", "/data"
    )
    with serving(command, tmp_path / "log") as (url, process):
        assert write_and_read(url) == "one, two"
        # Not a child of a launcher: readiness, LISTEN_PID and signals are about this very process.
        here = Path("/proc", str(process.pid))
        assert (here / "comm").read_text() == "durastreamd\n"
        assert not (here / "task" / str(process.pid) / "children").read_text()
        maps = (here / "maps").read_text().splitlines()
        mapped = {line.split()[5] for line in maps if "/" in line}
        outside = [path for path in mapped if not path.startswith(str(root.path))]
        assert not outside, "files of the host are mapped"
    done = root.run("/dsadmin", "--data-dir", "/data", "--help")
    assert done.returncode == 0


def test_sockets_of_a_service_manager_reach_the_server(built: Built, tmp_path: Path) -> None:
    activate = shutil.which("systemd-socket-activate")
    if activate is None:
        pytest.skip("systemd-socket-activate is not installed")
    with socket.create_server(("127.0.0.1", 0)) as found:
        address = f"127.0.0.1:{found.getsockname()[1]}"
    cache = tmp_path / "cache"
    server = [str(built.binary), "--init", "--data-dir", str(tmp_path / "data")]
    options = ["-l", address, "--fdname=http", "-E", f"CACHE_DIRECTORY={cache}"]
    process = subprocess.Popen(
        [activate, *options, *server, "--listen", "fd:3"], stderr=subprocess.DEVNULL
    )
    try:
        _connect(address)  # the first connection is what starts the server
        assert write_and_read(f"http://{address}") == "one, two"
        told = Path("/proc", str(process.pid), "environ").read_text().split("\0")
        assert f"LISTEN_PID={process.pid}" in told
    finally:
        process.terminate()
        assert process.wait(PATIENCE_S) == 0


def _connect(address: str) -> None:
    host, _, port = address.partition(":")

    def connects() -> bool:
        try:
            socket.create_connection((host, int(port)), PATIENCE_S).close()
        except ConnectionRefusedError:
            return False
        return True

    wait_until(connects, f"nobody listens on {address}")


def test_it_runs_where_memory_may_not_become_executable(root: EmptyRoot) -> None:
    """The unit says MemoryDenyWriteExecute=yes."""

    def deny() -> None:
        assert ctypes.CDLL(None).prctl(PR_SET_MDWE, MDWE_REFUSE_EXEC_GAIN, 0, 0, 0) == 0

    for words in (["/durastreamd"], ["/dsadmin"]):
        command = root.command(*words, "--version")
        done = subprocess.run(command, preexec_fn=deny, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_processes_that_start_together_unpack_once(fresh: EmptyRoot) -> None:
    with ThreadPoolExecutor(3) as pool:
        done = list(pool.map(lambda _: fresh.run("/durastreamd", "--version"), range(3)))
    assert [each.returncode for each in done] == [0, 0, 0], done
    assert len(fresh.trees()) == 1
    assert not (fresh.path / "var/cache/durastreamd/draft").exists()


def test_a_tree_that_a_cleaner_has_bitten_into_is_made_again(root: EmptyRoot) -> None:
    (tree,) = root.trees()
    before = tree.stat().st_ino
    os.truncate(tree / "python/packages/durastreamd/cli.pyc", 10)
    assert root.run("/durastreamd", "--version").returncode == 0
    assert tree.stat().st_ino != before
    before = tree.stat().st_ino
    assert root.run("/durastreamd", "--version").returncode == 0
    assert tree.stat().st_ino == before, "unpacked although whole"


def test_trees_of_other_versions_are_cleared_away_unless_held(root: EmptyRoot) -> None:
    (tree,) = root.trees()
    unused, held = (tree.with_name(f"tree-{name}") for name in ("unused", "held"))
    for path in (unused, held):
        (path / "lib").mkdir(parents=True)
    (tree / "durastreamd").unlink()
    fd = os.open(held, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)
        assert root.run("/durastreamd", "--version").returncode == 0
    finally:
        os.close(fd)
    assert root.trees() == sorted([tree, held])
    shutil.rmtree(held)


def test_a_running_server_holds_its_tree(root: EmptyRoot, tmp_path: Path) -> None:
    command = root.command(
        "/durastreamd", "--init", "--listen", "127.0.0.1:0", "--data-dir", "/held"
    )
    (tree,) = root.trees()
    fd = os.open(tree, os.O_RDONLY)
    try:
        with serving(command, tmp_path / "log"):
            with pytest.raises(BlockingIOError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(fd)


def test_a_place_that_others_may_write_to_is_not_used(fresh: EmptyRoot) -> None:
    for name in ("open", "theirs", "mine"):
        (fresh.path / name).mkdir()
    (fresh.path / "open").chmod(0o777)
    os.chown(fresh.path / "theirs", NOBODY, NOBODY)
    for name in ("open", "theirs", "mine"):
        done = fresh.run("/durastreamd", "--version", CACHE_DIRECTORY=f"/{name}")
        assert done.returncode == 0, done.stderr
    assert len(fresh.trees("mine")) == 1
    assert len(fresh.trees()) == 1
    assert not fresh.trees("open")
    assert not fresh.trees("theirs")


def test_a_planted_link_in_a_shared_directory_is_not_followed(fresh: EmptyRoot) -> None:
    for name in ("tmp", "own"):
        (fresh.path / name).mkdir()
    (fresh.path / "tmp").chmod(0o1777)
    (fresh.path / "tmp" / "durastreamd-0").symlink_to("/own")
    (fresh.path / "var").symlink_to("nowhere")
    done = fresh.run("/durastreamd", "--version")
    assert done.returncode == 73
    assert not fresh.trees("own")


def test_a_place_below_a_directory_of_another_user_is_not_used(fresh: EmptyRoot) -> None:
    """Who owns a directory above could exchange the tree between the check and the start."""
    (fresh.path / "theirs" / "cache").mkdir(parents=True)
    os.chown(fresh.path / "theirs", NOBODY, NOBODY)
    (fresh.path / "var").symlink_to("nowhere")
    done = fresh.run("/durastreamd", "--version", XDG_CACHE_HOME="/theirs/cache")
    assert done.returncode == 73
    assert "/theirs/cache/durastreamd: another user may change" in done.stderr
    assert not (fresh.path / "theirs/cache/durastreamd").exists()


def test_a_user_without_a_home_unpacks_where_everybody_may_write(fresh: EmptyRoot) -> None:
    (fresh.path / "tmp").mkdir()
    (fresh.path / "tmp").chmod(0o1777)
    env, clear, chroot, *rest = fresh.command("/durastreamd", "--version")
    done = run([env, clear, chroot, f"--userspec={NOBODY}:{NOBODY}", *rest])
    assert (done.returncode, done.stderr) == (0, "")
    assert len(fresh.trees(f"tmp/durastreamd-{NOBODY}")) == 1


def test_without_a_place_it_says_what_to_set(fresh: EmptyRoot, tmp_path: Path) -> None:
    """Every place is mounted so that nothing in it may be executed, and the rest is read-only."""
    (fresh.path / "tmp").mkdir()
    mounts = (
        f"mount --bind {fresh.path} {fresh.path} && "
        f"mount -t tmpfs -o noexec none {fresh.path}/tmp && "
        f"mount -o remount,bind,ro {fresh.path} && "
    )
    inside = f"exec chroot {fresh.path} /durastreamd --version"
    done = run(["unshare", "--mount", "sh", "-c", mounts + inside])
    assert done.returncode == 73, done.stderr
    assert "/var/cache/durastreamd: No such file" in done.stderr
    assert "/tmp/durastreamd-0: it is mounted noexec" in done.stderr
    assert "CACHE_DIRECTORY" in done.stderr
    # With one place that allows execution it runs.
    mounts += f"mount -t tmpfs none {fresh.path}/tmp && "
    done = run(["unshare", "--mount", "sh", "-c", mounts + inside])
    assert (done.returncode, done.stderr) == (0, "")


def test_the_tree_holds_the_server_and_nothing_of_spark_or_of_the_builder(
    root: EmptyRoot,
) -> None:
    (tree,) = root.trees()
    packages = {path.name.partition("-")[0] for path in (tree / "python/packages").iterdir()}
    assert {"durastreamd", "trio", "h11", "h2", "cryptography", "rich"} <= packages
    assert not packages & {"pyspark", "pyarrow", "matplotlib", "numpy", "pip", "pytest"}
    assert not [name for name in packages if name.startswith("pyspark")]
    assert not (tree / "python/packages/durastreamd/spark").exists()
    builder = str(Path(__file__).resolve().parent.parent.parent).encode()
    leaks = [path for path in tree.rglob("*") if path.is_file() and builder in path.read_bytes()]
    assert not leaks
    assert "OpenSSL" in (tree / "COPYRIGHT").read_text()

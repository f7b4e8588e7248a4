"""What a session needs before its JVM starts; the rest is shown by the tests that use one."""

import os
import sys
from pathlib import Path

import pytest

from durastreamd.spark import session
from durastreamd.spark.errors import JavaMissingError


def test_a_missing_java_is_told_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaMissingError, match="apt-get install openjdk-17-jre-headless"):
        session.build_session()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissingError, match="set JAVA_HOME"):
        session.java()


def test_workers_get_the_python_of_the_driver_unless_somebody_chose(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "java", lambda: "java")
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP"):
        # Set first, so that what the function sets is taken back after the test.
        monkeypatch.setenv(name, "chosen")
        monkeypatch.delenv(name)
    session.prepare_environment(local=False)
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert "SPARK_LOCAL_IP" not in os.environ
    monkeypatch.setenv("PYSPARK_PYTHON", "chosen")
    session.prepare_environment(local=True)
    assert (os.environ["PYSPARK_PYTHON"], os.environ["SPARK_LOCAL_IP"]) == ("chosen", "127.0.0.1")


def test_the_cache_is_the_user_s_own_and_the_archive_is_used_once_it_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(session, "java", lambda: "/bin/true")
    assert session.cache_home() == tmp_path / "durastreamd" / "spark"
    assert session.cache_home().stat().st_mode & 0o077 == 0
    assert "SharedArchiveFile" not in session.java_options()
    session.class_archive().touch()
    assert f"-XX:SharedArchiveFile={session.class_archive()}" in session.java_options()
    assert "SharedArchiveFile" not in session.java_options(archive=False)
    assert "rootLogger.level = error" in session.quiet_log().read_text()

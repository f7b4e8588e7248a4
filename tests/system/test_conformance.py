"""The public conformance suite, 0.3.6, against the real daemon. Also: tools/conformance."""

from pathlib import Path

import pytest

from tools import conformance_run

PASSED = 338  # All of them.

pytestmark = [pytest.mark.system, pytest.mark.slow]


@pytest.mark.parametrize("h2", [False, True], ids=["http1", "tls-h2"])
def test_every_test_of_the_public_suite_passes(tmp_path: Path, *, h2: bool) -> None:
    with conformance_run.own_server(tmp_path, tls=h2, h2=h2) as way:
        score = conformance_run.run(way, quiet=True)
    assert score.failures == ()
    assert (score.passed, score.failed) == (PASSED, 0)
    assert score.exit_status == 0

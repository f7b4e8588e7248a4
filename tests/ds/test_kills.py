"""A server that is killed under ``ds append`` and ``ds tail``: nothing is lost, nothing doubled.

``tools/ds_kills.py`` does the same for longer, with ``ds append`` killed as well.
"""

from pathlib import Path

import pytest

from tools import ds_kills

pytestmark = [pytest.mark.system, pytest.mark.slow]


def test_kills_of_the_server_and_of_the_writer_lose_and_double_nothing(tmp_path: Path) -> None:
    assert ds_kills.hunt(tmp_path, kills=2, own_kills=2, lines=400) == []

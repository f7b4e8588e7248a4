"""Which command ``durastreamd/__main__.py`` runs: by its name, or by the first word."""

import pytest

from durastreamd import __version__
from durastreamd.__main__ import main


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["durastreamd"], "durastreamd"),
        (["/usr/bin/durastreamd"], "durastreamd"),
        (["/srv/durastreamd/__main__.py"], "durastreamd"),
        (["dsadmin"], "dsadmin"),
        (["./dsadmin"], "dsadmin"),
        (["durastreamd", "admin"], "dsadmin"),
        (["/usr/bin/ds"], "ds"),
        (["durastreamd", "ds"], "ds"),
    ],
)
def test_name_or_first_word(argv: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*argv, "--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"{told} {__version__}\n"


def test_only_the_first_word_counts(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["dsadmin", "admin"])
    assert ended.value.code != 0
    assert "admin" in capsys.readouterr().err

"""Shell completions of both commands, made from their parsers: ``completions.py OUTDIR``.

OUTDIR gets one directory per shell, with files named as the shell looks for them.
"""

import sys
from pathlib import Path

import shtab

from durastreamd import cli as server
from durastreamd.admin import cli as admin

NAMES = {"bash": "{}", "zsh": "_{}"}


def main(out: Path) -> None:
    """Write every file."""
    for shell, name in NAMES.items():
        place = out / shell
        place.mkdir(parents=True, exist_ok=True)
        for parser in (server.parser(), admin.parser()):
            text = shtab.complete(parser, shell=shell)
            (place / name.format(parser.prog)).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

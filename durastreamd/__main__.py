"""``python -m durastreamd``, and both commands of the single executable.

One file may be installed under two names: called ``dsadmin``, or with ``admin`` as the first word,
it is the offline tool; otherwise the server.
"""

import sys
from pathlib import PurePath


def main(argv: list[str] | None = None) -> int:
    """Run the command that the name or the first word asks for."""
    name, *arguments = sys.argv if argv is None else argv
    # Each is imported alone: the server does without the tables, the tool without the network.
    if PurePath(name).name == "dsadmin":
        from durastreamd.admin.cli import main as admin

        return admin(arguments)
    if arguments[:1] == ["admin"]:
        from durastreamd.admin.cli import main as admin

        return admin(arguments[1:])
    from durastreamd.cli import main as serve

    return serve(arguments)


if __name__ == "__main__":
    sys.exit(main())

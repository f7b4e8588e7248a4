"""``python -m durastreamd``, and all commands of the single executable.

One file may be installed under several names: called ``dsadmin``, or with ``admin`` as the first
word, it is the offline tool; called ``ds``, or with ``ds``, the command for streams; otherwise the
server.
"""

import sys
from pathlib import PurePath


def main(argv: list[str] | None = None) -> int:
    """Run the command that the name or the first word asks for."""
    name, *arguments = sys.argv if argv is None else argv
    chosen = PurePath(name).name
    if chosen not in ("ds", "dsadmin") and arguments[:1] in (["admin"], ["ds"]):
        chosen = "ds" if arguments[0] == "ds" else "dsadmin"
        del arguments[0]
    # Each is imported alone: the server does without the tables, the tools without the network.
    if chosen == "dsadmin":
        from durastreamd.admin.cli import main as admin

        return admin(arguments)
    if chosen == "ds":
        from durastreamd.ds.cli import main as streams

        return streams(arguments)
    from durastreamd.cli import main as serve

    return serve(arguments)


if __name__ == "__main__":
    sys.exit(main())

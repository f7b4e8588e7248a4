"""Where a job reads from: a server or a data directory, and which streams of it."""

import argparse

from durastreamd.kit.command import Pairs


def add_source(parser: argparse.ArgumentParser, *, server: bool = True) -> None:
    """Add the arguments that say what to read."""
    place = parser.add_mutually_exclusive_group(required=True)
    if server:
        place.add_argument("--url", metavar="URL", help="the server, as http://host:port")
    place.add_argument(
        "--data-dir", metavar="DIR", help="a data directory or a backup, read without a server"
    )
    parser.add_argument("--bucket", metavar="NAME", default="", help="streams of this bucket")
    parser.add_argument(
        "--stream", metavar="NAME", action="append", default=[], help="a stream; may be repeated"
    )
    parser.add_argument(
        "--pattern", metavar="REGEX", default="", help="streams whose whole name matches"
    )
    add_options(parser)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what hands any option of the format on."""
    told = "an option of the format, as NAME=VALUE; may be given several times"
    parser.add_argument("--option", metavar="NAME=VALUE", action=Pairs, default={}, help=told)


def source_options(args: argparse.Namespace) -> dict[str, str]:
    """Return the options of the format that reads what was asked for."""
    chosen = {
        "bucket": args.bucket,
        "subscribe": ",".join(args.stream),
        "subscribePattern": args.pattern,
    }
    found = {name: value for name, value in chosen.items() if value}
    if args.data_dir is None:
        found["url"] = args.url
    else:
        found["path"] = args.data_dir
    return {**found, **args.option}

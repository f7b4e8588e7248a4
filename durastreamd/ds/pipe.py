"""``ds pipe STREAM -- COMMAND``: run a program and stream its output, its end as the last message.

A stream of JSON gets ``{"out": line}`` and ``{"err": line}``, and at last ``{"exit": status}``; any
other gets the lines as they are, and at last a line that says how the program ended. While its
server is away lines wait, first here, then in the pipe, which may hold the program up.
"""

import argparse
import os
import selectors
import subprocess
import sys
from collections.abc import Iterator

from durastreamd.client import IdempotentProducer
from durastreamd.client.flows import json_text
from durastreamd.ds.append import stream_kind
from durastreamd.ds.server import add_stream, connect
from durastreamd.kit.command import Command, CommandError
from durastreamd.kit.console import Console
from durastreamd.kit.status import NO_INPUT
from durastreamd.protocol.content_type import is_json

PIECE_BYTES = 64 * 1024
IDLE_S = 0.05  # nothing came for so long: what is there is sent
SIGNALLED = 128  # and the signal's number: the status of a program that one ended


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_stream(parser)
    parser.add_argument("program", nargs="+", metavar="COMMAND", help="what to run, after --")
    parser.add_argument("--type", metavar="TYPE", help="of a stream that has to be made")
    parser.add_argument("--close", action="store_true", help="close the stream at the end")
    parser.add_argument("--quiet", action="store_true", help="show nothing of the output here")


def _run(args: argparse.Namespace, console: Console) -> int:
    with connect(args) as stream:
        args.create = True
        as_json = is_json(stream_kind(stream, args))
        with IdempotentProducer(stream) as producer:
            try:
                process = subprocess.Popen(
                    args.program, stdout=subprocess.PIPE, stderr=subprocess.PIPE
                )
            except OSError as exc:
                raise CommandError(NO_INPUT, f"{args.program[0]}: {exc.strerror}") from exc
            with process:
                status = _streamed(process, producer, args, as_json=as_json)
            last = {"exit": status} if status >= 0 else {"signal": -status}
            text = f"exit status {status}" if status >= 0 else f"ended by signal {-status}"
            producer.append(json_text(last) if as_json else f"{text}\n")
            if args.close:
                producer.close_stream()
        if console.as_json:
            console.record({"stream": stream.url, **last, "next_offset": producer.next_offset})
    return status if status >= 0 else SIGNALLED - status


def _streamed(
    process: "subprocess.Popen[bytes]",
    producer: IdempotentProducer,
    args: argparse.Namespace,
    *,
    as_json: bool,
) -> int:
    shown = not args.quiet and not args.json
    for name, line in _lines(process):
        if not line:
            producer.flush()
            continue
        if shown:
            place = sys.stdout if name == "out" else sys.stderr
            place.buffer.write(line)
            place.buffer.flush()
        bare = line.decode(errors="replace").removesuffix("\n")
        producer.append(json_text({name: bare}) if as_json else line)
    return process.wait()


def _lines(process: "subprocess.Popen[bytes]") -> Iterator[tuple[str, bytes]]:
    """Yield the lines of both outputs as they come; an empty one where nothing comes for now."""
    held = {"out": b"", "err": b""}
    with selectors.DefaultSelector() as selector:
        for name, file in (("out", process.stdout), ("err", process.stderr)):
            assert file is not None
            selector.register(file, selectors.EVENT_READ, name)
        fresh = False
        while selector.get_map():
            ready = selector.select(IDLE_S if fresh else None)
            if not ready:
                fresh = False
                yield "", b""
            for key, _ in ready:
                piece = os.read(key.fd, PIECE_BYTES)
                if not piece:
                    selector.unregister(key.fileobj)
                fresh = True
                *ended, held[key.data] = (held[key.data] + piece).split(b"\n")
                for line in ended:
                    yield key.data, line + b"\n"
                if len(held[key.data]) > PIECE_BYTES or (not piece and held[key.data]):
                    yield key.data, held[key.data]
                    held[key.data] = b""


COMMAND = Command("pipe", "run a program and stream its output", _add_arguments, _run)

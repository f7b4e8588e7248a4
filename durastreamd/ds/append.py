"""``ds append``: messages from arguments, files and standard input, each of them once.

The same command given again after any failure goes on where it was: what was on its way is sent
again under its numbers, what was taken already is skipped, and checked to be the same.
"""

import argparse
import hashlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from durastreamd.client import (
    DurableStream,
    IdempotentProducer,
    ServerRefusedError,
    StateLockedError,
)
from durastreamd.ds import inputs
from durastreamd.ds.manage import type_of
from durastreamd.ds.server import add_stream, connect
from durastreamd.ds.slots import SLOTS_MAX, RunMark, choose, directory, key_of
from durastreamd.kit import show
from durastreamd.kit.command import Command, CommandError
from durastreamd.kit.console import Console
from durastreamd.kit.status import CORRUPT, NO_INPUT, OK, USAGE
from durastreamd.protocol.content_type import is_json


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_stream(parser)
    add = parser.add_argument
    add("messages", nargs="*", metavar="MESSAGE", help="without any: the lines of standard input")
    add(
        "--file", action="append", default=[], metavar="FILE", help="its lines; - is standard input"
    )
    add("--whole", action="store_true", help="a file is one message, not its lines")
    add("--exact", action="store_true", help="leave out the newline that ends a message of text")
    add("--join", action="store_true", help="lines may share a message: faster, if not JSON")
    add("--create", action="store_true", help="make the stream if it is not there")
    add("--type", metavar="TYPE", help="with --create, as of ds create")
    add("--close", action="store_true", help="close the stream with the last message")
    expect = "append only if the stream still ends there; once, not repeated"
    add("--expect", metavar="OFFSET", help=expect)
    kept = parser.add_mutually_exclusive_group()
    kept.add_argument("--state", metavar="FILE", help="keep what an interrupted append needs here")
    kept.add_argument("--no-state", action="store_true", help="keep nothing")
    add("--producer", metavar="NAME", default="", help="append under this name")
    fresh = "the input is another one than that of an append that was interrupted"
    add("--fresh", action="store_true", help=fresh)


def _run(args: argparse.Namespace, console: Console) -> int:
    with connect(args) as stream:
        kind = stream_kind(stream, args)
        if args.json and not is_json(kind):
            raise CommandError(USAGE, f"{stream.url} holds {kind}, not JSON; leave out --json")
        found = _messages(args, as_json=is_json(kind))
        try:
            if args.expect is not None:
                count, offset = _compared(stream, found, args, as_json=is_json(kind))
            else:
                count, offset = _produced(stream, found, args)
        except ValueError as exc:
            raise CommandError(CORRUPT, f"{exc}; nothing from there on was appended") from exc
        if console.as_json:
            console.record({"stream": stream.url, "messages": count, "next_offset": offset})
        elif console.on_terminal:
            console.line(f"{show.counted(count, 'message')}; the stream ends at {offset}")
    return OK


def stream_kind(stream: DurableStream, args: argparse.Namespace) -> str:
    """Return what a stream holds; with --create it is made if it is not there."""
    try:
        return stream.content_type
    except ServerRefusedError as exc:
        if exc.status != 404:
            raise
        if not args.create:
            text = f"there is no stream {stream.url}; --create makes it, as does ds create"
            raise CommandError(NO_INPUT, text) from exc
    return stream.create(type_of(args)).content_type


def _messages(args: argparse.Namespace, *, as_json: bool) -> Iterator[bytes | None]:
    """Yield what is appended: JSON without its line's end, text with it."""
    for each in inputs.messages(args.messages, args.file, sys.stdin.buffer, whole=args.whole):
        if each is None:
            yield None
        elif as_json or args.exact:
            if bare := (each.strip() if as_json else each.removesuffix(b"\n")):
                yield bare
        elif each:
            yield each


def _compared(
    stream: DurableStream,
    found: Iterator[bytes | None],
    args: argparse.Namespace,
    *,
    as_json: bool,
) -> tuple[int, str]:
    taken = [each for each in found if each is not None]
    body = b"[%s]" % b",".join(taken) if as_json else b"".join(taken)
    told = stream.append(body, expected=args.expect, close=args.close)
    return len(taken), told.next_offset


def _produced(
    stream: DurableStream, found: Iterator[bytes | None], args: argparse.Namespace
) -> tuple[int, str]:
    sources = [*args.messages, "\0files", *(str(Path(name).resolve()) for name in args.file)]
    key = key_of(*sources, "\0how", str(args.whole), str(args.exact), args.producer)
    with _producer(stream, key, args) as producer:
        before = RunMark.of(producer.mark)
        if before is not None and (before.key != key or args.fresh):
            if not args.fresh:
                raise _another(before)
            producer.forget()
            before = None
        try:
            count = _append_all(producer, found, key, before)
            if args.close:
                producer.close_stream()
            producer.forget()
        except ServerRefusedError:
            producer.give_up()  # to repeat it would be refused again
            raise
        return count, producer.next_offset or stream.head().next_offset


@contextmanager
def _producer(
    stream: DurableStream, key: str, args: argparse.Namespace
) -> Iterator[IdempotentProducer]:
    """Lend the producer of an interrupted append of this key, or one that is free."""
    options = {"join": args.join}
    if args.state or args.no_state:
        made = IdempotentProducer(stream, args.producer, state=args.state, **options)
    elif args.producer:
        path = directory(stream.url) / f"named-{key_of(args.producer)}.state"
        made = IdempotentProducer(stream, args.producer, state=path, **options)
    else:
        place = directory(stream.url)
        for _ in range(SLOTS_MAX):
            try:
                made = IdempotentProducer(stream, state=choose(place, key), **options)
                break
            except StateLockedError:
                continue  # somebody was faster
        else:
            made = IdempotentProducer(stream, state=choose(place, key), **options)
    with made:
        yield made


def _append_all(
    producer: IdempotentProducer, found: Iterator[bytes | None], key: str, before: RunMark | None
) -> int:
    """Append the messages that are not taken yet; return how many there are in all."""
    count, digest = 0, hashlib.sha256()
    for each in found:
        if each is None:
            producer.flush()
            continue
        count += 1
        digest.update(b"%d:" % len(each) + each)
        told = RunMark(key, count, digest.hexdigest()[:32])
        if before is not None and count <= before.taken:
            if count == before.taken and told != before:
                raise _another(before)
            continue
        producer.append(each, mark=str(told))
    if before is not None and count < before.taken:
        raise _another(before)
    return count


def _another(before: RunMark) -> CommandError:
    text = (
        f"an append to this stream was interrupted after {show.counted(before.taken, 'message')}, "
        "and this is not the same input. Repeat that one, or append this one with --fresh"
    )
    return CommandError(USAGE, text)


COMMAND = Command("append", "append messages, each of them once", _add_arguments, _run)

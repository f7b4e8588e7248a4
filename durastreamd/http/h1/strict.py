"""Request heads that the fast lane declined: our own rules first, then h11.

h11 is lenient where RFC 9112 lets a server choose, and two servers that choose differently in one
chain are how requests are smuggled. So everything ambiguous is refused here before h11 sees it:
bare LF and bare CR, folded lines, Content-Length with Transfer-Encoding, repeated Content-Length,
Transfer-Encoding on HTTP/1.0, control characters. What passes is what h11 says.

What RFC 9112 has every server take is taken, where it can mean one thing only: a target in
absolute-form (of http or https, with the very authority that Host names) is read as the path in it,
``*`` is the target of OPTIONS and of nothing else.
"""

import re
from typing import Final, NoReturn

import h11

from durastreamd.http.errors import RefusedError
from durastreamd.http.exchange import Request
from durastreamd.http.limits import HttpLimits
from durastreamd.protocol import problems

HEAD_END: Final = b"\r\n\r\n"

_REQUEST_LINE: Final = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+) ([!-~]+) HTTP/([0-9]\.[0-9])")
_STRAY_LINE_END: Final = re.compile(rb"(?<!\r)\n|\r(?!\n|\Z)")
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_HOST: Final = re.compile(rb"[A-Za-z0-9.\-_~!$&'()*+,;=:%\[\]]*")
_ABSOLUTE: Final = re.compile(
    rb"[Hh][Tt][Tt][Pp][Ss]?://(?P<authority>[A-Za-z0-9.\-_~!$&'()*+,;=:%\[\]]+)"
    rb"(?P<path>(?:[/?].*)?)"
)
_SHOWN: Final = re.compile(rb"[!-~]+")
_LINE_BYTES_SHOWN: Final = 512  # more than an error document echoes of a target
_LENGTH: Final = re.compile(rb"[0-9]{1,15}")  # Fifteen digits are a petabyte; int() stays cheap.


def _refuse(detail: str, problem: problems.Problem = problems.BAD_REQUEST) -> NoReturn:
    raise RefusedError(problem, detail)


def target_of(head: bytes) -> str:
    """Return the target of a head that may be anything, for the answer that refuses it.

    Where none can be told it is the server itself that was asked.
    """
    words = head[:_LINE_BYTES_SHOWN].partition(b"\r\n")[0].split(b" ")
    shown = words[1] if len(words) > 1 else b""
    return shown.decode("ascii") if shown.startswith(b"/") and _SHOWN.fullmatch(shown) else "/"


def refuse_hopeless(partial: bytes, limits: HttpLimits) -> None:
    """Refuse an unfinished head as soon as no continuation could save it."""
    if _STRAY_LINE_END.search(partial):
        _refuse("Lines of a request head end in CRLF; this one has a bare CR or LF.")
    line, line_end, _ = partial.partition(b"\r\n")
    if line_end and not line:
        _refuse("More than one empty line stands before the request.")
    # The method and version around the target are short; 64 bytes are ample for both.
    if not line_end and len(line) > limits.target_bytes_max + 64:
        _refuse(
            f"The request target is longer than {limits.target_bytes_max} bytes.",
            problems.URI_TOO_LONG,
        )
    if len(partial) > limits.head_bytes_max:
        _refuse(
            f"The request head is larger than {limits.head_bytes_max} bytes.",
            problems.HEADERS_TOO_LARGE,
        )


def examine(head: bytes, limits: HttpLimits) -> Request:
    """Give the request of a complete ``head``; raises ``RefusedError``."""
    refuse_hopeless(head, limits)
    if _CONTROL.search(head):
        _refuse("The request head contains a control character.")
    lines = head[: -len(HEAD_END)].split(b"\r\n")
    version, named = _check_request_line(lines[0], limits)
    if len(lines) - 1 > limits.header_count_max:
        _refuse(
            f"There are more than {limits.header_count_max} header fields.",
            problems.HEADERS_TOO_LARGE,
        )
    if any(line[:1] in (b" ", b"\t") for line in lines[1:]):
        _refuse("A header field is folded over several lines.")
    chunked = _check_framing(lines[1:], version)
    seen = _by_h11(head, limits)
    headers = _joined(seen)
    host = headers.get(b"host", b"")
    target = seen.target
    if named is not None:
        if b"host" in headers and host.lower() != named["authority"].lower():
            _refuse("Host and the authority of the request target differ.")
        host, target = named["authority"], named["path"]
        if not target.startswith(b"/"):
            target = b"*" if seen.method == b"OPTIONS" and not target else b"/" + target
    length = headers.get(b"content-length")
    content_length = None if length is None else int(length)
    return Request.to(
        seen.method.decode("ascii"),
        target.decode("ascii"),
        headers,
        version,
        host.decode("ascii"),
        content_length,
        has_body=chunked or bool(content_length),
    )


def _check_request_line(line: bytes, limits: HttpLimits) -> tuple[str, re.Match[bytes] | None]:
    """Return the version, and the target taken apart if it is in absolute-form."""
    match = _REQUEST_LINE.fullmatch(line)
    if match is None:
        _refuse("The first line is not METHOD TARGET HTTP/1.1.")
    method, target, version = match.groups()
    if version not in (b"1.0", b"1.1"):
        _refuse(
            f"HTTP/{version.decode('ascii')} is not spoken here.",
            problems.HTTP_VERSION_NOT_SUPPORTED,
        )
    if len(target) > limits.target_bytes_max:
        _refuse(
            f"The request target is longer than {limits.target_bytes_max} bytes.",
            problems.URI_TOO_LONG,
        )
    if method == b"CONNECT":
        _refuse("This server is no proxy.", problems.NOT_IMPLEMENTED)
    if b"#" in target:
        _refuse("A request target has no fragment.")
    named = None
    if not target.startswith(b"/") and not (target == b"*" and method == b"OPTIONS"):
        named = _ABSOLUTE.fullmatch(target)
        if named is None:
            _refuse("The request target must be a path, or a URL of this server.")
    return version.decode("ascii"), named


def _by_h11(head: bytes, limits: HttpLimits) -> h11.Request:
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.head_bytes_max)
    try:
        connection.receive_data(head)
        event = connection.next_event()
    except h11.RemoteProtocolError as exc:
        problem = problems.BAD_REQUEST
        if exc.error_status_hint == 501:
            problem = problems.NOT_IMPLEMENTED
        elif exc.error_status_hint == 431:
            problem = problems.HEADERS_TOO_LARGE
        raise RefusedError(problem, f"The request head is malformed: {exc}.") from exc
    if not isinstance(event, h11.Request):
        _refuse("The request head is malformed.")
    return event


def _check_framing(lines: list[bytes], version: str) -> bool:
    """Refuse every head that two servers could frame differently; tell whether it is chunked.

    Looks at the lines themselves: h11 merges equal repetitions before it shows them.
    """
    counts: dict[bytes, int] = {}
    values: dict[bytes, bytes] = {}
    for line in lines:
        name, _, value = line.partition(b":")
        name = name.lower()
        counts[name] = counts.get(name, 0) + 1
        values[name] = value.strip(b" \t")
    chunked = b"transfer-encoding" in values
    # That there is exactly one Host, h11 checks.
    if not _HOST.fullmatch(values.get(b"host", b"")):
        _refuse("Host is one name, perhaps with a port, as in streams.example:4437; no URL.")
    if counts.get(b"content-length", 0) > 1:
        _refuse("Content-Length is given more than once.")
    length = values.get(b"content-length", b"0")
    if not length.isdigit():
        _refuse("Content-Length is not a number.")
    if not _LENGTH.fullmatch(length):
        _refuse("Content-Length is beyond every limit.", problems.PAYLOAD_TOO_LARGE)
    if chunked and b"content-length" in values:
        _refuse("Content-Length and Transfer-Encoding exclude each other.")
    if chunked and version == "1.0":
        _refuse("HTTP/1.0 has no Transfer-Encoding.")
    if chunked and (
        counts[b"transfer-encoding"] > 1 or values[b"transfer-encoding"].lower() != b"chunked"
    ):
        _refuse("The only transfer coding known here is chunked.", problems.NOT_IMPLEMENTED)
    return chunked


def _joined(seen: h11.Request) -> dict[bytes, bytes]:
    headers: dict[bytes, bytes] = {}
    for name, value in seen.headers:
        headers[name] = headers[name] + b", " + value if name in headers else value
    return headers

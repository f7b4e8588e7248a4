"""Several requests on one connection before the first answer: HTTP/1.1 pipelining.

What is sent on one connection arrives in order, which numbered appends need: on several
connections a later one overtakes, is refused and sent again. ``http.client`` has no word for it,
but its connections and answers are used here as they are.
"""

import http.client
import io
import re
import socket
from collections.abc import Mapping

from durastreamd.client.errors import SettingsError

_UNFIT = re.compile(r"[\x00-\x1f\x7f]")  # in a header: it would end it


class _Answers(io.BufferedIOBase):
    """All answers of a connection, one behind the other; the end of one is not its end."""

    def __init__(self, sock: socket.socket) -> None:
        self._file = sock.makefile("rb")

    def makefile(self, _mode: str) -> "_Answers":
        """Return itself: each answer is read from where the last one ended."""
        return self

    def read(self, size: int | None = -1) -> bytes:
        return self._file.read(size)

    def readline(self, size: int | None = -1) -> bytes:
        return self._file.readline(-1 if size is None else size)

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]  # what http.client gives
        return self._file.readinto(buffer)

    def close(self) -> None:
        """Nothing: whoever is done with an answer closes what it read it from."""

    def end(self) -> None:
        """Close it."""
        self._file.close()


class Pipeline:
    """One connection, requests ahead of answers."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        connection.connect()
        self._connection = connection
        self._socket = connection.sock
        self._answers = _Answers(connection.sock)
        host = f"[{connection.host}]" if ":" in connection.host else connection.host
        default = connection.port == connection.default_port
        self._host = host if default else f"{host}:{connection.port}"

    def send(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> None:
        """Send a request; a broken connection raises OSError."""
        lines = {"Host": self._host, **headers, "Content-Length": str(len(body))}
        for name, value in lines.items():
            if _UNFIT.search(name + value) or not value.isascii():
                message = f"the header {name} cannot be sent: {value!r}"
                raise SettingsError(message)
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self._socket.sendall(f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode() + body)

    def receive(self) -> http.client.HTTPResponse:
        """Return the next answer; its body must be read before the one after it."""
        response = http.client.HTTPResponse(self._answers, method="POST")  # type: ignore[arg-type]  # all that it uses of a socket
        response.begin()
        return response

    def close(self) -> None:
        """Hang up."""
        self._answers.end()
        self._connection.close()

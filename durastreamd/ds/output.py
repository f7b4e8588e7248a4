"""Messages on standard output: as they are, or as JSON."""

import base64
import json

from durastreamd.client import StreamMessage
from durastreamd.kit.command import CommandError
from durastreamd.kit.console import Console
from durastreamd.kit.status import USAGE
from durastreamd.protocol.content_type import is_json
from durastreamd.protocol.json_writing import json_line
from durastreamd.protocol.sse import needs_base64


class MessageOutput:
    """Writes messages of one content type."""

    def __init__(self, console: Console, content_type: str, *, ndjson: bool = False) -> None:
        self._console = console
        self._ndjson = ndjson
        self._json = is_json(content_type)
        self._binary = needs_base64(content_type)
        if self._binary and console.on_terminal and not (ndjson or console.as_json):
            text = f"{content_type} is not for a terminal; send it elsewhere, or use --json"
            raise CommandError(USAGE, text)

    def write(self, message: StreamMessage) -> None:
        """Write one message."""
        console, data = self._console, message.data
        if console.as_json:
            name, value = self._named(data)
            after = json_line({"after": str(message.after)})[:-1]
            console.line(f'{after}, "{name}": {value}}}')
        elif self._ndjson:
            console.line(self._named(data)[1])
        elif self._json:
            console.line(data.decode(errors="replace"))
        else:
            console.raw(data)

    def _named(self, data: bytes) -> tuple[str, str]:
        """Return a message as JSON on one line, and what it is called."""
        if self._json:
            text = data.decode(errors="replace")
            return "json", text if "\n" not in text else json.dumps(json.loads(text))
        if self._binary:
            return "base64", json.dumps(base64.b64encode(data).decode())
        return "text", json.dumps(data.decode(errors="replace"), ensure_ascii=False)

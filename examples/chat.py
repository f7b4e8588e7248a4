"""A chat of two, or of more: what one writes all others see, also those who come later.

    python examples/chat.py http://127.0.0.1:4437/v1/stream/room ann
    python examples/chat.py http://127.0.0.1:4437/v1/stream/room bob

The room is a stream of JSON. Every line you type is appended, exactly once even if the connection
breaks; a thread shows what is there and then what comes, and goes on by itself when the server was
away. The end of the input (Ctrl-D) leaves the room.
"""

import argparse
import json
import sys
import threading

from durastreamd.client import DurableStream, IdempotentProducer


def show(url: str, name: str) -> None:
    """Print what others wrote and write."""
    with DurableStream(url) as room:
        for message in room.messages(live=True):
            said = json.loads(message.data)
            if said["from"] != name:
                print(f"{said['from']}: {said['text']}", flush=True)


def main() -> None:
    """Enter the room, then say what is typed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="of the room's stream; made if it is missing")
    parser.add_argument("name", help="how others see you")
    given = parser.parse_args()
    with DurableStream(given.url) as room:
        room.create("application/json")
        threading.Thread(target=show, args=(given.url, given.name), daemon=True).start()
        with IdempotentProducer(room) as producer:
            for line in sys.stdin:
                producer.append_json({"from": given.name, "text": line.rstrip("\n")})
                producer.flush()


if __name__ == "__main__":
    main()

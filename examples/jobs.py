"""A job queue: jobs are added to a stream, workers claim them, each job leaves one result.

    python examples/jobs.py http://127.0.0.1:4437 add 'first text' 'second text'
    python examples/jobs.py http://127.0.0.1:4437 work ann

The job is to count the words of a text. A worker that dies holds its claim until the lease is
over; then another is given the same jobs. So a job may be done twice, but it has one result: that
is a stream named after the job, and making it again finds it made. ``work --once`` ends when
nothing is left.
"""

import argparse
import json
import secrets

from durastreamd.client import DurableStream
from durastreamd.client.claims import PullSubscription


def prepare(server: str) -> PullSubscription:
    """Make the queue and its subscription, or find them made."""
    for name in ("jobs/queue", "job-wakes"):
        with DurableStream(f"{server}/v1/stream/{name}") as stream:
            stream.create("application/json")
    subscription = PullSubscription("word-counters", server)
    subscription.put("jobs/*", "job-wakes")
    return subscription


def add(server: str, texts: list[str]) -> None:
    """Append jobs; print their names."""
    jobs = [{"id": secrets.token_hex(8), "text": text} for text in texts]
    with DurableStream(f"{server}/v1/stream/jobs/queue") as queue:
        queue.append_json(*jobs)
    for job in jobs:
        print(job["id"])


def work(server: str, subscription: PullSubscription, worker: str, *, once: bool) -> None:
    """Do jobs as they come; a claim is done when the loop comes round."""
    for claim in subscription.claims(worker, wait=not once):
        for _, message in claim.messages():
            job = json.loads(message.data)
            result = {"words": len(job["text"].split())}
            with DurableStream(f"{server}/v1/stream/results/{job['id']}") as stream:
                stream.create("application/json", body=json.dumps(result).encode(), closed=True)
            print(job["id"], result["words"], flush=True)


def main() -> None:
    """Parse the command line and do it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("server")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("add").add_argument("texts", nargs="+")
    worker = commands.add_parser("work")
    worker.add_argument("name")
    worker.add_argument("--once", action="store_true")
    given = parser.parse_args()
    subscription = prepare(given.server)
    if given.command == "add":
        add(given.server, given.texts)
    else:
        work(given.server, subscription, given.name, once=given.once)


if __name__ == "__main__":
    main()

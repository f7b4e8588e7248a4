"""Waiting for news of many streams with one long-poll each, left open from one wait to the next."""

import http.client
import selectors
import ssl
import time
from collections.abc import Mapping
from urllib.parse import quote

from durastreamd.client.address import split
from durastreamd.client.client import Client
from durastreamd.client.connections import BROKEN

WATCHED_MAX = 64  # above it the next look, one listing, is cheaper than so many connections


class Watch:
    """Open long-polls by URL and offset."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._open: dict[tuple[str, str], http.client.HTTPConnection] = {}

    def wait(self, places: Mapping[str, str], timeout_s: float) -> None:
        """Return when one of the streams has news, or after a time; never raises.

        What is wrong with the server, the next ordinary request tells better.
        """
        until = time.monotonic() + timeout_s
        wanted = set(places.items())
        for key in [*self._open]:
            if key not in wanted:
                self._open.pop(key).close()
        try:
            if len(wanted) > WATCHED_MAX:
                wanted = set()
            for url, token in wanted - set(self._open):
                self._ask(url, token)
            if self._news(until):
                return
        except BROKEN:
            self.hang_up()
        time.sleep(max(until - time.monotonic(), 0))

    def _ask(self, url: str, token: str) -> None:
        origin, path = split(url)
        connection = self._open[url, token] = self._client.connections.connect(origin)
        target = f"{path}?offset={quote(token)}&live=long-poll"
        connection.request("GET", target, headers=self._client.settings.request_headers())

    def _news(self, until: float) -> bool:
        while self._open and (left := until - time.monotonic()) > 0:
            sockets = {each.sock: key for key, each in self._open.items()}
            # Not select.select: a driver may have more descriptors than its 1,024.
            with selectors.DefaultSelector() as selector:
                for each in sockets:
                    selector.register(each, selectors.EVENT_READ)
                ready = {key.fileobj for key, _ in selector.select(left)}
            for each in [each for each in sockets if each in ready]:
                each.settimeout(0)
                try:
                    each.recv(1)
                except (BlockingIOError, ssl.SSLWantReadError):
                    continue  # TLS spoke, not the server
                self._open.pop(sockets[each]).close()
                return True
        return False

    def hang_up(self) -> None:
        """End all of them."""
        for connection in self._open.values():
            connection.close()
        self._open.clear()

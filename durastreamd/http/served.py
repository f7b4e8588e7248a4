"""What an exchange is over both versions of HTTP: its part of the budget, its promised length."""

from durastreamd.http.budget import Claim, client_of
from durastreamd.http.context import ServeContext
from durastreamd.http.errors import ResponseError
from durastreamd.http.exchange import Exchange, Request


class ServedExchange(Exchange):
    """An exchange with a client, as far as the version does not matter."""

    __slots__ = ("_budget", "_claim", "_length_left", "_sending")

    def __init__(self, request: Request, context: ServeContext) -> None:
        super().__init__(request, context.common)
        self._budget = context.budget
        self._claim: Claim | None = None  # The handler's own.
        self._length_left: int | None = None  # Of the response.
        self._sending = False

    @property
    def claim(self) -> Claim:
        """What this exchange holds of the budget."""
        if self._claim is None:
            self._claim = self._budget.claim(client_of(self.request.peer))
        return self._claim

    def release(self) -> None:
        """Give back what the exchange holds of the budget."""
        if self._claim is not None:
            self._claim.close()
            self._claim = None

    def _fits(self, data: bytes) -> bool:
        """Tell whether the promised length has room for a piece."""
        return self._length_left is None or len(data) <= self._length_left

    def _count(self, count: int) -> None:
        if self._length_left is not None:
            if count > self._length_left:
                msg = "more bytes than the promised length"
                raise ResponseError(msg)
            self._length_left -= count

    def _expect_whole(self) -> None:
        """Refuse to end a response before all that was promised is sent."""
        if self._length_left and self.request.method != "HEAD":
            msg = f"{self._length_left} bytes of the promised length were not sent"
            raise ResponseError(msg)

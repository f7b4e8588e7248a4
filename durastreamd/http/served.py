"""What an exchange is over both versions of HTTP: its phase, its budget, its promised length."""

from durastreamd.http.budget import Claim, client_of
from durastreamd.http.context import ServeContext
from durastreamd.http.errors import HungUpError, ResponseError
from durastreamd.http.exchange import Exchange, Phase, Request


class ServedExchange(Exchange):
    """An exchange with a client, as far as the version does not matter."""

    __slots__ = ("_budget", "_claim", "_expects_continue", "_length_left", "_sending", "gone")

    def __init__(self, request: Request, context: ServeContext) -> None:
        super().__init__(request, context.common)
        self._budget = context.budget
        self._claim: Claim | None = None  # The handler's own.
        self._length_left: int | None = None  # Of the response.
        self._sending = False
        self.gone = False  # The client is, and an exchange beside it may not be.
        self._expects_continue = (
            request.has_body
            and request.version != "1.0"
            and request.headers.get(b"expect", b"").lower() == b"100-continue"
        )

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

    def _expect_phase(self, phase: Phase) -> None:
        if self.gone or self.phase is not phase:
            self._check_gone()
            msg = f"the response is {self.phase.name}, not {phase.name}"
            raise ResponseError(msg)

    def _check_gone(self) -> None:
        if self.gone or self.phase is Phase.ABORTED:
            msg = "the client is gone, or the exchange was aborted"
            raise HungUpError(msg)

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

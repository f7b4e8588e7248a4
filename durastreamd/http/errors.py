"""Why an exchange cannot go on, by who is at fault.

``RefusedError`` and its kinds: the client asked for something we do not accept; it is told so.
``HungUpError``: the client is gone or stopped reading; nobody can be told anything.
``ResponseError``: our own handler broke the rules of the seam; the client sees a 500.
"""

from durastreamd.protocol import problems


class RefusedError(Exception):
    """The client's request is refused with one row of the problem table."""

    def __init__(self, problem: problems.Problem, detail: str) -> None:
        super().__init__(f"{problem.name}: {detail}")
        self.problem = problem
        self.detail = detail


class BodyTooLargeError(RefusedError):
    """The request body is, or says it is, larger than the caller takes."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(
            problems.PAYLOAD_TOO_LARGE, f"The request body is larger than {bytes_max} bytes."
        )
        self.bytes_max = bytes_max


class BodyTooSlowError(RefusedError):
    """The request body arrives more slowly than the limits allow."""

    def __init__(self) -> None:
        super().__init__(problems.REQUEST_TIMEOUT, "The request body did not arrive in time.")


class HungUpError(Exception):
    """The client went away, reset the exchange or does not read what it asked for."""


class ResponseError(Exception):
    """A handler used an exchange wrongly: two responses, too many bytes, a forged header."""

"""The one door: every request passes here, whichever way it goes on.

Asked in this order: whom does a trusted proxy speak for (``Proxies``); is the server meant, and may
this page use it (``Visitors``); who asks, and may they (``Gate``); may anything be written now
(``Guard``). Nothing of it waits, so the quick way and the ordinary one ask the same questions,
once, and who is refused hears the same words and has the same line in the access log.
"""

from collections.abc import Callable

from durastreamd.http.exchange import Request
from durastreamd.protocol.names import LISTING, Resource, place_of
from durastreamd.protocol.requests import ProblemError
from durastreamd.service.access.gate import Gate, GateCounts, Permit
from durastreamd.service.access.guard import SAFE, Guard
from durastreamd.service.access.options import AccessOptions
from durastreamd.service.access.proxies import Proxies
from durastreamd.service.access.visitors import Visitors
from durastreamd.service.answers import Answer
from durastreamd.service.failures import Failure, problem_of, rendered
from durastreamd.service.operating.access_log import AccessLog
from durastreamd.streams.registry import Streams


class Admission:
    """Lets requests in; each part can be replaced while the server runs."""

    def __init__(
        self,
        streams: Streams,
        guard: Guard | None = None,
        access_log: AccessLog | None = None,
        visitors: Visitors | None = None,
    ) -> None:
        self._streams = streams
        self.visitors = visitors or Visitors()
        self.proxies: Proxies | None = None  # none is believed to speak for others
        self.gate: Gate | None = None  # nobody needs a token, and nobody's requests are counted
        self.guard = guard or Guard()
        self.access_log = access_log or AccessLog()
        self.counts = GateCounts()

    def admit(self, request: Request) -> tuple[Resource, Permit | None]:
        """Return the place that is asked for, and the right to go there, or raise the problem.

        Who needs a token and has none learns nothing about places.
        """
        try:
            place = place_of(request.path)
        except ProblemError:
            if self.gate is not None:
                self.gate.identify(request)
            raise
        return place, self.admit_to(request, place)

    def admit_to(self, request: Request, place: Resource) -> Permit | None:
        """Return the right to go to a place, None where nobody needs one, or raise the problem."""
        gate, permit = self.gate, None
        if gate is not None:
            caller = gate.identify(request)
            if place.part == LISTING and request.method in SAFE:
                permit = gate.permit_listing(caller, place.key)
            else:
                permit = gate.permit(caller, request.method, place.key)
        if request.method not in SAFE:
            self.guard.check(request, place, self._streams)
        return permit

    def refusal(self, exc: Failure, request: Request) -> Answer:
        """Return the answer that says what went wrong, and note it."""
        problem = problem_of(exc, request)
        self.access_log.refused(request, problem.problem)
        return rendered(problem, request.path)

    def prepare(self, options: AccessOptions) -> Callable[[], None]:
        """Read the files these options name; what is returned admits requests by them.

        Raises ConfigError if they do not fit. Live readers that are not permitted any more are
        ended when it is called.
        """
        before, gate = self.gate, None
        if options.restricted or options.rate:
            limiter = before.limiter if before is not None else None
            gate = Gate(options, self._streams.clock, self.counts, limiter)

        def apply() -> None:
            self.gate = gate
            if before is not None:
                before.retire(gate)

        return apply

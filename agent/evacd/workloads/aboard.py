"""How those on board are reached, and what all of them are told."""

from evac.wire import Message, OrderGiven, encode
from evacd.clock import Clock
from evacd.facts import Order
from evacd.workloads.job import Workload
from evacd.workloads.session import Session


class Aboard:
    """The session of every workload that is connected.

    Attributes:
        order: What everybody was told last, and whoever comes is told.
    """

    def __init__(self, clock: Clock) -> None:
        self.order: Order | None = None
        self._clock = clock
        self._sessions: dict[int, Session] = {}

    def session(self, workload: Workload) -> Session | None:
        """How to reach a workload; None while it is not connected."""
        return self._sessions.get(workload.id)

    def sessions(self) -> list[Session]:
        """All of them, in the order of their coming."""
        return list(self._sessions.values())

    def add(self, workload: Workload, session: Session) -> None:
        """From now on it is reached so."""
        self._sessions[workload.id] = session

    def remove(self, workload: Workload) -> Session | None:
        """It is not reached any more; how it was."""
        return self._sessions.pop(workload.id, None)

    def tell(self, message: Message) -> int:
        """Send one message to everybody aboard, in one go; returns how many were told."""
        packet = encode(message)
        sessions = self.sessions()
        for session in sessions:
            session.link.send(packet)
        return sum(session.link.hears for session in sessions)

    def message(self, order: Order) -> OrderGiven:
        """The order as of now."""
        left = min(1e9, max(0.0, order.deadline - self._clock.monotonic()))
        return OrderGiven(
            order=order.id,
            seconds_left=left,
            confidence=order.confidence.word,
            source=order.source,
            kind=order.kind,
            amended=order.amendments > 0,
        )

"""One agent's part in the round that forms: to serve its store, or to reach it, and to say so."""

import logging

from torch.distributed import TCPStore  # type: ignore[attr-defined] # public, but not in __all__
from torch.distributed.elastic.rendezvous import RendezvousConnectionError

from evac.rendezvous.address import split_endpoint
from evac.rendezvous.events import Confirm, Dissolve, Open
from evac.rendezvous.follower import Follower
from evac.rendezvous.keys import Unreachable
from evac.rendezvous.opening import CONNECT_SECONDS
from evac.rendezvous.settings import Settings
from evac.rendezvous.state import Round, State
from evac.rendezvous.torch_keys import connect, serve

logger = logging.getLogger("evac")

# The agents of a round tell each other how many workers they have: at once, unless one has died.
_ASSIGN_SECONDS = 60.0


class Part:
    """An agent's.

    Attributes:
        unreached: Why it cannot reach the first rank of the round that forms; "" while it can.
    """

    def __init__(self, me: str, settings: Settings, follower: Follower) -> None:
        self.unreached = ""
        self._me = me
        self._settings = settings
        self._follower = follower
        # The round whose store is served or reached from here, and in which log that was confirmed.
        self._reached: tuple[int, TCPStore] | None = None
        self._reached_in = settings.address
        # Which round forms, since when, and whether it was given up.
        self._number, self._since, self._given_up = 0, 0.0, False

    def store(self, stands: Round) -> TCPStore:
        """That of a round that stands.

        Raises:
            RendezvousConnectionError: It stands without this agent.
        """
        if self._reached is None or self._reached[0] != stands.number:
            raise RendezvousConnectionError(f"round {stands.number} stands without this agent")
        return self._reached[1]

    def take(self, state: State, now: float) -> None:
        """Serve the store of the round that forms, or reach it, and confirm; or give it up.

        Raises:
            RendezvousConnectionError: This agent is to serve the store, and cannot; or the round was
                given up because of it alone.
        """
        forming = state.forming
        if self._me in state.refused and self.unreached:
            raise RendezvousConnectionError(
                f"the others have reached the first rank, and go on without this node: {self.unreached}"
            )
        if forming is None or forming.rank(self._me) is None:
            return
        if forming.number != self._number:
            self._number, self._since, self._given_up, self.unreached = (
                forming.number,
                now,
                False,
                "",
            )
        try:
            self._take(forming)
        except Unreachable as error:
            if forming.rank(self._me) == 0:
                raise RendezvousConnectionError(str(error)) from error
            # Either it comes, or its agent is gone and the round dissolves.
            if not self.unreached:
                logger.warning(
                    "round %d: the first rank cannot be reached: %s", forming.number, error
                )
            self.unreached = str(error)
        if not self._given_up and now - self._since >= self._settings.confirm_seconds:
            self._given_up = True
            self._follower.say(Dissolve(self._me, forming.number))

    def _take(self, forming: Round) -> None:
        """Once in each log: a host that died may have taken along what nobody else had read."""
        number, log, settings = forming.number, self._follower.address, self._settings
        mine = self._reached if self._reached and self._reached[0] == number else None
        if mine is not None and self._reached_in == log:
            return
        if forming.rank(self._me) == 0:
            store = mine[1] if mine else serve(settings.local, 0)
            self._follower.say(Open(self._me, number, f"{settings.local}:{store.port}"))
        elif forming.at:
            host, port = split_endpoint(forming.at, 0)
            store = connect(
                host,
                port,
                seconds=CONNECT_SECONDS,
                read_seconds=_ASSIGN_SECONDS,
                dead_seconds=settings.dead_seconds,
            )
        else:
            return
        self.unreached = ""
        self._reached, self._reached_in = (number, store), log
        self._follower.say(Confirm(self._me, number))

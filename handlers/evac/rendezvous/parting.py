"""How an agent goes: with its node, with its job, or told to end; and how long it stays for the others.

torch ends an agent by `shutdown`, whatever became of its workers; that they have failed shows in the
exception that is on its way then (launcher/api.py, `launch_agent`, of 2.9 to 2.14, read 2026-11).
"""

import atexit
import logging
import sys
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from torch.distributed.elastic.rendezvous import (
    RendezvousConnectionError,
    RendezvousTimeoutError,
)

from evac.rendezvous.events import Close, Leave
from evac.rendezvous.follower import Follower
from evac.rendezvous.servers import Servers
from evac.rendezvous.state import Agent, State

logger = logging.getLogger("evac")

# How long whoever serves the log stays for those who are still to go elsewhere, or to end.
_LINGER_SECONDS, _LINGER_ALONE_SECONDS, _LINGER_CLOSED_SECONDS = 10.0, 1.0, 5.0
_SAY_SECONDS = 2.0
# A worker that fails may have been the first to feel that its node leaves.
_NOTICE_SECONDS = 1.0


class Beside(Protocol):
    """What looks at something for as long as the agent lives."""

    def stop(self) -> None:
        """Look no more."""
        ...


class Parting:
    """One agent's.

    Args:
        beside: What ends with it.
        skip_barrier: Lets nobody wait for this agent who has finished.
    """

    def __init__(
        self,
        me: Agent,
        follower: Follower,
        servers: Servers,
        beside: Sequence[Beside],
        skip_barrier: Callable[[], None],
    ) -> None:
        self._me = me
        self._follower = follower
        self._servers = servers
        self._beside = beside
        self._skip_barrier = skip_barrier
        self._ended = False
        atexit.register(self._at_exit)

    @property
    def serves(self) -> bool:
        """Whether the log lies in this agent."""
        return self._servers.serves(self._follower.address)

    def shutdown(self, close: Callable[[bool], Close]) -> None:
        """The agent ends: so does the job, unless only this node leaves.

        Args:
            close: What ends the job, well or not.
        """
        if self._ended:
            return
        me, follower = self._me, self._follower
        error = sys.exc_info()[1]
        if isinstance(error, (RendezvousTimeoutError, RendezvousConnectionError)):
            # This node did not come to be in a round: nothing is said about those that do.
            self._go()
            self._erase()
            return
        well = error is None
        if not well:
            follower.wait(lambda _: not follower.stays, _NOTICE_SECONDS)
        if not follower.stays and self.leave(finished=well):
            return
        follower.say(close(well))
        if self.serves:
            # The others still read from here.
            follower.wait(lambda s: _all_left(s, me.id), _LINGER_CLOSED_SECONDS)
        self.part()

    def leave(self, *, finished: bool = False) -> bool:
        """This node leaves: end well, and leave the rendezvous as it is; False if it stays after all."""
        me, follower = self._me, self._follower
        logger.warning("node %s leaves: this agent ends, and the job goes on elsewhere", me.node)
        if self.serves:
            alone = not follower.state.survivors
            follower.wait(
                lambda s: follower.stays or (bool(s.survivors) and s.has_met(s.survivors)),
                _LINGER_ALONE_SECONDS if alone else _LINGER_SECONDS,
            )
        if follower.stays:
            return False
        if not finished:
            self._skip_barrier()
        self.end()
        return True

    def part(self) -> None:
        """The job has ended."""
        self.end()
        self._erase()

    def end(self, *, seconds: float = _SAY_SECONDS) -> None:
        """Say so, which may take *seconds*, and let go of all."""
        self._ended = True
        for one in self._beside:
            one.stop()
        atexit.unregister(self._at_exit)
        self._follower.say(Leave(self._me.id))
        self._follower.close(seconds)

    def _at_exit(self) -> None:
        """Ended by a signal, say: the others need not wait to miss us."""
        if not self._ended:
            self._go()

    def _go(self) -> None:
        read_here = self.serves and bool(self._follower.state.successors())
        self.end()
        if read_here:
            # They go elsewhere.
            time.sleep(_LINGER_ALONE_SECONDS)

    def _erase(self) -> None:
        """Who goes last takes the job's keys along."""
        me = self._me.id
        if not self.serves:
            self._follower.erase(lambda state: _all_left(state, me) and not state.waiting)


def _all_left(state: State, me: str) -> bool:
    return all(agent.id in state.lost or agent.id == me for agent in state.round.agents)

"""What torchrun's agent calls, on torch's public `RendezvousHandler`.

The agent asks `num_nodes_waiting` every tenth of a second, and restarts its workers without counting it
as a failure when the answer is not 0: that is the door through which a departure comes. Nobody
answers so before all agents of the round know (`_meet`): the first to stop its workers makes its
peers' workers crash in a collective, and an agent that saw the crash first would count a failure.

A round gets a store of its own, served by its first rank, which goes with the round: neither its
address nor a key of it can be taken for those of another round.

torch ends an agent by `shutdown`, whatever became of its workers; that they have failed shows in the
exception that is on its way then (launcher/api.py, `launch_agent`, of 2.9 to 2.14, read 2026-11).
"""

import atexit
import logging
import os
import sys
import time
from functools import partial
from secrets import token_hex

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined] # public, but not in __all__
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from evac._clock import monotonic
from evac.rendezvous import BACKEND, exit_barrier
from evac.rendezvous.address import LONGEST, Address, split_endpoint
from evac.rendezvous.ending import Ending, ending
from evac.rendezvous.events import Anew, Begin, Call, Close, Join, Leave, Met
from evac.rendezvous.follower import Follower
from evac.rendezvous.forming import Part
from evac.rendezvous.opening import open_keys
from evac.rendezvous.own_node import OwnNode
from evac.rendezvous.pins import Pins
from evac.rendezvous.pulse import Tempo
from evac.rendezvous.rounds import Agent, Round, State, hosted
from evac.rendezvous.servers import Servers
from evac.rendezvous.settings import Settings, read_settings
from evac.rendezvous.waiting import waits_for

logger = logging.getLogger("evac")

# Where a worker finds its job's store, for the daemon (`evac.connect` passes it on).
RENDEZVOUS = "EVAC_RENDEZVOUS"
_PREFIX = "evac"
# Who departs may be gone already, and is not waited for as the others are.
_LEAVER_SECONDS = 0.3
# How long whoever serves the log stays for those who are still to go elsewhere, or to end.
_LINGER_SECONDS, _LINGER_ALONE_SECONDS, _LINGER_CLOSED_SECONDS = 10.0, 1.0, 5.0
_SAY_SECONDS = 2.0
# A worker that fails may have been the first to feel that its node leaves.
_NOTICE_SECONDS = 1.0
_STEP_SECONDS = 0.5
_FIRST_REMIND_SECONDS, _REMIND_SECONDS = 1.5, 30.0


def create(parameters: RendezvousParameters) -> "EvacHandler":
    """What torch's registry calls for ``--rdzv-backend=evac``.

    Raises:
        ValueError: An option is wrong.
        RendezvousConnectionError: The store does not answer.
    """
    return EvacHandler(read_settings(parameters))


class EvacHandler(RendezvousHandler):
    """One agent's rendezvous."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._servers = Servers(settings)
        self._me = Agent(
            f"{settings.node}-{os.getpid()}-{token_hex(4)}",
            settings.node,
            settings.boot,
            self._servers.standby,
        )
        self._follower = Follower(
            settings.address,
            self._me,
            partial(open_keys, dead_seconds=settings.dead_seconds),
            standby=self._servers.standby_keys if self._servers.standby else None,
            tempo=Tempo(settings.beat_seconds, settings.dead_seconds),
            fresh=hosted(State(held=True), self._me) if self._servers.hosts else None,
        )
        # The run of the job that this agent has a part in.
        self._epoch: int | None = None
        # The round that this agent is in, its store, and when its workers must have finished.
        self._number = 0
        self._store: TCPStore | None = None
        self._finish_by: float | None = None
        self._part_in = Part(self._me.id, settings, self._follower)
        self._ended = False
        self._own_node = OwnNode(settings.socket, self._me, self._follower.say)
        self._pins = Pins(settings.socket, self._me, self._follower)
        self._follower.start()
        self._own_node.start()
        self._pins.start()
        atexit.register(self._at_exit)
        if not self._follower.wait(lambda _: self._follower.connected, settings.connect_seconds):
            self._end(Leave(self._me.id), seconds=0.0)
            raise RendezvousConnectionError(
                f"the rendezvous store at {settings.address.endpoint} does not answer: "
                f"{self._follower.trouble}"
            )

    @property
    def address(self) -> Address:
        """Where the log lies now."""
        return self._follower.address

    @property
    def trouble(self) -> str:
        """Why the store cannot be reached; "" while it can."""
        return self._follower.trouble

    @property
    def waits(self) -> bool:
        """Whether the others know that this agent waits."""
        return self._here(self._follower.state)

    # --- what torch asks -------------------------------------------------------------------

    def get_backend(self) -> str:
        """See `RendezvousHandler`."""
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """Workers meet in the store that the first rank's agent serves for the round."""
        return True

    def get_run_id(self) -> str:
        """See `RendezvousHandler`."""
        return self._settings.run

    def is_closed(self) -> bool:
        """See `RendezvousHandler`."""
        return self._follower.state.closed

    def set_closed(self) -> None:
        """See `RendezvousHandler`."""
        self._follower.say(self._close(well=False))

    def num_nodes_waiting(self) -> int:
        """Above 0 once the round is over and all of it know; never asks the store."""
        state = self._follower.state
        if state.closed or not self._over(state):
            return 0
        if self._in_round(state):
            if self._store is not None and exit_barrier.finishing(
                PrefixStore(_PREFIX, self._store)
            ):
                return int(state.departs(self._me) and self._is_late())
            self._meet()
        return max(len(state.waiting), 1)

    def next_rendezvous(self) -> RendezvousInfo:
        """Join, and wait for a round that stands; ends the agent if its node leaves."""
        follower, before = self._follower, self._follower.state.round.number
        began = heard = monotonic()
        remind = began + _FIRST_REMIND_SECONDS
        called: float | None = None
        held: float | None = None
        deserted = follower.state.deserted
        while True:
            state, now = follower.state, monotonic()
            if not follower.stays and self._leave():
                raise SystemExit(0)
            ends = self._ends(state, deserted=deserted)
            rank = state.round.rank(self._me.id)
            if state.round.number > before and rank is not None:
                return self._enter(state.round, rank)
            self._part_in.take(state, now)
            if follower.idle and ends is Ending.AGAIN:
                follower.say(Anew(self._me.id))
            elif follower.idle and ends is Ending.NONE and not self._here(state):
                self._epoch = state.epoch
                follower.say(self._join(before))
            if state.held:
                held = held or now
                if now - held >= self._settings.return_seconds and follower.idle:
                    follower.say(Begin(self._me.id))
            if not state.round.number and not state.forming and not state.short:
                called = called or now
                if now - called >= self._settings.call_seconds and follower.idle:
                    follower.say(Call(self._me.id))
            heard = heard if follower.trouble else now
            self._check_time(state, now - began, now - heard)
            if now >= remind:
                remind = now + _REMIND_SECONDS
                logger.warning("%s", self._waits_for(state))
            if follower.state is state:
                follower.wait_change(_STEP_SECONDS)

    def shutdown(self) -> bool:
        """The agent ends: so does the job, unless only this node leaves."""
        if self._ended:
            return True
        me, follower = self._me, self._follower
        error = sys.exc_info()[1]
        if isinstance(error, (RendezvousTimeoutError, RendezvousConnectionError)):
            # This node did not come to be in a round: nothing is said about those that do.
            self._go()
            self._erase()
            return True
        well = error is None
        if not well:
            follower.wait(lambda _: not follower.stays, _NOTICE_SECONDS)
        if not follower.stays and self._leave(finished=well):
            return True
        follower.say(self._close(well=well))
        if self.serves:
            # The others still read from here.
            follower.wait(lambda s: _all_left(s, me.id), _LINGER_CLOSED_SECONDS)
        self._part()
        return True

    # --- a round ends ----------------------------------------------------------------------

    def _over(self, state: State) -> bool:
        return bool(self._number) and (not self._in_round(state) or state.over)

    def _in_round(self, state: State) -> bool:
        """Whether the last round is the one that this agent is in."""
        number, rank = state.round.number, state.round.rank(self._me.id)
        return number == self._number and rank is not None

    def _is_late(self) -> bool:
        """Whether this agent's workers, of which others have finished, have had time to finish too."""
        self._finish_by = self._finish_by or monotonic() + self._settings.meet_seconds
        return monotonic() >= self._finish_by

    def _meet(self) -> None:
        """Wait until every agent of the round knows that it is over."""
        number, follower = self._number, self._follower
        follower.say(Met(self._me.id, number), to_old=True)

        def elsewhere(state: State) -> bool:
            return state.round.number != number

        met = follower.wait(
            lambda s: elsewhere(s) or s.has_met(s.survivors), self._settings.meet_seconds
        )
        if not met:
            logger.warning("not all agents know yet that the round is over; going on without them")
        follower.wait(lambda s: elsewhere(s) or s.has_met(s.leavers), _LEAVER_SECONDS)
        state = follower.state
        names = sorted({agent.node for agent in state.leavers})
        why = f"{', '.join(names)} leaves" if names else "the membership changed"
        logger.warning("round %d is over: %s; workers restart", number, why)

    def _skip_barrier(self) -> None:
        """Who has finished waits for this agent, which ends without that."""
        state = self._follower.state
        if self._store is not None and self._in_round(state):
            store = PrefixStore(_PREFIX, self._store)
            exit_barrier.depart(store, len(state.round.agents))

    def _leave(self, *, finished: bool = False) -> bool:
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
        self._end(Leave(me.id))
        return True

    # --- the next one ----------------------------------------------------------------------

    def _join(self, seen: int) -> Join:
        settings, me = self._settings, self._me
        return Join(
            me.id,
            me.node,
            me.boot,
            settings.minimum,
            settings.maximum,
            seen=seen,
            standby=me.standby,
            hosts=self._servers.hosts,
        )

    def _close(self, *, well: bool) -> Close:
        return Close(self._me.id, well, self._epoch or 0)

    def _here(self, state: State) -> bool:
        """Whether the others know that this agent waits."""
        me = self._me.id
        forming = state.forming is not None and state.forming.rank(me) is not None
        return forming or any(agent.id == me for agent in state.waiting)

    def _enter(self, stands: Round, rank: int) -> RendezvousInfo:
        self._finish_by = None
        self._number, self._store = stands.number, self._part_in.store(stands)
        where = str(self._follower.address)
        # Longer, no worker could pass it on.
        os.environ[RENDEZVOUS] = where if len(where) <= LONGEST else ""
        host, port = split_endpoint(stands.at, 0)
        logger.info("round %d stands: rank %d of %d", stands.number, rank, len(stands.agents))
        return RendezvousInfo(
            PrefixStore(_PREFIX, self._store),
            rank,
            len(stands.agents),
            RendezvousStoreInfo(host, port),
        )

    def _ends(self, state: State, *, deserted: bool) -> Ending:
        """Whether the job has; does not return if that ends this agent, too."""
        found = ending(state, self._epoch, worked=bool(self._number), deserted=deserted)
        if found is Ending.CLOSED:
            raise RendezvousClosedError("the job's rendezvous is closed")
        if found is Ending.NOT_NEEDED:
            # A spare that was never needed has not failed.
            logger.warning("the job has ended well: nothing to do")
            self._part()
            raise SystemExit(0)
        return found

    def _check_time(self, state: State, waited: float, silent: float) -> None:
        if silent >= self._settings.join_seconds:
            # What was heard last says nothing about the job any more.
            raise RendezvousConnectionError(f"the rendezvous store: {self._follower.trouble}")
        if state.round.number and not state.over:
            return  # a spare waits for as long as the job runs
        if waited >= self._settings.join_seconds:
            raise RendezvousTimeoutError(self._waits_for(state))

    def _waits_for(self, state: State) -> str:
        return waits_for(state, self._follower.trouble, self._part_in.unreached)

    # --- servers and the end ---------------------------------------------------------------

    @property
    def serves(self) -> bool:
        """Whether the log lies in this agent."""
        return self._servers.serves(self._follower.address)

    def _at_exit(self) -> None:
        """Ended by a signal, say: the others need not wait to miss us."""
        if not self._ended:
            self._go()

    def _go(self) -> None:
        read_here = self.serves and bool(self._follower.state.successors())
        self._end(Leave(self._me.id))
        if read_here:
            # They go elsewhere.
            time.sleep(_LINGER_ALONE_SECONDS)

    def _part(self) -> None:
        """The job has ended."""
        self._end(Leave(self._me.id))
        self._erase()

    def _erase(self) -> None:
        """Who goes last takes the job's keys along."""
        me = self._me.id
        if not self.serves:
            self._follower.erase(lambda state: _all_left(state, me) and not state.waiting)

    def _end(self, *last: Leave, seconds: float = _SAY_SECONDS) -> None:
        self._ended = True
        self._own_node.stop()
        self._pins.stop()
        atexit.unregister(self._at_exit)
        self._follower.say(*last)
        self._follower.close(seconds)


def _all_left(state: State, me: str) -> bool:
    return all(agent.id in state.lost or agent.id == me for agent in state.round.agents)

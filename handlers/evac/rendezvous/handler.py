"""What torchrun's agent calls, on torch's public `RendezvousHandler`.

The agent asks `num_nodes_waiting` every tenth of a second, and restarts its workers without counting it
as a failure when the answer is not 0: that is the door through which a departure comes. Nobody
answers so before all agents of the round know (`_meet`): the first to stop its workers makes its
peers' workers crash in a collective, and an agent that saw the crash first would count a failure.

A round gets a store of its own, served by its first rank, which goes with the round: neither its
address nor a key of it can be taken for those of another round.

How an agent goes is told in `parting`.
"""

import logging
import os
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
from evac.rendezvous.address import ETCD_TLS, LONGEST, Address, split_endpoint
from evac.rendezvous.ending import Ending, ending
from evac.rendezvous.etcd_access import Access
from evac.rendezvous.events import Anew, Begin, Call, Close, Join, Met
from evac.rendezvous.follower import Follower
from evac.rendezvous.forming import Part
from evac.rendezvous.opening import open_keys
from evac.rendezvous.own_node import OwnNode
from evac.rendezvous.parting import Parting
from evac.rendezvous.pins import Pins
from evac.rendezvous.pulse import Tempo
from evac.rendezvous.servers import Servers
from evac.rendezvous.settings import Settings, read_settings
from evac.rendezvous.state import Agent, Round, State, hosted
from evac.rendezvous.waiting import waits_for

logger = logging.getLogger("evac")

# Where a worker finds its job's store, for the daemon (`evac.connect` passes it on).
RENDEZVOUS = "EVAC_RENDEZVOUS"
_PREFIX = "evac"
# Who departs may be gone already, and is not waited for as the others are.
_LEAVER_SECONDS = 0.3
_STEP_SECONDS = 0.5
_FIRST_REMIND_SECONDS, _REMIND_SECONDS = 1.5, 30.0


def create(parameters: RendezvousParameters) -> "EvacHandler":
    """What torch's registry calls for ``--rdzv-backend=evac``.

    Raises:
        ValueError: An option is wrong.
        RendezvousConnectionError: The store does not answer.
    """
    settings = read_settings(parameters)
    try:
        Access(settings.etcd).read(tls=settings.address.scheme == ETCD_TLS)
    except ValueError as error:
        raise ValueError(f"--rdzv-conf, of etcd: {error}") from error
    return EvacHandler(settings)


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
            partial(
                open_keys,
                dead_seconds=settings.dead_seconds,
                access=Access(settings.etcd),
                keep_seconds=settings.keep_seconds,
            ),
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
        own_node = OwnNode(settings.socket, self._me, self._follower.say)
        pins = Pins(settings.socket, self._me, self._follower)
        self._parting = Parting(
            self._me, self._follower, self._servers, (own_node, pins), self._skip_barrier
        )
        self._follower.start()
        own_node.start()
        pins.start()
        follower = self._follower
        if not follower.wait(
            lambda _: follower.connected or bool(follower.denied), settings.connect_seconds
        ):
            self._parting.end(seconds=0.0)
            raise RendezvousConnectionError(
                f"the rendezvous store at {settings.address.endpoint} does not answer: "
                f"{follower.trouble}"
            )
        if follower.denied:
            self._parting.end(seconds=0.0)
            raise RendezvousConnectionError(self._denied())

    @property
    def address(self) -> Address:
        """Where the log lies now."""
        return self._follower.address

    @property
    def trouble(self) -> str:
        """Why the store cannot be reached, or turns this agent away; "" while it does neither."""
        return self._follower.trouble or self._follower.denied

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
            if not follower.stays and self._parting.leave():
                raise SystemExit(0)
            if follower.denied and not follower.admitted:
                raise RendezvousConnectionError(self._denied())
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
            heard = heard if self.trouble else now
            self._check_time(state, now - began, now - heard)
            if now >= remind:
                remind = now + _REMIND_SECONDS
                logger.warning("%s", self._waits_for(state))
            if follower.state is state:
                follower.wait_change(_STEP_SECONDS)

    def shutdown(self) -> bool:
        """The agent ends: so does the job, unless only this node leaves."""
        self._parting.shutdown(lambda well: self._close(well=well))
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
            self._parting.part()
            raise SystemExit(0)
        return found

    def _check_time(self, state: State, waited: float, silent: float) -> None:
        if silent >= self._settings.join_seconds:
            # What was heard last says nothing about the job any more.
            raise RendezvousConnectionError(f"the rendezvous store: {self.trouble}")
        if state.round.number and not state.over:
            return  # a spare waits for as long as the job runs
        if waited >= self._settings.join_seconds:
            raise RendezvousTimeoutError(self._waits_for(state))

    def _waits_for(self, state: State) -> str:
        return waits_for(state, self.trouble, self._part_in.unreached)

    def _denied(self) -> str:
        return f"the rendezvous store turns this agent away: {self._follower.denied}"

    @property
    def serves(self) -> bool:
        """Whether the log lies in this agent."""
        return self._parting.serves

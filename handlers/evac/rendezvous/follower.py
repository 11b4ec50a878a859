"""Keeps up with the job's log in two threads, so that the agent's own never waits for a store.

A store that cannot be reached stops neither the agent nor its workers; `trouble` says why.
"""

import logging
from collections.abc import Callable
from threading import Thread

from evac._clock import Monotonic, monotonic
from evac.rendezvous import log
from evac.rendezvous.address import Address
from evac.rendezvous.events import Event
from evac.rendezvous.keys import Keys, Unreachable
from evac.rendezvous.pulse import Pulses, Tempo
from evac.rendezvous.reader import Reader
from evac.rendezvous.state import Agent, State
from evac.rendezvous.view import View
from evac.rendezvous.writer import Writer

logger = logging.getLogger("evac")

_LAST_WORDS_SECONDS, _LAST_READ_SECONDS = 0.2, 5.0
# How long whoever serves the log next may take to begin, of the time until an agent counts as gone.
_PATIENCE = 2 / 3


class Follower:
    """One agent's view of its job.

    Args:
        address: Where the log lies.
        open_keys: Connects to a job's keys; raises `Unreachable`.
        standby: Keys of the server that this agent would serve the log from; None if it has none.
        fresh: From what the log begins, where there is none.
    """

    def __init__(
        self,
        address: Address,
        me: Agent,
        open_keys: Callable[[Address], Keys],
        *,
        standby: Callable[[], Keys] | None = None,
        tempo: Tempo | None = None,
        fresh: State | None = None,
        clock: Monotonic = monotonic,
    ) -> None:
        tempo = tempo or Tempo()
        self.view = View(address, me, open_keys, fresh or State())
        patience = tempo.dead_seconds * _PATIENCE
        self._reader = Reader(
            self.view,
            standby,
            clock,
            patience_seconds=patience,
            denied_seconds=tempo.beat_seconds,
        )
        pulses = Pulses(me.id, tempo.beat_seconds, tempo.dead_seconds)
        writer = Writer(self.view, pulses, clock, denied_seconds=tempo.beat_seconds)
        self._threads = [
            Thread(target=self._reader.run, name="evac-rdzv-read", daemon=True),
            Thread(target=writer.run, name="evac-rdzv-write", daemon=True),
        ]

    def start(self) -> None:
        """Begin to follow."""
        for thread in self._threads:
            thread.start()

    @property
    def state(self) -> State:
        """What the log has said so far."""
        return self.view.state

    @property
    def stays(self) -> bool:
        """Whether this agent's node does."""
        return self.view.stays

    @property
    def address(self) -> Address:
        """Where the log lies now."""
        return self.view.address

    @property
    def trouble(self) -> str:
        """Why the store cannot be reached, or takes nothing; "" while it does."""
        return self.view.trouble or self.view.mute

    @property
    def denied(self) -> str:
        """Why the store turns this agent away, which only a person can help; "" while it does not."""
        return self.view.denied

    @property
    def admitted(self) -> bool:
        """Whether the store has taken something from this agent once."""
        return self.view.admitted

    @property
    def connected(self) -> bool:
        """Whether the log has been read to its end once, and is being followed."""
        return self.view.line > 0 and not self.view.trouble

    @property
    def idle(self) -> bool:
        """Whether all that was said is written."""
        return not self.view.outbox

    def say(self, *events: Event, to_old: bool = False) -> None:
        """Append *events* as soon as the store takes them; returns at once.

        *to_old*: also where the log was before it moved, for those who leave with its host.
        """
        self.view.say(events)
        if to_old:
            self._reader.bid_farewell(events)

    def wait(self, until: Callable[[State], bool], seconds: float) -> bool:
        """Wait at most *seconds* for a state that *until* is content with."""
        view = self.view
        with view.changed:
            return view.changed.wait_for(lambda: until(view.state), seconds)

    def wait_change(self, seconds: float) -> None:
        """Wait at most *seconds* for anything new."""
        with self.view.changed:
            self.view.changed.wait(seconds)

    def erase(self, last: Callable[[State], bool]) -> None:
        """Delete all keys of the job, if *last* says that nobody else is left; once this agent has left.

        The log has one order: whose farewell stands last in it finds those of all others there. So
        it is read to its end first, past what was read when this agent's own was written.
        """
        view = self.view
        try:
            keys = view.open(view.address)
            try:
                found = log.snapshot(keys)
                if found is None or found.service != view.service:
                    return
                view.catch_up(keys)
                if last(view.state):
                    log.erase(keys, [agent.id for agent in view.state.round.agents])
            finally:
                keys.close()
        except Unreachable as error:
            logger.debug("keys of the job stay in the store: %s", error)

    def close(self, seconds: float) -> None:
        """Let go, once all that was said is written or *seconds* are over.

        A store that is away at this moment is waited for, too: without a word the others wait for this agent.
        """
        view = self.view
        with view.changed:
            view.changed.wait_for(
                lambda: not view.outbox or not view.line or bool(view.denied), seconds
            )
            said = not view.outbox
            view.ended = True
            view.changed.notify_all()
        # What was said wakes the reader. A thread that comes back out of torch while Python ends would
        # take the whole process with it ("terminate called without an active exception").
        for thread in self._threads:
            thread.join(_LAST_READ_SECONDS if said else _LAST_WORDS_SECONDS)

"""What the threads of one agent share: the log as far as it has been read, and what is still to be said.

One thread reads (`reader`), one writes (`writer`); `changed` guards all of it, and wakes who waits.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from secrets import token_hex
from threading import Condition

from evac.rendezvous import log
from evac.rendezvous.address import Address
from evac.rendezvous.events import (
    STAYING,
    Confirm,
    Depart,
    Event,
    Gone,
    Join,
    Leave,
    Moved,
    decode,
    encode,
)
from evac.rendezvous.keys import Keys
from evac.rendezvous.rounds import after
from evac.rendezvous.services import first_entry, outranks, renewed, untold
from evac.rendezvous.snapshot import Snapshot, dump
from evac.rendezvous.state import Agent, State

logger = logging.getLogger("evac")


class View:
    """One agent's view of its job.

    Attributes:
        state: What follows from all entries before `position`.
        service: Name of the service of the log that is read, at `address`; "" before the first.
        line: Counts connections of the reader, and moves; 0 before the first. Whoever writes over
            an older one writes no more.
        trouble: Why the store cannot be reached; "" while it can.
        mute: Why nothing can be written, though it is read; "" while it can.
        admitted: Something of this agent's was written once.
        denied: Why it turns this agent away, which only a person can help; "" while it does not.
        stale: The store holds another service than this by now.
        due: A snapshot that this agent is to publish.
        awaited: Number of the entry that the reader waits for; None while it does not.
        away: Seconds for which the store did not answer, at most, since the writer has looked at this.
    """

    def __init__(
        self,
        address: Address,
        me: Agent,
        open_keys: Callable[[Address], Keys],
        fresh: State,
    ) -> None:
        self.changed = Condition()
        self.address = address
        self.me = me
        self.open = open_keys
        self.state = State()
        self.position = 0
        self.service = ""
        self.line = 0
        self.trouble = "not connected yet"
        self.mute = self.denied = ""
        self.admitted = False
        self.ended = False
        self.stale = False
        self.outbox: deque[Event] = deque()
        self.due: Snapshot | None = None
        self.awaited: int | None = None
        self.away = 0.0
        # What was tried to be written last, and whether it stands in the log of this service.
        self._saying, self._stands = b"", False
        self._fresh = fresh
        self._confirmed = 0
        # The last word about this agent's own node.
        self._own: Depart | None = None

    @property
    def stays(self) -> bool:
        """Whether this agent's node does, as far as was ever heard.

        Another service of the log may not have heard yet that it does so after all.
        """
        return self._own is None or self._own.word == STAYING

    @property
    def goes(self) -> bool:
        """Whether this agent is to look for the log elsewhere."""
        return self.stays and (self.state.moves or self.state.moved is not None)

    @property
    def on_trial(self) -> bool:
        """Whether this agent may leave its service, which has just moved, for another one."""
        return bool(self.state.electorate) and not self.bound and self.stays

    @property
    def bound(self) -> bool:
        """Whether a round may stand here, with this agent's word, that it has not read of yet."""
        forming = self.state.forming
        return forming is not None and forming.number == self._confirmed

    # --- reading ---------------------------------------------------------------------------

    def begin(self, keys: Keys) -> None:
        """Find the service that counts in this store, or begin one, and read it to its end."""
        while True:
            text, found = log.find(keys)
            if found is not None and found.service == self.service:
                if found.at > self.position:
                    self.adopt(found)
                break
            if found is not None and not (self.service and outranks(self.state, found.state)):
                self.adopt(found)
                break
            mine = self._made(found)
            if keys.replace(log.SNAPSHOT, text, dump(mine)):
                self.adopt(mine)
                self._tell_last(keys, found)
                break
        self.stale = False
        self.catch_up(keys)

    def _made(self, found: Snapshot | None) -> Snapshot:
        state = self._fresh
        if self.service and self.state.host is None:
            state = renewed(self.state, found.state if found else None)
        elif self.service:
            # Its host has begun anew, perhaps while the log is elsewhere.
            state = replace(state, held=True)
        at = first_entry(state.term)
        return Snapshot(at, at, state, token_hex(4))

    def _tell_last(self, keys: Keys, found: Snapshot | None) -> None:
        """What another service was told here is said again; who follows it hears that it is over."""
        if not self.state.term:
            return
        first = found.at if found else 0
        said = map(decode, log.read_on(keys, first))
        self.say(event for event in said if isinstance(event, Depart))
        if found is not None:
            moved = Moved("", self.address.endpoint, self.state.term)
            log.append(keys, first, encode(moved, mark=self.me.id))

    def adopt(self, found: Snapshot) -> None:
        """Go by *found* from now on."""
        with self.changed:
            before, self.state = self.state, found.state
            self.position, self.service = found.at, found.service
            self._stands = False
            self._hear_of_own()
            self.say(untold(before, found.state))
            self.changed.notify_all()

    def move(self, address: Address, found: Snapshot) -> None:
        """Go by *found*, which lies at *address*."""
        with self.changed:
            self.address = address
            self.adopt(found)
            # Whoever writes must not write there any more.
            self.line += 1
            self.trouble = "the rendezvous store moves"
            self.changed.notify_all()

    def connected(self, away: float = 0.0) -> None:
        """The log is followed over a new connection; there was none for *away* seconds."""
        with self.changed:
            self.line += 1
            self.away = max(self.away, away)
            self.trouble = self.denied = ""
            self.changed.notify_all()

    def catch_up(self, keys: Keys) -> None:
        """Read to the end of what is there."""
        while True:
            start = self.position
            entries = list(log.read_on(keys, start))
            with self.changed:
                if self.position != start:
                    continue  # the writer has found out that we had fallen behind
                for text in entries:
                    self.fold(text)
                self.changed.notify_all()
            if not entries:
                return

    def await_next(self) -> int:
        """Number of the entry that the reader waits for from now on."""
        with self.changed:
            self.awaited = self.position
            return self.awaited

    def fold(self, text: bytes) -> None:
        """Read one entry."""
        self.position += 1
        self._stands = self._stands or text == self._saying
        event = decode(text)
        if event is None:
            return
        before = self.state
        self.state = after(before, event)
        if isinstance(event, Join) and not self._as_told(event):
            logger.warning(
                "%s was started with --nnodes=%d:%d; the job goes by %d:%d, as its first node said",
                event.node, event.minimum, event.maximum, self.state.minimum, self.state.maximum,
            )  # fmt: skip
        if isinstance(event, Gone) and event.by:
            logger.warning(
                "agent %s was not heard of for too long (says %s)", event.agent, event.by
            )
        if isinstance(event, Leave) and event.agent == self.me.id:
            self.ended = True
        self._hear_of_own()
        stands = self.state.round
        if stands.number != before.round.number and stands.rank(self.me.id) == 0:
            self.due = Snapshot(self.position, 0, self.state, self.service)

    def _hear_of_own(self) -> None:
        found = self.state.departures.get((self.me.node, self.me.boot))
        if found is not None and (self._own is None or found.sequence >= self._own.sequence):
            self._own = found

    def _as_told(self, event: Join) -> bool:
        return (event.minimum, event.maximum) == (self.state.minimum, self.state.maximum)

    def host_has_died(self) -> None:
        """Its agent served the log, and nobody does now: so the log moves, as when a host leaves."""
        with self.changed:
            self.state = after(self.state, Gone(self.state.host_agent, by=self.me.node))
            self.changed.notify_all()

    def in_trouble(self, reason: str) -> None:
        """The store cannot be reached."""
        with self.changed:
            if not (self.trouble or self.denied or self.ended or self.goes):
                logger.warning("the rendezvous store cannot be reached, trying again: %s", reason)
            self.trouble = reason
            self.changed.notify_all()

    def unheard(self, reason: str) -> None:
        """Nothing that this agent says can be written, whatever it reads."""
        with self.changed:
            if not (self.mute or self.trouble or self.denied or self.ended or self.goes):
                logger.warning("the rendezvous store takes nothing, trying again: %s", reason)
            self.mute = reason
            self.changed.notify_all()

    def heard(self) -> None:
        """Something of this agent's is written."""
        if self.admitted and not (self.mute or self.denied):
            return
        with self.changed:
            self.admitted, self.mute, self.denied = True, "", ""
            self.changed.notify_all()

    def turned_away(self, reason: str) -> None:
        """The store does not let this agent in."""
        with self.changed:
            if not self.denied and not self.ended:
                logger.warning("the rendezvous store turns this agent away: %s", reason)
            self.denied, self.mute = reason, ""
            self.changed.notify_all()

    # --- writing ---------------------------------------------------------------------------

    def say(self, events: Iterable[Event]) -> None:
        """Have *events* written."""
        with self.changed:
            self.outbox.extend(events)
            self.changed.notify_all()

    def try_append(self, keys: Keys, event: Event, mark: str) -> int | None:
        """Write *event* as the next entry, behind all that has been read.

        So whoever has read that the log moves never writes behind that. Tried again with the same mark, it is
        written once, also where it was written at first and nobody was told so.

        Returns:
            Its number, or a later one; None where somebody else has written that one, which is to be read
            first.
        """
        text = encode(event, mark=mark)
        with self.changed:
            at = self.position
            if isinstance(event, Confirm):
                self._confirmed = event.number
            if text != self._saying:
                self._saying, self._stands = text, False
            elif self._stands:
                return at
        return at if keys.create(log.entry(at), text) == text else None

    def rest(self, seconds: float) -> None:
        """Wait, unless this agent ends."""
        with self.changed:
            self.changed.wait_for(lambda: self.ended, seconds)

"""Keeps up with the job's log in two threads, so that the agent's own never waits for a store.

The reader holds a connection that waits for the next entry, folds what comes, and finds the log
again where it goes: when the node that serves it departs, or the agent there has died, the first
survivor serves it on. (Not where that machine is silent: it may live, and serve others.) The
writer holds another: it appends what this agent says, shows that it lives, and looks after others.

A store that cannot be reached stops neither the agent nor its workers; `trouble` says why.
"""

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from threading import Condition, Thread

from evac._clock import Monotonic, monotonic
from evac.rendezvous import log
from evac.rendezvous.address import Address
from evac.rendezvous.events import Event, Gone, Leave, Met, decode, encode
from evac.rendezvous.keys import Keys, Unreachable
from evac.rendezvous.pulse import Pulses, Tempo
from evac.rendezvous.rounds import Agent, State, after
from evac.rendezvous.snapshot import Snapshot, dump
from evac.rendezvous.succession import bid_farewell, forward, orphaned, place, served, served_by

logger = logging.getLogger("evac")

_FIRST_PAUSE, _LAST_PAUSE = 0.2, 2.0
# How long the one who serves the log next may take to begin.
_TAKE_OVER_SECONDS = 10.0
_POLL_SECONDS = 0.02


class Follower:
    """One agent's view of its job.

    Args:
        open_keys: Connects to a job's keys; raises `Unreachable`.
        standby: Keys of the server that this agent would serve the log from; None if it has none.
    """

    def __init__(
        self,
        address: Address,
        me: Agent,
        open_keys: Callable[[Address], Keys],
        *,
        standby: Callable[[], Keys] | None = None,
        tempo: Tempo | None = None,
        clock: Monotonic = monotonic,
    ) -> None:
        self.changed = Condition()
        self.state = State()
        self.address = address
        self.me = me
        self.trouble = "not connected yet"
        self._open = open_keys
        self._standby = standby
        self._tempo = tempo or Tempo()
        self._clock = clock
        self._position = 0
        # Counts connections of the reader; 0 before the first.
        self._line = 0
        self._ended = False
        self._outbox: deque[Event] = deque()
        self._marks = count(1)
        self._due: Snapshot | None = None
        # Where the log was before it moved, until those who leave with its host are told.
        self._old_address: Address | None = None
        self._old_position = 0
        self._lent: Keys | None = None
        self._threads = [
            Thread(target=self._read, name="evac-rdzv-read", daemon=True),
            Thread(target=self._write, name="evac-rdzv-write", daemon=True),
        ]

    def start(self) -> None:
        """Begin to follow."""
        for thread in self._threads:
            thread.start()

    def say(self, *events: Event, to_old: bool = False) -> None:
        """Append *events* as soon as the store takes them; returns at once.

        *to_old*: also where the log was before it moved, for those who leave with its host.
        """
        with self.changed:
            self._outbox.extend(events)
            self.changed.notify_all()
            old = self._old_address if to_old else None
            if to_old:
                self._old_address = None
        if old is not None:
            bid_farewell(self._open, old, self._old_position, events, mark=self.me.id)

    def wait(self, until: Callable[[State], bool], seconds: float) -> bool:
        """Wait at most *seconds* for a state that *until* is content with."""
        with self.changed:
            return self.changed.wait_for(lambda: until(self.state), seconds)

    def wait_change(self, seconds: float) -> None:
        """Wait at most *seconds* for anything new."""
        with self.changed:
            self.changed.wait(seconds)

    @property
    def connected(self) -> bool:
        """Whether the log has been read to its end once, and is being followed."""
        return self._line > 0 and not self.trouble

    @property
    def idle(self) -> bool:
        """Whether all that was said is written."""
        return not self._outbox

    def erase(self, last: Callable[[State], bool]) -> None:
        """Delete all keys of the job, if *last* says that nobody else is left; once this agent has left.

        The log has one order: whose farewell stands last in it finds those of all others there. So
        it is read to its end first, past what was read when this agent's own was written.
        """
        try:
            keys = self._open(self.address)
            try:
                entries = list(log.read_on(keys, self._position))
                with self.changed:
                    for text in entries:
                        self._fold(text)
                if last(self.state):
                    agents = (agent.id for agent in self.state.round.agents)
                    log.erase(keys, self._position, agents)
            finally:
                keys.close()
        except Unreachable as error:
            logger.debug("keys of the job stay in the store: %s", error)

    def close(self, seconds: float) -> None:
        """Let go, once all that was said is written or *seconds* are over."""
        with self.changed:
            self.changed.wait_for(lambda: not self._outbox or not self.connected, seconds)
            self._ended = True
            self.changed.notify_all()
        for thread in self._threads:
            thread.join(_FIRST_PAUSE)

    # --- reading ---------------------------------------------------------------------------

    def _read(self) -> None:
        pause = _FIRST_PAUSE
        while not self._ended:
            try:
                keys = self._open(self.address)
                try:
                    self._begin(keys)
                    pause = _FIRST_PAUSE
                    self._follow(keys)
                finally:
                    if keys is not self._lent:
                        keys.close()
            except Unreachable as error:
                self._in_trouble(str(error))
                if self.state.moves and self._stays:
                    self._move(None)
                elif (elsewhere := self._elsewhere()) is not None:
                    self._moved(elsewhere[0], None, elsewhere[1])
                elif orphaned(self.state, error):
                    self._host_has_died()
                else:
                    self._rest(pause)
                    pause = min(pause * 2, _LAST_PAUSE)

    @property
    def _stays(self) -> bool:
        return not self.state.departs(self.me)

    def _begin(self, keys: Keys) -> None:
        """Read from the last snapshot on, if it knows more than we do."""
        found = log.snapshot(keys)
        with self.changed:
            if found is not None and (found.at > self._position or self._line == 0):
                self._position, self.state = found.at, found.state
        self._catch_up(keys)
        with self.changed:
            self._line += 1
            self.trouble = ""
            self.changed.notify_all()

    def _follow(self, keys: Keys) -> None:
        while not self._ended:
            if self.state.moves and self._stays:
                self._move(keys)
                return
            keys.wait(log.entry(self._position))
            self._catch_up(keys)

    def _catch_up(self, keys: Keys) -> None:
        while True:
            start = self._position
            entries = list(log.read_on(keys, start))
            with self.changed:
                if self._position != start:
                    continue  # the writer has found out that we had fallen behind
                for text in entries:
                    self._fold(text)
                self.changed.notify_all()
            if not entries:
                return

    def _fold(self, text: bytes) -> None:
        self._position += 1
        event = decode(text)
        if event is None:
            return
        before = self.state
        self.state = after(before, event)
        if isinstance(event, Gone) and event.by:
            logger.warning(
                "agent %s was not heard of for too long (says %s)", event.agent, event.by
            )
        if isinstance(event, Leave) and event.agent == self.me.id:
            self._ended = True
        stands = self.state.round
        if stands.number != before.round.number and stands.rank(self.me.id) == 0:
            self._due = Snapshot(self._position, 0, self.state)

    def _in_trouble(self, reason: str) -> None:
        with self.changed:
            if not self.trouble and not self._ended and not self.state.moves:
                logger.warning("the rendezvous store cannot be reached, trying again: %s", reason)
            self.trouble = reason
            self.changed.notify_all()

    def _host_has_died(self) -> None:
        """Its agent served the log, and nobody does now: so the log moves, as when a host leaves."""
        with self.changed:
            self.state = after(self.state, Gone(self.state.host_agent, by=self.me.node))
            self.changed.notify_all()

    def _rest(self, seconds: float) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self._ended, seconds)

    # --- the log moves ---------------------------------------------------------------------

    def _move(self, old: Keys | None) -> None:
        """The host of the log leaves: go where it is served next, or serve it."""
        given_up: set[str] = set()
        while not self._ended and self._stays:
            left = [one for one in self.state.successors() if one.id not in given_up]
            if not left:
                self._in_trouble("the node that serves the store leaves, and nobody can take over")
                self._rest(_LAST_PAUSE)
                return
            successor, until = left[0], self._clock() + _TAKE_OVER_SECONDS
            if successor.id == self.me.id and self._standby is not None:
                self._serve(self._standby(), successor, old)
                return
            while self._clock() < until and not self.state.departs(successor):
                found = served(self._open, place(self.address, successor))
                if found is not None:
                    self._moved(successor, old, found)
                    return
                # It may have heard meanwhile that it leaves, too.
                old = self._still_read(old)
                self._rest(_POLL_SECONDS)
            given_up.add(successor.id)

    def _serve(self, keys: Keys, me: Agent, old: Keys | None) -> None:
        state = self.state.served_by(me)
        keys.put(log.SNAPSHOT, dump(Snapshot(0, 0, state)))
        self._lent = old
        self._moved(me, old, state)
        if old is not None:
            told = (old, self._old_position, self.say, lambda: self._ended)
            Thread(target=forward, args=told, name="evac-rdzv-old", daemon=True).start()

    def _still_read(self, old: Keys | None) -> Keys | None:
        if old is not None:
            try:
                self._catch_up(old)
            except Unreachable:
                return None
        return old

    def _elsewhere(self) -> tuple[Agent, State] | None:
        return served_by(self._open, self.address, self.state, but=self.me.id)

    def _moved(self, successor: Agent, old: Keys | None, state: State) -> None:
        with self.changed:
            self._old_address = self.address if old is not None else None
            self._old_position = self._position
            # The agent may have been quicker to see that the round is over.
            met = [event for event in self._outbox if isinstance(event, Met)]
            if self._old_address is not None and met:
                bid_farewell(self._open, self.address, self._position, met, mark=self.me.id)
                self._old_address = None
            self.address = place(self.address, successor)
            self.state, self._position = state, 0
            # Whoever writes must not write there any more.
            self._line += 1
            self.trouble = "the rendezvous store moves"
            self.changed.notify_all()
        logger.warning(
            "the rendezvous store is served by node %s now: start replacements with --rdzv-endpoint=%s",
            successor.node,
            self.address.endpoint,
        )

    # --- writing ---------------------------------------------------------------------------

    def _write(self) -> None:
        pulses = Pulses(self.me.id, self._tempo.beat_seconds, self._tempo.dead_seconds)
        keys, line = None, 0
        while not self._ended:
            with self.changed:
                self.changed.wait_for(
                    lambda: self._ended or self._outbox or self._due is not None,
                    max(pulses.next - self._clock(), 0.0) if self._line else 1.0,
                )
            if not self._line or (self.trouble and self._line == line):
                self._rest(_POLL_SECONDS)
                continue
            try:
                if keys is None or line != self._line:
                    if keys is not None:
                        keys.close()
                    line, keys = self._line, self._open(self.address)
                    pulses.anew()
                self._speak(keys, line)
                if pulses.next <= self._clock():
                    self._beat(keys, pulses)
            except Unreachable as error:
                logger.debug("could not write: %s", error)
                if keys is not None:
                    keys.close()
                keys = None
                self._rest(_FIRST_PAUSE)
        if keys is not None:
            keys.close()

    def _speak(self, keys: Keys, line: int) -> None:
        while self._outbox and not self._ended:
            event = self._outbox[0]
            text = encode(event, mark=f"{self.me.id}:{next(self._marks)}")
            if not self._append(keys, line, text):
                return
            if event == Leave(self.me.id):
                keys.delete(log.beat(self.me.id))
            with self.changed:
                self._outbox.popleft()
                self.changed.notify_all()
        due, self._due = self._due, None
        if due is not None:
            log.compact(keys, due)

    def _append(self, keys: Keys, line: int, text: bytes) -> bool:
        """Write it as the next entry; False where the log is elsewhere by now.

        Only behind what has been read: so whoever has read that the log moves never writes
        behind that.
        """
        while not self._ended:
            with self.changed:
                if line != self._line or (self.state.moves and self._stays):
                    return False
                at = self._position
            if keys.create(log.entry(at), text) == text:
                return True
            with self.changed:
                self.changed.wait_for(partial(self._read_past, at, line), 1.0)
        return False

    def _read_past(self, at: int, line: int) -> bool:
        return self._position > at or self._line != line or self._ended

    def _beat(self, keys: Keys, pulses: Pulses) -> None:
        now = self._clock()
        keys.put(log.beat(self.me.id), pulses.beat(now))
        watched = pulses.watched(self.state)
        found = keys.get([log.beat(agent) for agent in watched])
        for agent in pulses.silent(dict(zip(watched, found, strict=True)), now):
            self.say(Gone(agent, by=self.me.node))
            keys.delete(log.beat(agent))
        latest = log.snapshot(keys)
        if latest is not None and latest.at > self._position:
            self._skip_to(keys, latest)

    def _skip_to(self, keys: Keys, latest: Snapshot) -> None:
        """We were away for so long that the next entry may be deleted by now."""
        with self.changed:
            stuck = self._position
            if latest.at <= stuck:
                return
            self._position, self.state = latest.at, latest.state
            self.changed.notify_all()
        # Wakes our own reader, which may wait for an entry that never comes.
        if keys.create(log.entry(stuck), b"{}") == b"{}":
            keys.delete(log.entry(stuck))

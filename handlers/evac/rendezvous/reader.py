"""Reads the job's log in a thread of its own, and finds it again where it goes.

It holds a connection that waits for the next entry, and folds what comes. When the node that serves the
log departs, or its agent has died, it goes where the log is served next, or this agent serves it on; see
`services`. (Not where that machine is silent: it may live, and serve others.)
"""

import logging
from collections.abc import Callable, Iterable
from threading import Thread

from evac._clock import Monotonic
from evac.rendezvous import log
from evac.rendezvous.address import Address
from evac.rendezvous.events import Event, Moved
from evac.rendezvous.keys import Denied, Keys, Unreachable
from evac.rendezvous.services import first_entry, taken_over
from evac.rendezvous.snapshot import Snapshot, dump
from evac.rendezvous.succession import (
    Aim,
    aim,
    bid_farewell,
    forward,
    look,
    look_round,
    orphaned,
    place,
    signpost,
)
from evac.rendezvous.view import View

logger = logging.getLogger("evac")

_FIRST_PAUSE, _LAST_PAUSE, _FAULT_PAUSE = 0.2, 2.0, 1.0
_POLL_SECONDS = 0.02
# Between two looks at the other services of a log on trial, and at where agents look for it.
_LOOK_SECONDS = 1.0


class Reader:
    """One agent's; `run` is its thread.

    Args:
        standby: Keys of the server that this agent would serve the log from; None if it has none.
        patience_seconds: That the one who serves the log next may take to begin.
        denied_seconds: Between two tries at a store that turns this agent away: no more than between two
            signs of life. Who comes back later than the others is taken for dead by them.
    """

    def __init__(
        self,
        view: View,
        standby: Callable[[], Keys] | None,
        clock: Monotonic,
        *,
        patience_seconds: float,
        denied_seconds: float,
    ) -> None:
        self._view = view
        self._standby = standby
        self._clock = clock
        self._patience_seconds = patience_seconds
        self._denied_seconds = denied_seconds
        self._keys: Keys | None = None
        self._pause = _FIRST_PAUSE
        # Since when the store has not answered, and since when it has.
        self._lost_at: float | None = None
        self._found_at: float | None = None
        self._looked_at = clock()
        # While the log moves: who was waited for long enough, who is waited for, and until when.
        self._given_up: set[str] = set()
        self._waits_for, self._until = "", 0.0
        # Nobody is where it was to go: the old log may have more to say, if it can be reached.
        self._returns = False
        # What was said to all of a round, until it is said also where the log was before.
        self._farewell: list[Event] = []
        self._old: tuple[Address, int] | None = None

    def run(self) -> None:
        """Until the agent ends, whatever goes wrong: without this thread it would be deaf."""
        while not self._view.ended:
            try:
                self._run()
            except Exception as error:
                logger.exception("reading the rendezvous log failed; it is opened anew")
                self._hang_up()
                self._view.in_trouble(str(error) or type(error).__name__)
                self._view.rest(_FAULT_PAUSE)
        self._hang_up()

    def _run(self) -> None:
        view = self._view
        while not view.ended:
            seconds = self.step()
            if seconds is not None:
                view.rest(seconds)
            elif self._keys is not None and not view.ended:
                try:
                    self._keys.wait(log.entry(view.await_next()))
                    self._pause = _FIRST_PAUSE
                except Unreachable as error:
                    view.rest(self._failed(error))
                finally:
                    view.awaited = None

    def step(self) -> float | None:
        """Read what there is, and go where the log goes; blocks no longer than the store does.

        Returns:
            Seconds until the next one is due; None where that is when there is one more entry.
        """
        view = self._view
        try:
            if self._keys is None and (self._returns or not view.service or not view.goes):
                self._returns = False
                self._keys = view.open(view.address)
                view.begin(self._keys)
                now = self._clock()
                view.connected(0.0 if self._lost_at is None else now - self._lost_at)
                self._lost_at, self._found_at = None, now
            elif self._keys is not None:
                view.catch_up(self._keys)
        except Unreachable as error:
            return self._failed(error)
        moved = view.state.moved
        if view.stale or (moved is not None and moved.at == view.address.endpoint):
            # Another service of it has begun in this very store.
            self._returns = True
            self._hang_up()
            return _POLL_SECONDS
        if view.goes:
            return self._move(forced=False)
        self._given_up, self._waits_for = set(), ""
        if not view.state.electorate:
            return None
        # On trial, no wait without an end: the log may count more elsewhere.
        if self._clock() - self._looked_at >= _LOOK_SECONDS:
            self._looked_at = self._clock()
            self._look_round()
        return _POLL_SECONDS

    def bid_farewell(self, events: Iterable[Event]) -> None:
        """Say *events* also where the log was before it moved, for those who leave with its host."""
        with self._view.changed:
            if self._old is not None or self._view.goes:
                self._farewell.extend(events)
                self._send_farewell()

    def _failed(self, error: Unreachable) -> float:
        """The store does not answer: look elsewhere; seconds until the next try."""
        view, now = self._view, self._clock()
        self._hang_up()
        self._lost_at = now if self._lost_at is None else self._lost_at
        if self._found_at is not None and now - self._found_at >= _LAST_PAUSE:
            # Else it answers, and breaks off at once: no use in asking it faster and faster.
            self._pause = _FIRST_PAUSE
        self._found_at = None
        if isinstance(error, Denied):
            view.turned_away(str(error))
        view.in_trouble(str(error))
        # Who serves a log on trial may vanish without a word; the trial of another is as good.
        forced = view.on_trial and now - self._lost_at >= self._patience_seconds
        if view.goes or forced:
            return self._move(forced=forced)
        if self._look_round():
            return 0.0
        if orphaned(view.state, error):
            view.host_has_died()
            return 0.0
        if isinstance(error, Denied):
            return self._denied_seconds
        pause, self._pause = self._pause, min(self._pause * 2, _LAST_PAUSE)
        return pause

    def _hang_up(self) -> None:
        keys, self._keys = self._keys, None
        if keys is not None:
            keys.close()

    def _look_round(self) -> bool:
        view = self._view
        found = look_round(view.open, view.address, view.state, view.me.id, bound=view.bound)
        if found is None:
            return False
        agent, snapshot = found
        self._hang_up()
        self._moved(agent.standby, snapshot, reached=False)
        return True

    # --- the log moves ---------------------------------------------------------------------

    def _move(self, *, forced: bool) -> float:
        """Go where the log is served next, or serve it; seconds until the next look."""
        view = self._view
        target = aim(view.state, self._given_up, forced=forced)
        if target is None:
            view.in_trouble("the node that serves the store leaves, and nobody can take over")
            self._given_up, self._returns = set(), True
            self._hang_up()
            return _LAST_PAUSE
        if target.agent == view.me.id and self._standby is not None:
            if self._keys is None or target.said or self._claims(self._keys, target):
                self._serve(self._standby(), target.term)
            return 0.0
        if target.at != self._waits_for:
            self._waits_for, self._until = target.at, self._clock() + self._patience_seconds
        found = look(view.open, place(view.address, target.at))
        if found is not None and found.state.term >= target.term:
            self._moved(target.at, found, reached=self._keys is not None)
            self._hang_up()
        elif self._clock() >= self._until:
            self._given_up.add(target.agent)
            self._waits_for, self._returns = "", self._keys is None
        return _POLL_SECONDS

    def _claims(self, old: Keys, target: Aim) -> bool:
        """Say in the old log that this agent serves it on; False where that has more to say first."""
        view = self._view
        try:
            moved = Moved(target.agent, target.at, target.term)
            said = view.try_append(old, moved, view.me.id) is not None
            view.catch_up(old)
        except Unreachable:
            # Its host is gone already; whether the word still stands there does not matter then.
            return True
        return said

    def _serve(self, keys: Keys, term: int) -> None:
        view, old = self._view, self._keys
        state = taken_over(view.state, view.me, term, view.address.endpoint)
        log.erase(keys)  # of an earlier service here
        first = first_entry(term)
        made = Snapshot(first, first, state, f"{view.me.id}.{term}")
        keys.put(log.SNAPSHOT, dump(made))
        keys.close()
        last, self._keys = view.position, None
        self._moved(view.me.standby, made, reached=old is not None)
        if old is not None:
            told = (old, last, lambda event: view.say([event]), lambda: view.ended)
            self._beside("evac-rdzv-old", forward, *told)
        self._beside("evac-rdzv-way", self._show_the_way, made)

    def _beside(self, name: str, do: Callable[..., None], *args: object) -> None:
        """Have something done for as long as this agent serves the log."""
        Thread(target=do, args=args, name=name, daemon=True).start()

    def _show_the_way(self, mine: Snapshot) -> None:
        """Tell whoever looks for the log at its old endpoint, for as long as this agent serves it."""
        view, told = self._view, ""
        here = Moved(view.me.id, view.me.standby, mine.state.term)
        origin = place(view.address, mine.state.origin)
        while not view.ended and view.service == mine.service:
            try:
                keys = view.open(origin)
                try:
                    told = signpost(keys, here, told)
                finally:
                    keys.close()
            except Unreachable:
                pass  # as a rule: that node has left
            view.rest(_LOOK_SECONDS)

    def _moved(self, at: str, found: Snapshot, *, reached: bool) -> None:
        """Go there; *reached*: the log can still be written where it was."""
        view = self._view
        with view.changed:
            self._old = (view.address, view.position) if reached else None
            self._given_up, self._waits_for, self._lost_at = set(), "", None
            view.move(place(view.address, at), found)
            self._send_farewell()
        logger.warning(
            "the rendezvous store is served at %s now: start replacements with --rdzv-endpoint=%s",
            at,
            view.address.endpoint,
        )

    def _send_farewell(self) -> None:
        if self._old is None or not self._farewell:
            return
        bid_farewell(self._view.open, *self._old, self._farewell, mark=self._view.me.id)
        self._farewell, self._old = [], None

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
from evac.rendezvous.keys import Keys, Unreachable
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

_FIRST_PAUSE, _LAST_PAUSE = 0.2, 2.0
# How long the one who serves the log next may take to begin.
_TAKE_OVER_SECONDS = 10.0
_POLL_SECONDS = 0.02
# Between two looks at the other services of a log on trial, and at where agents look for it.
_LOOK_SECONDS = 1.0


class Reader:
    """One agent's; `run` is its thread.

    Args:
        standby: Keys of the server that this agent would serve the log from; None if it has none.
    """

    def __init__(self, view: View, standby: Callable[[], Keys] | None, clock: Monotonic) -> None:
        self._view = view
        self._standby = standby
        self._clock = clock
        # A connection that another thread goes on with.
        self._lent: Keys | None = None
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
                self._view.in_trouble(str(error) or type(error).__name__)
                self._view.rest(_LAST_PAUSE)

    def _run(self) -> None:
        view, pause = self._view, _FIRST_PAUSE
        lost_at: float | None = None
        while not view.ended:
            try:
                keys = view.open(view.address)
                try:
                    view.begin(keys)
                    with view.changed:
                        view.line += 1
                        view.trouble = ""
                        view.changed.notify_all()
                    pause, lost_at = _FIRST_PAUSE, None
                    self._follow(keys)
                finally:
                    if keys is not self._lent:
                        keys.close()
            except Unreachable as error:
                now = self._clock()
                lost_at = now if lost_at is None else lost_at
                view.in_trouble(str(error))
                # Who serves a log on trial may vanish without a word; the trial of another is as good.
                forced = view.on_trial and now - lost_at >= _TAKE_OVER_SECONDS
                if view.goes or forced:
                    self._move(None, forced=forced)
                elif self._look_round():
                    lost_at = None
                elif orphaned(view.state, error):
                    view.host_has_died()
                else:
                    view.rest(pause)
                    pause = min(pause * 2, _LAST_PAUSE)

    def bid_farewell(self, events: Iterable[Event]) -> None:
        """Say *events* also where the log was before it moved, for those who leave with its host."""
        with self._view.changed:
            if self._old is not None or self._view.goes:
                self._farewell.extend(events)
                self._send_farewell()

    def _follow(self, keys: Keys) -> None:
        view, looked = self._view, self._clock()
        while not view.ended and not view.stale:
            moved = view.state.moved
            if moved is not None and moved.at == view.address.endpoint:
                return  # another service of it has begun in this very store
            if view.goes:
                self._move(keys)
                return
            if view.state.electorate:
                # No wait without an end: the log may count more elsewhere.
                view.rest(_POLL_SECONDS)
                if self._clock() - looked >= _LOOK_SECONDS:
                    looked = self._clock()
                    if self._look_round():
                        return
            else:
                keys.wait(log.entry(view.position))
            view.catch_up(keys)

    def _look_round(self) -> bool:
        view = self._view
        found = look_round(view.open, view.address, view.state, view.me.id, bound=view.bound)
        if found is None:
            return False
        agent, snapshot = found
        self._moved(agent.standby, snapshot, None)
        return True

    # --- the log moves ---------------------------------------------------------------------

    def _move(self, old: Keys | None, *, forced: bool = False) -> None:
        """Go where the log is served next, or serve it."""
        view = self._view
        given_up: set[str] = set()
        waits_for, until = "", 0.0
        while not view.ended and view.stays and (view.goes or forced):
            target = aim(view.state, given_up, forced=forced)
            if target is None:
                view.in_trouble("the node that serves the store leaves, and nobody can take over")
                view.rest(_LAST_PAUSE)
                return
            if target.agent == view.me.id and self._standby is not None:
                if old is None or target.said or self._claims(old, target):
                    self._serve(self._standby(), target.term, old)
                    return
                continue
            if target.at != waits_for:
                waits_for, until = target.at, self._clock() + _TAKE_OVER_SECONDS
            found = look(view.open, place(view.address, target.at))
            if found is not None and found.state.term >= target.term:
                self._moved(target.at, found, old)
                return
            # Its node may have heard meanwhile that it leaves, too, or the host's that it stays.
            old = self._still_read(old)
            view.rest(_POLL_SECONDS)
            if self._clock() >= until:
                given_up.add(target.agent)
                waits_for = ""

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

    def _serve(self, keys: Keys, term: int, old: Keys | None) -> None:
        view = self._view
        state = taken_over(view.state, view.me, term, view.address.endpoint)
        log.erase(keys)  # of an earlier service here
        first = first_entry(term)
        made = Snapshot(first, first, state, f"{view.me.id}.{term}")
        keys.put(log.SNAPSHOT, dump(made))
        self._lent, last = old, view.position
        self._moved(view.me.standby, made, old)
        if old is not None:
            told = (old, last, lambda event: view.say([event]), lambda: view.ended)
            Thread(target=forward, args=told, name="evac-rdzv-old", daemon=True).start()
        Thread(target=self._show_the_way, args=(made,), name="evac-rdzv-way", daemon=True).start()

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

    def _still_read(self, old: Keys | None) -> Keys | None:
        if old is not None:
            try:
                self._view.catch_up(old)
            except Unreachable:
                return None
        return old

    def _moved(self, at: str, found: Snapshot, old: Keys | None) -> None:
        view = self._view
        with view.changed:
            self._old = (view.address, view.position) if old is not None else None
            view.address = place(view.address, at)
            view.adopt(found)
            # Whoever writes must not write there any more.
            view.line += 1
            view.trouble = "the rendezvous store moves"
            self._send_farewell()
            view.changed.notify_all()
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

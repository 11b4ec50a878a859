"""Writes to the job's log in a thread of its own: what the agent says, that it lives, and who is gone.

It holds a connection beside the reader's, which may wait for ever.
"""

import logging
from collections.abc import Callable
from functools import partial
from itertools import count

from evac._clock import Monotonic
from evac.rendezvous import log
from evac.rendezvous.events import Gone, Leave
from evac.rendezvous.keys import Denied, Keys, Unreachable
from evac.rendezvous.pulse import Pulses
from evac.rendezvous.snapshot import Snapshot
from evac.rendezvous.view import View

logger = logging.getLogger("evac")

_FIRST_PAUSE, _LAST_PAUSE, _FAULT_PAUSE = 0.2, 2.0, 1.0
# A write that fails may have been the first to feel what the reader will be told in a moment.
_TELL_PAUSE = 4 * _FIRST_PAUSE
_POLL_SECONDS = 0.02


class Writer:
    """One agent's; `run` is its thread.

    Args:
        denied_seconds: See `Reader`.
    """

    def __init__(
        self, view: View, pulses: Pulses, clock: Monotonic, *, denied_seconds: float
    ) -> None:
        self._view = view
        self._pulses = pulses
        self._clock = clock
        self._marks = count(1)
        # Of what is to be said next, in all its tries.
        self._mark = self._next_mark()
        # The reader's connection over which was written last.
        self._line = 0
        self._pause = _FIRST_PAUSE
        self._denied_seconds = denied_seconds

    def run(self) -> None:
        """Until the agent ends, whatever goes wrong: without this thread it would be mute."""
        while not self._view.ended:
            try:
                self._run()
            except Denied as error:
                self._view.turned_away(str(error))
                self._view.rest(self._denied_seconds)
            except Unreachable as error:
                logger.debug("could not write: %s", error)
                if self._pause >= _TELL_PAUSE:
                    self._view.unheard(str(error))
                self._view.rest(self._pause)
                self._pause = min(2 * self._pause, _LAST_PAUSE)
            except Exception:
                logger.exception("writing to the rendezvous log failed; it is opened anew")
                self._view.rest(_FAULT_PAUSE)

    def _run(self) -> None:
        view, pulses = self._view, self._pulses
        keys, where = None, view.address
        try:
            while not view.ended:
                with view.changed:
                    view.changed.wait_for(
                        self._has_work, max(pulses.next - self._clock(), 0.0) if view.line else 1.0
                    )
                if not view.line or (view.trouble and view.line == self._line):
                    view.rest(_POLL_SECONDS)
                    continue
                if keys is None or self._line != view.line:
                    with view.changed:
                        self._line, address = view.line, view.address
                        away, view.away = view.away, 0.0
                    if keys is None or address != where:
                        pulses.anew()
                    else:
                        keys.close()
                        pulses.back(away)
                    where, keys = address, None
                    keys = view.open(address)
                if not self._speak(keys, self._line):
                    self._wait(partial(self._is_elsewhere, self._line))
                    continue
                if pulses.next <= self._clock():
                    self._beat(keys, self._line)
                    self._pause = _FIRST_PAUSE
                    view.heard()
        finally:
            if keys is not None:
                keys.close()

    def _has_work(self) -> bool:
        view = self._view
        return view.ended or bool(view.outbox) or view.due is not None

    def _wait(self, until: Callable[[], bool]) -> None:
        view = self._view
        with view.changed:
            view.changed.wait_for(lambda: view.ended or until(), 1.0)

    def _is_elsewhere(self, line: int) -> bool:
        return self._view.line != line

    def _speak(self, keys: Keys, line: int) -> bool:
        """Write all there is to say; False where the log is elsewhere by now."""
        view = self._view
        while view.outbox and not view.ended:
            if not self._append(keys, line):
                return False
            if view.outbox[0] == Leave(view.me.id):
                keys.delete(log.beat(view.me.id))
            with view.changed:
                view.outbox.popleft()
                view.changed.notify_all()
            self._mark = self._next_mark()
        if (due := view.due) is not None:
            log.compact(keys, due)
            with view.changed:
                # Another may have come meanwhile.
                view.due = None if view.due is due else view.due
        return True

    def _append(self, keys: Keys, line: int) -> bool:
        view = self._view
        while not view.ended:
            with view.changed:
                if line != view.line or view.goes:
                    return False
                at = view.position
            if view.try_append(keys, view.outbox[0], self._mark) is not None:
                return True
            self._wait(partial(self._has_read, at, line))
        return False

    def _next_mark(self) -> str:
        return f"{self._view.me.id}:{next(self._marks)}"

    def _has_read(self, at: int, line: int) -> bool:
        return self._view.position > at or self._is_elsewhere(line)

    def _beat(self, keys: Keys, line: int) -> None:
        view, pulses, now = self._view, self._pulses, self._clock()
        keys.put(log.beat(view.me.id), pulses.beat(now))
        keys.keep()
        watched = pulses.watched(view.state)
        found = keys.get([log.beat(agent) for agent in watched])
        for agent in pulses.silent(dict(zip(watched, found, strict=True)), now):
            view.say([Gone(agent, by=view.me.node)])
            keys.delete(log.beat(agent))
        self._check(keys, line, log.snapshot(keys))

    def _check(self, keys: Keys, line: int, latest: Snapshot | None) -> None:
        """We were away for so long that the next entry may be deleted by now, or all of the log."""
        view = self._view
        with view.changed:
            if view.line != line or view.goes:
                return
            # The reader may have begun to wait for what was gone by then, whatever was adopted since.
            stuck = view.position if view.awaited is None else view.awaited
            ours = latest is not None and latest.service == view.service
            if latest is not None and ours:
                if latest.at <= stuck:
                    return
                if latest.at > view.position:
                    view.adopt(latest)
            else:
                view.stale = True
        # Wakes our own reader, which may wait for an entry that never comes.
        if keys.create(log.entry(stuck), b"{}") == b"{}":
            keys.delete(log.entry(stuck))

"""Staged mode over a connection: reserve, acquire, staged, release."""

import logging
import operator
from dataclasses import replace
from functools import partial
from threading import Lock

from evac._clock import monotonic
from evac._connection import Connection
from evac._memory import SlotMemory
from evac._settings import checked
from evac._slots import STALE, Reservation, Slots
from evac.errors import NotConnected
from evac.interval import Interval
from evac.wire import Acquire, Granted, HandBack, Message, Refuse, Release, Reserve, Staged

log = logging.getLogger("evac")


# What the wire takes: a job of such an interval, or one that is never reclaimed, is well told so.
_MOST_SECONDS = 1e9


def staged_message(slot: SlotMemory, step: int, interval: Interval | None) -> Staged:
    """What is said of a slot that holds all of *step*.

    Raises:
        ValueError: The wire does not take it.
    """
    request = Staged(slot=slot.number, step=operator.index(step))
    if interval is not None:
        costs = interval.costs
        request = replace(
            request,
            every_seconds=min(float(interval.every), _MOST_SECONDS),
            stall_seconds=min(float(costs.stall), _MOST_SECONDS),
            restart_seconds=min(float(costs.restart), _MOST_SECONDS),
            between_seconds=min(float(costs.between), _MOST_SECONDS),
            stall_share=float(interval.share),
        )
    checked(request)
    return request


def reserve_message(
    *,
    nbytes: int,
    body: str,
    layout: str,
    incarnation: int | None,
    slots: int,
    world: int,
    born: int,
) -> Reserve:
    """What is asked of the daemon; the incarnation of a rank that is alone is by default *born*.

    Raises:
        ValueError: The wire does not take it, or there are many ranks and *incarnation* is missing.
    """
    if incarnation is None:
        if world > 1:
            raise ValueError(
                f"incarnation: expected a number, for all {world} ranks must agree on it: "
                "let rank 0 choose it, by evac.commit.claim_incarnation for example, and tell "
                "the others"
            )
        incarnation = born
    request = Reserve(
        nbytes=operator.index(nbytes),
        slots=operator.index(slots),
        body=body,
        layout=layout,
        incarnation=operator.index(incarnation),
    )
    checked(request)
    return request


class Staging:
    """What the client's methods of the same names do; see there.

    Attributes:
        refusals: How often the daemon did not keep what was staged.
        last_refusal: Why the last `acquire` gave None, or the last stage was not kept.
    """

    def __init__(self, connection: Connection) -> None:
        self.refusals = 0
        self.last_refusal = ""
        self._connection = connection
        self._slots = Slots(connection.changed)
        self._acquiring = Lock()
        # Staged, and neither confirmed nor refused yet.
        self._unconfirmed = 0
        # Staged while there was no daemon; and what the next one is told to be still written.
        self._unsaid: dict[int, Staged] = {}
        self._handed_held: set[int] = set()
        connection.returning = self

    def handing(self) -> list[tuple[HandBack, int]]:
        """See `Returning`."""
        handing = self._slots.handing()
        self._handed_held = {one.slot for one, _ in handing if one.held}
        return handing

    def aboard(self, *, resumed: bool) -> None:
        """See `_connection.Slots`."""
        with self._connection.changed:
            unsaid, self._unsaid = self._unsaid, {}
        if not resumed:
            self._slots.forget_all(self._connection.count)
            for request in unsaid.values():
                self._not_kept(request.step, "evacd was restarted, and does not know its slot")
            return
        self._slots.go_on()
        for request in unsaid.values():
            # Of the others their headers have told.
            if request.slot in self._handed_held:
                self._say(request)
        self._begin_anew_if_short()

    @property
    def openings(self) -> int:
        """See `Client.openings`."""
        return self._slots.openings

    def stop(self) -> None:
        """No slot will come any more."""
        self._slots.stop()

    def reserve(self, request: Reserve, timeout: float) -> None:
        """Wait for the first slot, at most *timeout* seconds."""
        connection = self._connection
        arriving = Reservation(self._slots, connection.count, connection.missing)
        if not connection.post(request, arriving.hear):
            arriving.hear(None, None)
            raise connection.missing()
        with connection.changed:
            connection.changed.wait_for(lambda: arriving.count or arriving.failure, timeout)
        if arriving.count:
            return
        if arriving.failure is not None:
            raise arriving.failure
        raise NotConnected(connection.path, f"no slot within {timeout:g} s")

    def acquire(self, timeout: float) -> SlotMemory | None:
        """One thread at a time asks; the others wait for as long as they would for a slot."""
        until = monotonic() + timeout
        if not self._acquiring.acquire(timeout=max(0.0, timeout)):
            self.last_refusal = "another thread is waiting for a slot"
            return None
        try:
            return self._acquire(until)
        finally:
            self._acquiring.release()

    def staged(self, slot: SlotMemory, request: Staged) -> None:
        """On the wire when this returns; a refusal is told when it comes.

        While there is no daemon the slot keeps it, and the next one is told.
        """
        with self._connection.changed:
            # In one go: a daemon that comes back in between would be told that it is held, and
            # never that it was staged.
            current = slot.connection == self._connection.count
            if current and not self._say(request):
                self._unsaid[request.slot] = request
            # Not before it is on the wire: until then the daemon grants it again to whoever asks.
            self._slots.given_back(slot)
            self._begin_anew_if_short()
        if not current:
            self._not_kept(request.step, "its slot belongs to a connection that is gone")

    def _begin_anew_if_short(self) -> None:
        """In the lock: so few would be too few for as long as the job lives. What is held is written first."""
        if self._slots.short and not self._slots.held and self._connection.ready:
            self._connection.count += 1
            self._slots.forget_all(self._connection.count)

    def _say(self, request: Staged) -> bool:
        def hear(message: Message | None, _fd: int | None) -> None:
            self._count(-1)
            if isinstance(message, Refuse):
                self._not_kept(request.step, message.reason)
            elif message is None:
                # The daemon may well have it; only the receipt is lost.
                log.debug("step %d: lost the connection before evacd confirmed it", request.step)

        self._count(1)
        said = self._connection.post(request, hear)
        if not said:
            self._count(-1)
        return said

    def settle(self, timeout: float) -> None:
        """Wait at most *timeout* seconds for the daemon's word on all that was staged.

        A process that ends before it takes a slot along that the daemon is still reading.
        """
        with self._connection.changed:
            self._connection.changed.wait_for(lambda: not self._unconfirmed, timeout)

    def _count(self, change: int) -> None:
        with self._connection.changed:
            self._unconfirmed += change
            self._connection.changed.notify_all()

    def release(self, slot: SlotMemory) -> None:
        """A slot of an older connection is the daemon's already."""
        with self._connection.changed:
            if slot.connection == self._connection.count:
                self._connection.post(Release(slot=slot.number))
                self._slots.given_back(slot)
                self._begin_anew_if_short()

    def _acquire(self, until: float) -> SlotMemory | None:
        while True:
            count, asked, seen = self._connection.count, self._slots.returns, self._slots.news
            number = self._slots.spare()
            if number is None:
                number = self._ask(until, asked)
            if number is not None:
                left = until - monotonic()
                slot, self.last_refusal = self._slots.take(number, count, left, asked=asked)
                if self.last_refusal != STALE:
                    return slot
            elif not self._slots.arrives(seen, until - monotonic()) or monotonic() >= until:
                return None

    def _ask(self, until: float, asked: int) -> int | None:
        left = max(0.0, until - monotonic())
        try:
            late = partial(self._granted_late, asked)
            answer = self._connection.ask(Acquire(), left, late=late)
        except NotConnected as error:
            self.last_refusal = error.reason
            return None
        if not isinstance(answer, Granted):
            self.last_refusal = answer.reason if isinstance(answer, Refuse) else answer.type
            return None
        return answer.slot

    def _granted_late(self, asked: int, message: Message) -> None:
        if isinstance(message, Granted):
            self._slots.keep(message.slot, asked=asked)

    def _not_kept(self, step: int, reason: str) -> None:
        with self._connection.changed:
            self.refusals += 1
            self.last_refusal = reason
        log.warning("step %d was staged but is not kept: %s", step, reason)

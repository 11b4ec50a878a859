"""The slots of a connection: which are mapped, and since when."""

import fcntl
import logging
import os
from collections.abc import Callable
from threading import Condition

from evac import _fork
from evac._arrivals import Arrivals
from evac._memory import SlotMemory, map_slot
from evac._worker import Worker
from evac.errors import EvacError, NotConnected, Refused, SegmentError
from evac.wire import HandBack, Message, Refuse, Slot

log = logging.getLogger("evac")

# The daemon grants a slot that is being written to whoever asks, and its holder may give it back
# before that grant is heard of: then it is of no worth, and has to be asked for again.
STALE = "granted before it was staged"

# What the daemon still grants of a reservation that was given up is mapped by nobody any more.
ANEW = "evacd was restarted before all slots had come: reserve again"


class Slots:
    """Maps what a reservation brings, and finds a slot by its number.

    Everything is guarded by the condition that it is given.

    Attributes:
        held: What is being written, by number.
        openings: See `Client.openings`.
        short: The connection was lost before all slots of the reservation had come.
    """

    def __init__(self, changed: Condition) -> None:
        self.changed = changed
        self.arrivals = Arrivals()
        self.short = False
        self.openings = 0
        self._worker = Worker("evac-memory")
        self._ready: dict[int, SlotMemory] = {}
        # Of all slots of the reservation, to be handed back to a daemon that was restarted.
        self._fds: dict[int, int] = {}
        self._lacking = False
        self._current: Reservation | None = None
        # The daemon grants the same slot until it hears of it again; two threads must not
        # write there at once.
        self.held: set[int] = set()
        # Granted after whoever asked had gone on without: the next one's.
        self._spare: set[int] = set()
        # How often a slot was given back, and at which count each slot was last.
        self.returns = 0
        self._returned: dict[int, int] = {}
        self._connection = 0
        _fork.watch(self)

    def take(
        self, number: int, connection: int, timeout: float, *, asked: int
    ) -> tuple[SlotMemory | None, str]:
        """The slot that was granted, for one holder; or why not, after *timeout* seconds.

        Args:
            asked: `returns` when it was asked for.
        """
        with self.changed:
            self._spare.discard(number)
            if self._returned.get(number, 0) > asked:
                return None, STALE
            if number in self.held:
                return None, f"slot {number} is being written by another thread"
            self.changed.wait_for(
                lambda: (
                    number in self._ready or self._connection != connection or self._current is None
                ),
                max(0.0, timeout),
            )
            slot = self._ready.get(number)
            if self._connection != connection:
                return None, "the connection was lost"
            if self._current is None:
                return None, ANEW
            if slot is None:
                self._spare.add(number)
                return None, f"slot {number} is still being mapped"
            self.held.add(number)
            return slot, ""

    def keep(self, number: int, *, asked: int) -> None:
        """A grant that nobody waits for any more."""
        with self.changed:
            if number not in self.held and self._returned.get(number, 0) <= asked:
                self._spare.add(number)
                self.openings += 1

    @property
    def news(self) -> int:
        """See `Arrivals`."""
        return self.arrivals.news

    def arrives(self, seen: int, timeout: float) -> bool:
        """Wait at most *timeout* seconds for news of a slot that is on its way; whether there are.

        Args:
            seen: See `Arrivals.awaited`.
        """
        with self.changed:
            self.changed.wait_for(lambda: not self.arrivals.awaited(seen), max(0.0, timeout))
            return self.arrivals.news != seen

    def spare(self) -> int | None:
        """A slot that was granted and not used."""
        with self.changed:
            return next(iter(self._spare), None)

    def given_back(self, slot: SlotMemory) -> None:
        """Its holder is done with it."""
        with self.changed:
            if slot.connection == self._connection:
                self.held.discard(slot.number)
                self.returns += 1
                self._returned[slot.number] = self.returns

    def forget_all(self, connection: int) -> None:
        """A new connection: nothing of before will ever be granted again."""
        with self.changed:
            self._connection = connection
            self._clear()

    def handing(self) -> list[tuple[HandBack, int]]:
        """What to say of each slot of the reservation to a new daemon, and its fd."""
        with self.changed:
            last = max(self._fds, default=None)
            if self._lacking:
                return []
            return [
                (HandBack(slot=number, held=number in self.held, last=number == last), fd)
                for number, fd in sorted(self._fds.items())
            ]

    def go_on(self) -> None:
        """A new connection, and all slots are what they were; none is granted that is not held."""
        with self.changed:
            self._spare.clear()

    def forget(self) -> None:
        """In a forked child: keep no memory that is the parent's."""
        fds, self._fds = self._fds, {}
        for fd in fds.values():
            os.close(fd)

    def _clear(self) -> None:
        self.forget()
        self._lacking = self.short = False
        self._ready.clear()
        self.held.clear()
        self._spare.clear()
        self._current = None

    def stop(self) -> None:
        """Let the thread end once it is done with what it has."""
        self._worker.stop()
        with self.changed:
            self.forget()

    def arrived(self, reservation: "Reservation", slot: Slot, fd: int) -> None:
        """Map a slot, in the socket thread; it is filled in and announced by another."""
        memory = SlotMemory(slot.slot, reservation.connection, map_slot(fd, slot.nbytes))
        with self.changed:
            # The first of a new reservation: none of the old one is granted after it.
            if self._current is not reservation:
                self._clear()
                self._current = reservation
            try:
                self._fds[slot.slot] = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 0)
            except OSError as error:
                # This process may open no more files: a restart of the daemon begins anew.
                log.debug("slot %d cannot be handed back: %s", slot.slot, error.strerror)
                self._lacking = True
        self._worker.do(lambda: self._fill(reservation, memory))

    def came(self, reservation: int, *, last: bool) -> None:
        """The daemon may grant another slot from now on."""
        with self.changed:
            self.arrivals.came(reservation, last=last)
            self.changed.notify_all()

    def cut(self, reservation: "Reservation") -> None:
        """The connection was lost, and with it what was still to come."""
        with self.changed:
            self.short |= self._current is reservation

    def _fill(self, reservation: "Reservation", memory: SlotMemory) -> None:
        memory.populate()
        with self.changed:
            if self._current is reservation:
                self._ready[memory.number] = memory
                reservation.count += 1
                self.openings += 1
                self.changed.notify_all()


class Reservation:
    """The answers to one `reserve`, as they come; made just before it is sent.

    Attributes:
        count: Slots that can be written to.
        failure: Why no more will come.
    """

    def __init__(self, slots: Slots, connection: int, missing: Callable[[], NotConnected]) -> None:
        self.connection = connection
        self.count = 0
        self.failure: EvacError | None = None
        self._slots = slots
        self._missing = missing
        with slots.changed:
            self._number = slots.arrivals.asked()

    def hear(self, message: Message | None, fd: int | None) -> None:
        """Take one answer, in the socket thread."""
        match message:
            case Slot() if fd is not None:
                # In one go: whoever reserved asks for it at once, and once.
                with self._slots.changed:
                    try:
                        self._slots.arrived(self, message, fd)
                    except SegmentError as error:
                        log.warning("slot %d cannot be used: %s", message.slot, error.reason)
                        self._fail(error)
                    self._slots.came(self._number, last=message.last)
            case Refuse():
                if self.count:
                    log.info("evacd gives no more than %d slots: %s", self.count, message.reason)
                self._end(Refused(message.reason))
            case None:
                self._slots.cut(self)
                self._end(self._missing())
            case _:
                self._end(Refused(f"evacd answered reserve with {message.type!r}"))

    def _end(self, why: EvacError) -> None:
        with self._slots.changed:
            self._slots.arrivals.ended(self._number)
            self._fail(why)

    def _fail(self, failure: EvacError) -> None:
        with self._slots.changed:
            self.failure = self.failure or failure
            self._slots.changed.notify_all()

"""The slots of the asyncio client: mapped, granted, held, staged, handed back. For the loop's thread."""

import asyncio
import fcntl
import logging
import os
from collections.abc import Callable, Sequence
from functools import partial

from evac import _fork
from evac._aio_line import Lines
from evac._arrivals import Arrivals
from evac._clock import monotonic
from evac._memory import SlotMemory, map_slot
from evac._slots import ANEW
from evac.errors import EvacError, NotConnected, Refused, SegmentError
from evac.wire import Acquire, Granted, HandBack, Message, Refuse, Slot, Staged

log = logging.getLogger("evac")


class Slots:
    """Maps what a reservation brings, and finds a slot by its number.

    Args:
        not_kept: Told the step and the reason where the daemon does not keep what was staged.

    Attributes:
        arrivals: What is still to come.
        lines: Set by whoever makes both.
        epoch: Counts registrations that began anew, or brought back too few.
        unconfirmed: Staged, and neither confirmed nor refused yet.
    """

    lines: Lines

    def __init__(self, not_kept: Callable[[int, str], object]) -> None:
        self.arrivals = Arrivals()
        self.epoch = 0
        self.unconfirmed: set[asyncio.Future[Message | None]] = set()
        self._not_kept = not_kept
        self._boardings = 0
        # Of all slots of the reservation, to be handed back to a daemon that was restarted.
        self._fds: dict[int, int] = {}
        self._lacking = False
        # The connection was lost before all slots of the reservation had come.
        self._short = False
        # Staged while there was no daemon; and what the next one is told to be still written.
        self._unsaid: dict[int, Staged] = {}
        self._handed_held: set[int] = set()
        self._ready: dict[int, SlotMemory] = {}
        self._held: set[int] = set()
        # Granted after whoever asked had gone on without: the next one's.
        self._spare: set[int] = set()
        # How often a slot was given back, and at which count each slot was last.
        self._returns = 0
        self._returned: dict[int, int] = {}
        self._current: Reservation | None = None
        self._acquiring = asyncio.Lock()
        self._filling: set[asyncio.Future[None]] = set()
        _fork.watch(self)

    def reservation(self) -> "Reservation":
        """What takes the answers to one `reserve`."""
        return Reservation(self, self.lines)

    def is_current(self, slot: SlotMemory) -> bool:
        """Whether the daemon of now has granted it."""
        return slot.connection == self.epoch

    def given_back(self, slot: SlotMemory) -> None:
        """Its holder is done with it."""
        if self.is_current(slot):
            self._held.discard(slot.number)
            self._returns += 1
            self._returned[slot.number] = self._returns
            self._begin_anew_if_short()

    def staged(self, slot: SlotMemory, request: Staged) -> "asyncio.Future[Message | None] | None":
        """On the wire when this returns, and what will be the daemon's word on it.

        None while there is no daemon: the slot keeps it, and the next one is told.
        """
        word = self._say(request)
        if word is None:
            self._unsaid[request.slot] = request
        self.given_back(slot)
        return word

    def release(self, slot: SlotMemory) -> None:
        """A slot of an older connection is the daemon's already."""
        if self.is_current(slot) and slot.number in self._held:
            self.lines.release(slot.number)
            self.given_back(slot)

    def handing(self) -> Sequence[tuple[HandBack, int]]:
        """See `Returning`."""
        if self._lacking:
            return []
        last = max(self._fds, default=None)
        self._handed_held = self._held & self._fds.keys()
        return [
            (HandBack(slot=number, held=number in self._held, last=number == last), fd)
            for number, fd in sorted(self._fds.items())
        ]

    def aboard(self, *, resumed: bool) -> None:
        """See `_aio_line.Slots`."""
        self._boardings += 1
        unsaid, self._unsaid = self._unsaid, {}
        if not resumed:
            self.epoch += 1
            self._clear()
            for request in unsaid.values():
                self._not_kept(request.step, "evacd was restarted, and does not know its slot")
            return
        # None is granted that is not held.
        self._spare.clear()
        for request in unsaid.values():
            # Of the others their headers have told.
            if request.slot in self._handed_held:
                self._say(request)
        self._begin_anew_if_short()

    def forget(self) -> None:
        """In a forked child: keep no memory that is the parent's."""
        fds, self._fds = self._fds, {}
        for fd in fds.values():
            os.close(fd)

    async def acquire(self, within: float) -> tuple[SlotMemory | None, str]:
        """A granted slot for one holder; or why there is none, after *within* seconds."""
        until = monotonic() + within
        try:
            async with asyncio.timeout(max(0.0, within)):
                await self._acquiring.acquire()
        except TimeoutError:
            return None, "another task is waiting for a slot"
        try:
            return await self._acquire(until)
        except NotConnected as error:
            return None, error.reason
        finally:
            self._acquiring.release()

    def arrived(self, reservation: "Reservation", message: Slot, fd: int) -> None:
        """Map a slot; its page tables are filled in a thread."""
        memory = SlotMemory(message.slot, self.epoch, map_slot(fd, message.nbytes))
        # The first of a new reservation: none of the old one is granted after it.
        if self._current is not reservation:
            self._clear()
            self._current = reservation
        try:
            self._fds[message.slot] = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 0)
        except OSError as error:
            # This process may open no more files: a restart of the daemon begins anew.
            log.debug("slot %d cannot be handed back: %s", message.slot, error.strerror)
            self._lacking = True
        filling = asyncio.get_running_loop().run_in_executor(None, memory.populate)
        self._filling.add(filling)
        filling.add_done_callback(lambda done: self._filled(reservation, memory, done))

    def cut(self, reservation: "Reservation") -> None:
        """The connection was lost, and with it what was still to come."""
        self._short |= self._current is reservation

    def _begin_anew_if_short(self) -> None:
        """So few would be too few for as long as the job lives. What is held is written first."""
        if self._short and not self._held and self.lines.ready:
            self.epoch += 1
            self._clear()

    def _filled(
        self, reservation: "Reservation", memory: SlotMemory, done: "asyncio.Future[None]"
    ) -> None:
        self._filling.discard(done)
        if self._current is reservation and not done.cancelled():
            self._ready[memory.number] = memory
            reservation.count += 1
            reservation.lines.notify()

    def _say(self, request: Staged) -> "asyncio.Future[Message | None] | None":
        word: asyncio.Future[Message | None] = asyncio.get_running_loop().create_future()

        def hear(message: Message | None, _fd: int | None) -> None:
            if isinstance(message, Refuse):
                self._not_kept(request.step, message.reason)
            if not word.done():
                word.set_result(message)

        if not self.lines.post(request, hear):
            return None
        self.unconfirmed.add(word)
        word.add_done_callback(self.unconfirmed.discard)
        return word

    async def _acquire(self, until: float) -> tuple[SlotMemory | None, str]:
        boardings, number = self._boardings, next(iter(self._spare), None)
        while number is None:
            boardings, asked, seen = self._boardings, self._returns, self.arrivals.news
            late = partial(self._granted_late, asked)
            answer = await self.lines.ask(Acquire(), until - monotonic(), late=late)
            if isinstance(answer, Granted):
                # See `evac._slots.STALE`.
                number = answer.slot if self._returned.get(answer.slot, 0) <= asked else None
            elif not await self._arrives(seen, until):
                return None, answer.reason if isinstance(answer, Refuse) else answer.type
        self._spare.discard(number)
        if number in self._held:
            return None, f"slot {number} is being written by another task"
        try:
            await self.lines.wait(
                lambda: (
                    number in self._ready or self._boardings != boardings or self._current is None
                ),
                until - monotonic(),
            )
        except asyncio.CancelledError:
            self._spare.add(number)
            raise
        if self._boardings != boardings or not self.lines.ready:
            return None, "the connection was lost"
        if self._current is None:
            return None, ANEW
        slot = self._ready.get(number)
        if slot is None:
            self._spare.add(number)
            return None, f"slot {number} is still being mapped"
        self._held.add(number)
        return slot, ""

    async def _arrives(self, seen: int, until: float) -> bool:
        """Wait for news of a slot that is on its way; whether there are, and time to ask again."""
        await self.lines.wait(lambda: not self.arrivals.awaited(seen), until - monotonic())
        if self.lines.closing:
            raise self.lines.missing()
        return self.arrivals.news != seen and monotonic() < until

    def _granted_late(self, asked: int, message: Message) -> None:
        if (
            isinstance(message, Granted)
            and message.slot not in self._held
            and self._returned.get(message.slot, 0) <= asked
        ):
            self._spare.add(message.slot)

    def _clear(self) -> None:
        self.forget()
        self._lacking = self._short = False
        self._ready.clear()
        self._held.clear()
        self._spare.clear()
        self._current = None


class Reservation:
    """The answers to one `reserve`, as they come; made just before it is sent.

    Attributes:
        count: Slots that can be written to.
        failure: Why no more will come.
    """

    def __init__(self, slots: Slots, lines: Lines) -> None:
        self.count = 0
        self.failure: EvacError | None = None
        self.lines = lines
        self._slots = slots
        self._number = slots.arrivals.asked()

    def hear(self, message: Message | None, fd: int | None) -> None:
        """Take one answer."""
        match message:
            case Slot() if fd is not None:
                try:
                    self._slots.arrived(self, message, fd)
                except SegmentError as error:
                    log.warning("slot %d cannot be used: %s", message.slot, error.reason)
                    self.failure = self.failure or error
                self._slots.arrivals.came(self._number, last=message.last)
            case Refuse():
                if self.count:
                    log.info("evacd gives no more than %d slots: %s", self.count, message.reason)
                self._end(Refused(message.reason))
            case None:
                self._slots.cut(self)
                self._end(self.lines.missing())
            case _:
                self._end(Refused(f"evacd answered with {message.type!r}"))
        self.lines.notify()

    def _end(self, why: EvacError) -> None:
        self.failure = self.failure or why
        self._slots.arrivals.ended(self._number)

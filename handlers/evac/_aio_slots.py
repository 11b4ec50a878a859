"""The slots of the asyncio client: which are mapped, granted and held. For the loop's thread."""

import asyncio
import logging

from evac._aio_line import Lines
from evac._clock import monotonic
from evac._memory import SlotMemory, map_slot
from evac.errors import EvacError, NotConnected, Refused, SegmentError
from evac.wire import Acquire, Granted, Message, Refuse, Release, Slot

log = logging.getLogger("evac")


class Slots:
    """Maps what a reservation brings, and finds a slot by its number.

    Attributes:
        epoch: Counts registrations that began anew.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self._ready: dict[int, SlotMemory] = {}
        self._held: set[int] = set()
        # Granted after whoever asked had gone on without: the next one's.
        self._spare: set[int] = set()
        self._current: Reservation | None = None
        self._acquiring = asyncio.Lock()
        self._filling: set[asyncio.Future[None]] = set()

    def reservation(self, lines: Lines) -> "Reservation":
        """What takes the answers to one `reserve`."""
        return Reservation(self, lines)

    def is_current(self, slot: SlotMemory) -> bool:
        """Whether the daemon of now has granted it."""
        return slot.connection == self.epoch

    def given_back(self, slot: SlotMemory) -> None:
        """Its holder is done with it."""
        if self.is_current(slot):
            self._held.discard(slot.number)

    def release(self, slot: SlotMemory, lines: Lines) -> None:
        """A slot of an older connection is the daemon's already."""
        if self.is_current(slot) and slot.number in self._held:
            lines.post(Release(slot=slot.number))
            self._held.discard(slot.number)

    def forget_all(self) -> None:
        """A new connection: nothing of before will ever be granted again."""
        self.epoch += 1
        self._clear()

    async def acquire(self, lines: Lines, within: float) -> tuple[SlotMemory | None, str]:
        """A granted slot for one holder; or why there is none, after *within* seconds."""
        until = monotonic() + within
        try:
            async with asyncio.timeout(max(0.0, within)):
                await self._acquiring.acquire()
        except TimeoutError:
            return None, "another task is waiting for a slot"
        try:
            return await self._acquire(lines, until)
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
        filling = asyncio.get_running_loop().run_in_executor(None, memory.populate)
        self._filling.add(filling)
        filling.add_done_callback(lambda done: self._filled(reservation, memory, done))

    def _filled(
        self, reservation: "Reservation", memory: SlotMemory, done: "asyncio.Future[None]"
    ) -> None:
        self._filling.discard(done)
        if self._current is reservation and not done.cancelled():
            self._ready[memory.number] = memory
            reservation.count += 1
            reservation.lines.notify()

    async def _acquire(self, lines: Lines, until: float) -> tuple[SlotMemory | None, str]:
        epoch, number = self.epoch, next(iter(self._spare), None)
        if number is None:
            answer = await lines.ask(Acquire(), until - monotonic(), late=self._granted_late)
            if not isinstance(answer, Granted):
                return None, answer.reason if isinstance(answer, Refuse) else answer.type
            number = answer.slot
        self._spare.discard(number)
        if number in self._held:
            return None, f"slot {number} is being written by another task"
        try:
            await lines.wait(
                lambda: number in self._ready or self.epoch != epoch, until - monotonic()
            )
        except asyncio.CancelledError:
            self._spare.add(number)
            raise
        if self.epoch != epoch:
            return None, "the connection was lost"
        slot = self._ready.get(number)
        if slot is None:
            self._spare.add(number)
            return None, f"slot {number} is still being mapped"
        self._held.add(number)
        return slot, ""

    def _granted_late(self, message: Message) -> None:
        if isinstance(message, Granted) and message.slot not in self._held:
            self._spare.add(message.slot)

    def _clear(self) -> None:
        self._ready.clear()
        self._held.clear()
        self._spare.clear()
        self._current = None


class Reservation:
    """The answers to one `reserve`, as they come.

    Attributes:
        count: Slots that can be written to.
        failure: Why no more will come.
    """

    def __init__(self, slots: Slots, lines: Lines) -> None:
        self.count = 0
        self.failure: EvacError | None = None
        self.lines = lines
        self._slots = slots

    def hear(self, message: Message | None, fd: int | None) -> None:
        """Take one answer."""
        match message:
            case Slot() if fd is not None:
                try:
                    self._slots.arrived(self, message, fd)
                except SegmentError as error:
                    log.warning("slot %d cannot be used: %s", message.slot, error.reason)
                    self.failure = self.failure or error
            case Refuse():
                if self.count:
                    log.info("evacd gives no more than %d slots: %s", self.count, message.reason)
                self.failure = self.failure or Refused(message.reason)
            case None:
                self.failure = self.failure or self.lines.missing()
            case _:
                self.failure = self.failure or Refused(f"evacd answered with {message.type!r}")
        self.lines.notify()

"""What workloads do with memory: reserve, acquire, staged, release; and the flush's hold."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import structlog

from evac.errors import SegmentError
from evac.generation import Generation
from evac.interval import Costs, Interval
from evac.manifest import COPY
from evac.segment import PAGE
from evac.store import Owner
from evac.wire import Accepted, Granted, Release, Reserve, Staged
from evac.wire import Slot as SlotMessage
from evacd.workloads import spilling
from evacd.workloads.guard import start
from evacd.workloads.happenings import Happening, StagedOne
from evacd.workloads.inspection import MAX_ITEMS, Inspection, inspect
from evacd.workloads.job import Slot, SlotState, Workload
from evacd.workloads.keeping import Keeper
from evacd.workloads.part import Part
from evacd.workloads.policy import Refusal
from evacd.workloads.regions import Regions
from evacd.workloads.roster import MOST_NUMBERS, Roster
from evacd.workloads.session import Session

log = structlog.get_logger()

# Some hundreds of bytes each: four ranks may have the most that one may.
_MAX_ITEMS_OF_USER = 4 * MAX_ITEMS


class Staging:
    """The roster's decisions about slots, carried out.

    Args:
        limit: The most slots that one workload gets.
        spill: Folder on a local disk for what was staged by who has one slot; None for nowhere.
    """

    def __init__(
        self,
        roster: Roster,
        *,
        limit: int,
        happened: Callable[[Happening], None],
        keeper: Keeper,
        spill: Path | None = None,
    ) -> None:
        self.regions = Regions()
        self.readers = ThreadPoolExecutor(2, "evacd-inspect")
        self._keeper = keeper
        self._spill_to = spill
        self._roster = roster
        self._limit = limit
        self._happened = happened
        self._found: dict[int, Inspection] = {}
        self._known: dict[int, Inspection] = {}
        self._inspecting: dict[Slot, asyncio.Event] = {}
        self._inspections: Counter[Slot] = Counter()

    def reserve(
        self,
        session: Session,
        workload: Workload,
        message: Reserve,
        re: int | None,
        tasks: asyncio.TaskGroup,
    ) -> None:
        """Answers by one `Slot` each, as soon as its memory is there, or by `Refuse`.

        A `Refuse` after the first `Slot` means that no further one follows.
        """
        slots = self._roster.reserve(workload, message, limit=self._limit)
        self.collect()
        if isinstance(slots, Refusal):
            session.deny("reserve", slots.reason, re)
            return
        self.note_job(workload.unit)
        start(tasks, self._fill(session, slots, re), session)

    def acquire(self, session: Session, workload: Workload, re: int | None) -> None:
        """Answers at once, by `Granted` or `Refuse`."""
        slot = self._roster.acquire(workload)
        if isinstance(slot, Refusal):
            session.refuse(slot.reason, re)
            return
        self.written_anew(slot)
        # Before it is granted: the next daemon must not take for whole what is being written.
        self.note(slot)
        session.reply(Granted(slot.number), re)

    def written_anew(self, slot: Slot) -> None:
        """What it held is not to be believed any more."""
        self.regions.forget_sums(slot)
        self._found.pop(slot.key, None)

    def staged(
        self,
        session: Session,
        workload: Workload,
        message: Staged,
        re: int | None,
        tasks: asyncio.TaskGroup,
    ) -> None:
        """Answers by `Accepted` or `Refuse` when the slot was read; meanwhile it is deaf."""
        if message.every_seconds and message.between_seconds:
            seconds = (message.stall_seconds, message.restart_seconds, message.between_seconds)
            share = message.stall_share or 1.0
            workload.interval = Interval(Costs(*seconds), message.every_seconds, share)
        slot = self._roster.staging(workload, message.slot, message.step)
        if isinstance(slot, Refusal):
            session.refuse(slot.reason, re)
            return
        if slot.state is SlotState.COMPLETE:
            # Its header told of it before its owner could.
            session.reply(Accepted(), re)
            return
        session.link.pause()
        self.begin_reading(slot)
        generation = Generation(slot.shape.incarnation, message.step)
        start(tasks, self._inspect(session, slot, generation, re, tasks), session)

    def release(self, workload: Workload, message: Release) -> None:
        """No answer, whatever the slot."""
        self._roster.release(workload, message.slot)
        slot = workload.slots.get(message.slot)
        if slot is not None and slot.state is SlotState.FREE:
            self.note(slot)

    def found(self, slot: Slot) -> Inspection:
        """What was found in a complete slot.

        Raises:
            KeyError: It is none.
        """
        return self._found[slot.key]

    def note(self, slot: Slot) -> None:
        """Write down for the next daemon what a slot is now, where it has its memory."""
        if slot.spilled:
            return  # its file has no name, and ends with this daemon
        with contextlib.suppress(KeyError):
            self._keeper.note(slot, self.regions.region(slot))

    def note_all(self, workload: Workload) -> None:
        """The same for all slots of one that came or went."""
        for slot in workload.slots.values():
            self.note(slot)

    def inspection(self, workload: Workload) -> asyncio.Event | None:
        """Set as soon as a slot of *workload* that is being read has been; None where none is."""
        return next((end for slot, end in self._inspecting.items() if slot.owner is workload), None)

    def begin_reading(self, slot: Slot) -> None:
        """It is looked at from now on: its owner's death waits, and its memory stays."""
        self._roster.ledger.pin([slot])
        self._inspecting.setdefault(slot, asyncio.Event())
        self._inspections[slot] += 1

    def end_reading(self, slot: Slot) -> None:
        """The counterpart of `begin_reading`."""
        self._roster.unhold([slot])
        self.collect()
        self._inspections[slot] -= 1
        if not self._inspections[slot]:
            # By two at a time where it is handed back while what was said before is still read.
            del self._inspections[slot]
            self._inspecting.pop(slot).set()

    def forget(self, workload: Workload) -> None:
        """The workload will stage nothing more."""
        self._known.pop(workload.id, None)

    def note_job(self, unit: str) -> None:
        """The same for what is known of a job."""
        if unit in self._roster.jobs:
            self._keeper.note_job(self._roster.jobs[unit])

    def collect(self) -> None:
        """Give back what the roster has freed since."""
        dropped = self._roster.ledger.dropped()
        for slot in dropped:
            self._keeper.forget(slot)
        if dropped:
            self._keeper.forget_jobs(self._roster.jobs)
        freed = self._roster.ledger.freed()
        for slot in freed:
            self._found.pop(slot.key, None)
        self.regions.give_back(freed)

    @contextlib.contextmanager
    def hold(self, unit: str, generation: Generation) -> Generator[tuple[Part, ...], None, None]:
        """See `Board.hold`."""
        slots = self._roster.hold(unit, generation)
        parts: tuple[Part, ...] = ()
        try:
            parts = tuple(self._part(unit, slot, generation) for slot in slots)
            yield parts
        finally:
            for part in parts:
                # Whoever still reads it keeps the mapping alive, and is told in the log.
                with contextlib.suppress(BufferError):
                    part.data.release()
            self._roster.unhold(slots)
            self.collect()

    def close(self) -> None:
        """Give everything back."""
        self.readers.shutdown(wait=True, cancel_futures=True)
        self.regions.close()

    async def _fill(self, session: Session, slots: tuple[Slot, ...], re: int | None) -> None:
        for slot in slots:
            if not session.link.hears:
                self._abandon(slots)
            if slot.condemned:
                session.refuse("replaced by a later reserve", re)
                return
            self._roster.ledger.pin([slot])
            try:
                await self.regions.make(slot)
            except OSError as error:
                log.warning("memory.failed", nbytes=slot.nbytes, error=error.strerror)
                self._abandon(slots)
                session.refuse(f"the system gives no memory: {error.strerror}", re)
                return
            finally:
                self._roster.unhold([slot])
                self.collect()
            if slot.condemned:
                session.refuse("replaced by a later reserve", re)
                return
            self._roster.filled(slot)
            self.note(slot)
            message = SlotMessage(slot.number, slot.nbytes, last=slot is slots[-1])
            session.reply(message, re, self.regions.region(slot).fd)

    def _abandon(self, slots: tuple[Slot, ...]) -> None:
        self._roster.abandon(slots)
        self.collect()

    async def _inspect(
        self,
        session: Session,
        slot: Slot,
        generation: Generation,
        re: int | None,
        tasks: asyncio.TaskGroup,
    ) -> None:
        workload, loop = slot.owner, asyncio.get_running_loop()
        fd = self.regions.region(slot).fd
        known = self._known.get(workload.id)
        try:
            found = await loop.run_in_executor(
                self.readers, inspect, fd, slot.nbytes, generation, known
            )
            self._check_heap(workload, found)
        except (SegmentError, OSError, MemoryError) as error:
            session.deny("staged", f"slot {slot.number}: {error}", re)
        else:
            # Its owner may have left, or registered anew, while its slot was read.
            if slot.condemned:
                session.refuse(f"slot {slot.number} was given up", re)
            else:
                self.take(slot, generation, found)
                session.reply(Accepted(), re)
                self._happened(StagedOne(workload.unit, workload.rank, generation))
        finally:
            self.end_reading(slot)
            self._begin_spill(slot, tasks)
            session.link.resume()

    def _begin_spill(self, slot: Slot, tasks: asyncio.TaskGroup) -> None:
        if self._spill_to is None:
            return
        if (copy := spilling.begin(self._roster.ledger, slot, most=MOST_NUMBERS)) is not None:
            start(tasks, self._spill(slot, copy, self._spill_to))

    async def _spill(self, slot: Slot, copy: Slot, folder: Path) -> None:
        """Free a workload's only slot for its next generation; see `evacd.workloads.spill`."""
        found, generation, whole = self._found[slot.key], slot.generation, False
        try:
            whole = await self.regions.spill(slot, copy, folder)
        except OSError as error:
            log.warning(
                "memory.unspilled", unit=slot.owner.unit, rank=slot.owner.rank,
                nbytes=slot.nbytes, folder=str(folder), error=error.strerror,
            )  # fmt: skip
        finally:
            if whole:
                # Before a flush may take it: the sums belong to a complete slot.
                self._found[copy.key] = found
                self.regions.sum(copy, [one.nbytes for one in found.files] or [found.body_nbytes])
            copied = generation if whole else None
            if spilling.settle(self._roster.ledger, slot, copy, copied):
                self.written_anew(slot)
                self.note(slot)
            self._roster.unhold([slot, copy])
            self.collect()

    def _check_heap(self, workload: Workload, found: Inspection) -> None:
        """No budget counts what descriptors take of the daemon's own memory, so this does.

        Raises:
            SegmentError: It is too much.
        """
        slots, uid = self._roster.ledger.slots, workload.process.uid
        known = {
            id(one): len(one.items)
            for key, one in self._found.items()
            if key in slots and slots[key].owner.process.uid == uid
        }
        items = sum((known | {id(found): len(found.items)}).values())
        if items > _MAX_ITEMS_OF_USER:
            raise SegmentError(f"its user's descriptors have more than {_MAX_ITEMS_OF_USER} items")

    def take(
        self, slot: Slot, generation: Generation, found: Inspection, *, supersedes: bool = True
    ) -> None:
        """The slot holds a whole generation, and is the daemon's; see `Roster.staged`."""
        self._roster.staged(
            slot,
            generation,
            body_nbytes=found.body_nbytes,
            weights_nbytes=found.weights_nbytes,
            copied_nbytes=sum(file.nbytes for file in found.files if file.kind == COPY),
            supersedes=supersedes,
        )
        self._known[slot.owner.id] = self._found[slot.key] = found
        self.regions.sum(slot, [one.nbytes for one in found.files] or [found.body_nbytes])
        self.note(slot)

    def _part(self, unit: str, slot: Slot, generation: Generation) -> Part:
        owner, shape, found = slot.owner, slot.shape, self._found[slot.key]
        region, sums = self.regions.region(slot), self.regions.sums(slot)
        if sums is None:
            raise ValueError("a complete slot has its checksums begun")
        return Part(
            unit=unit,
            job=owner.job,
            run=shape.run,
            generation=generation,
            rank=owner.rank,
            world=shape.world,
            prefix=unit,
            owner=Owner(uid=owner.process.uid, gid=owner.process.gid),
            body=shape.body,
            layout=shape.layout,
            parts=found.files,
            data=region.view(PAGE, slot.body_nbytes),
            items=found.items,
            metadata=found.metadata,
            weights_metadata=found.weights_metadata,
            sums=sums,
        )

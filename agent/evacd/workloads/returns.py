"""Memory that comes back: from the fd store at the start, or from the hand of its own process."""

import asyncio
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass

import structlog

from evac.errors import SegmentError
from evac.generation import Generation
from evac.segment import HEADER_BYTES, Header
from evac.segment import SlotState as HeaderState
from evac.wire import Accepted, HandBack
from evacd.allowance import Complaints
from evacd.clock import Clock
from evacd.workloads import returning
from evacd.workloads.guard import start
from evacd.workloads.happenings import Happening, StagedOne
from evacd.workloads.inspection import Inspection, inspect
from evacd.workloads.job import Process, Slot, SlotState, Workload
from evacd.workloads.keeping import Keeper
from evacd.workloads.memory import Foreign, again, same_memory
from evacd.workloads.peer import find_again, lives
from evacd.workloads.policy import Refusal
from evacd.workloads.record import SlotRecord
from evacd.workloads.roster import Roster
from evacd.workloads.session import Session
from evacd.workloads.staging import Staging

log = structlog.get_logger()

# How often the owners of memory that is still missing are looked for.
_LOOK_SECONDS = 10.0


@dataclass(frozen=True)
class Back:
    """Who was on board when the last daemon ended.

    Attributes:
        pidfd: The owner's from now on; None where the process has ended.
    """

    workload: Workload
    pidfd: int | None


class Returns:
    """Puts what comes back in its place.

    Args:
        keeper: Knows what there was.
        seconds: How long memory is waited for whose process cannot be seen from here.
        stores: Of this daemon; the last one may have had others.
    """

    def __init__(
        self,
        roster: Roster,
        staging: Staging,
        keeper: Keeper,
        *,
        clock: Clock,
        seconds: float,
        stores: Collection[str],
        happened: Callable[[Happening], None],
    ) -> None:
        self._roster = roster
        self._staging = staging
        self._keeper = keeper
        self._clock = clock
        self._seconds = seconds
        self._stores = stores
        self._happened = happened
        self._lines = Complaints(burst=16, every=60.0)
        self._looked = self._began = clock.monotonic()

    async def from_before(self) -> list[Back]:
        """All that a daemon before this one kept, in its place; who held it, for the desk."""
        now = self._clock.monotonic()
        self._looked = self._began = now
        owners: dict[Process, int | None] = {}
        slots: list[tuple[Slot, SlotRecord]] = []
        strange: list[str] = []
        for row, record, fd in self._keeper.slots():
            process = record.process
            if process not in owners:
                owners[process] = find_again(process)
            if fd is None:
                if owners[process] is None and process.pid:
                    # Its memory went with it.
                    self._keeper.remove(row)
                continue
            try:
                slot = self._reopen(row, record, fd)
            except (Foreign, OSError) as error:
                strange.append(str(error))
                self._keeper.misfit(row, record, lasting=isinstance(error, Foreign))
                continue
            finally:
                os.close(fd)
            slots.append((slot, record))
            if owners[process] is None and not _unseen(process):
                slot.owner.died = now if record.died is None else record.died
        if strange:
            log.warning("memory.strange", slots=len(strange), reason=strange[0])
        complete = 0
        for slot, record in slots:
            complete += await self._judge(slot, record)
        self._roster.tidy()
        self._staging.collect()
        self._keeper.forget_jobs(set(self._roster.jobs))
        backs = [
            Back(one, owners.pop(one.process, None))
            for one in list(self._roster.workloads.values())
        ]
        for pidfd in owners.values():
            if pidfd is not None:
                os.close(pidfd)
        waiting = len(self._keeper.waiting())
        if slots or waiting:
            log.info("memory.kept", slots=len(slots), complete=complete, awaited=waiting)
        return backs

    def hand_back(
        self,
        session: Session,
        workload: Workload,
        message: HandBack,
        re: int | None,
        fd: int,
        tasks: asyncio.TaskGroup,
    ) -> None:
        """Answers by `Accepted` or `Refuse` once the slot was looked at; meanwhile it is deaf."""
        found = self._recognise(workload, message, fd)
        if isinstance(found, Refusal):
            self._end(workload, message)
            session.deny("hand-back", found.reason, re)
            return
        slot, known = found
        # What the daemon before took for complete is looked at first: it may be just that.
        held = message.held and (known is None or known.state is not SlotState.COMPLETE)
        returning.handed_back(workload, slot, held=held)
        if slot.state is SlotState.WRITING:
            self._staging.written_anew(slot)
            self._staging.note(slot)
        # Else not before the look: a daemon that dies meanwhile has to leave the next one the
        # record of a whole slot, for its header is no newer than what is known.
        session.link.pause()
        self._staging.begin_reading(slot)
        start(tasks, self._finish(session, slot, message, re, known), session)

    def awaits(self, unit: str, uid: int) -> bool:
        """Whether memory of *unit* that a user's processes have is still missing."""
        return self._keeper.awaits(unit, uid)

    def last_look(self, workload: Workload, tasks: asyncio.TaskGroup) -> None:
        """Its process has ended before it could tell this daemon anything; its headers may tell."""
        for slot in [one for one in workload.slots.values() if one.state is SlotState.WRITING]:
            self._staging.begin_reading(slot)
            start(tasks, self._look_once(slot))

    def sweep(self, now: float) -> None:
        """Wait no longer for memory whose process has ended, or for what nobody has come for."""
        if now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        late = now - self._began >= self._seconds
        if late:
            self._keeper.let_go()
        for record in self._keeper.waiting():
            if late if record.process.pid == 0 else not lives(record.process):
                self._keeper.give_up(record)

    async def _look_once(self, slot: Slot) -> None:
        try:
            found = await self._whole(slot, None, finished=True)
            if found is not None and not slot.condemned:
                self._staging.take(slot, *found)
                self._happened(StagedOne(slot.owner.unit, slot.owner.rank, found[0]))
        finally:
            self._staging.end_reading(slot)

    # --- the inside ----------------------------------------------------------------------

    def _reopen(self, row: int, record: SlotRecord, fd: int) -> Slot:
        region = again(fd, inode=record.inode, nbytes=record.nbytes)
        workload = returning.reseat(self._roster, record)
        job = self._keeper.job(record.unit)
        if job is not None:
            returning.remember(self._roster, job, self._stores)
        slot = returning.reopen(self._roster.ledger, workload, record)
        self._staging.regions.take_back(slot, region)
        self._keeper.found(row, slot)
        return slot

    async def _judge(self, slot: Slot, record: SlotRecord) -> bool:
        """What it holds; True where that is a whole generation."""
        alive = slot.owner.alive
        found: tuple[Generation, Inspection] | None = None
        if record.state is not SlotState.FREE:
            found = await self._whole(slot, record, finished=not alive)
        if found is not None:
            self._staging.take(slot, *found, supersedes=False)
            return True
        if not alive:
            # Torn, and its owner is dead.
            self._roster.ledger.drop([slot])
        elif record.state is SlotState.WRITING:
            slot.state = SlotState.WRITING
        return False

    async def _whole(
        self, slot: Slot, record: SlotRecord | None, *, finished: bool
    ) -> tuple[Generation, Inspection] | None:
        """The generation that its header says is whole in it, where that can be.

        Args:
            record: Of a daemon before.
            finished: Nobody writes to it any more, so that an old one is as good as a new one.
        """
        region, loop = self._staging.regions.region(slot), asyncio.get_running_loop()
        newest = slot.owner.newest
        kept = record.generation if record and record.state is SlotState.COMPLETE else None

        def look() -> tuple[Generation, Inspection] | None:
            try:
                page = os.pread(region.fd, HEADER_BYTES, 0)
                header = Header.unpack(page, slot_nbytes=slot.nbytes)
                generation = Generation(header.incarnation, header.step)
                known = generation == kept or finished or newest is None or generation > newest
                if (
                    header.state is not HeaderState.COMPLETE
                    or header.incarnation != slot.shape.incarnation
                    or not known
                ):
                    return None
                return generation, inspect(region.fd, slot.nbytes, generation, None)
            except (SegmentError, OSError, MemoryError):
                return None

        return await loop.run_in_executor(self._staging.readers, look)

    def _recognise(
        self, workload: Workload, message: HandBack, fd: int
    ) -> tuple[Slot, SlotRecord | None] | Refusal:
        what = f"slot {message.slot}"
        if workload.resuming is None:
            return Refusal(f"{what}: nothing is to be handed back: register with resume first")
        slot = workload.slots.get(message.slot)
        try:
            if slot is not None:
                region = self._staging.regions.region(slot)
                same_memory(fd, inode=region.inode, nbytes=slot.nbytes)
                return slot, None
            found = self._keeper.awaited(workload, message.slot)
            if found is None:
                return Refusal(f"{what} is not known here")
            row, record = found
            if reason := self._too_much(workload, record.nbytes):
                return Refusal(f"{what}: {reason}")
            return self._reopen(row, record, fd), record
        except KeyError:
            return Refusal(f"{what} is still being made")
        except (Foreign, OSError) as error:
            return Refusal(f"{what}: the fd {error}")

    def _too_much(self, workload: Workload, nbytes: int) -> str:
        ledger = self._roster.ledger
        if ledger.used + nbytes > ledger.budget:
            return "the budget of this node has no room for it any more"
        if ledger.used_by(workload.process.uid) + nbytes > workload.share:
            return "your user's share of this node has no room for it any more"
        return ""

    async def _finish(
        self,
        session: Session,
        slot: Slot,
        message: HandBack,
        re: int | None,
        record: SlotRecord | None,
    ) -> None:
        workload = slot.owner
        try:
            found = None
            if slot.state is SlotState.FREE:
                found = await self._whole(slot, record, finished=False)
            if slot.condemned:
                session.refuse(f"slot {slot.number} was given up", re)
                return
            if found is not None and slot.state is SlotState.FREE:
                self._staging.take(slot, *found)
                self._happened(StagedOne(workload.unit, workload.rank, found[0]))
            elif found is None and message.held and slot.state is SlotState.FREE:
                slot.state = SlotState.WRITING
            self._staging.note(slot)
            session.reply(Accepted(), re)
        finally:
            self._staging.end_reading(slot)
            self._end(workload, message)
            session.link.resume()

    def _end(self, workload: Workload, message: HandBack) -> None:
        if message.last and workload.resuming is not None:
            returning.resumed(self._roster, workload)
            for record in self._keeper.waiting():
                if (record.unit, record.rank, record.process) == (
                    workload.unit, workload.rank, workload.process,
                ):  # fmt: skip
                    self._keeper.give_up(record)
            now, uid = self._clock.monotonic(), workload.process.uid
            if (unsaid := self._lines.take("handed back", uid, now=now)) is not None:
                log.info(
                    "memory.handed_back",
                    unit=workload.unit,
                    rank=workload.rank,
                    slots=len(workload.slots),
                    more=unsaid,
                )
        self._staging.collect()


def _unseen(process: Process) -> bool:
    """It may live outside the daemon's pid namespace, and will be known again when it comes."""
    return process.pid == 0 and process.started > 0

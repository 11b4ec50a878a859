"""What the job's processes hold complete, lent to one of them that has just begun again.

For reading alone: the fd that goes out is open for nothing else. What is lent stays as it is, until it
is released, or until its borrower's connection ends.
"""

import asyncio
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

import structlog

from evac.generation import Generation
from evac.wire import Adopted, Lent
from evacd.allowance import Complaints
from evacd.clock import Clock
from evacd.workloads.answers import Answers
from evacd.workloads.checksums import Sums
from evacd.workloads.guard import start
from evacd.workloads.job import Slot, Workload
from evacd.workloads.memory import read_only
from evacd.workloads.policy import Refusal
from evacd.workloads.roster import Roster
from evacd.workloads.session import Session
from evacd.workloads.staging import Staging

log = structlog.get_logger()

# For checksums that are still being taken; what is missing then is told as missing.
_SUMS_SECONDS = 5.0
# To one borrower at a time: some adoptions of all that 16 ranks with 16 slots each can have.
_MOST_LENT = 2048


class Lending:
    """Who has borrowed what."""

    def __init__(self, roster: Roster, staging: Staging, answers: Answers, *, clock: Clock) -> None:
        self._roster = roster
        self._staging = staging
        self._answers = answers
        self._clock = clock
        self._lines = Complaints(burst=16, every=60.0)
        self._lent: dict[Session, dict[int, Slot]] = {}
        # Who is still being told of the slots that it asked for last.
        self._adopting: set[Session] = set()

    def adopt(
        self, session: Session, workload: Workload, re: int | None, tasks: asyncio.TaskGroup
    ) -> None:
        """Answers by a `Lent` each and `Adopted`, or by `Refuse`; meanwhile it is deaf."""
        if session in self._adopting:
            # What is heard of a process that ended is not stopped by its being deaf.
            session.refuse("the adoption before this one is still being answered", re)
            return
        if workload.resuming is not None:
            # A part of what the job has would pass for all of it.
            session.refuse("nothing is lent: slots of before are still being handed back", re)
            return
        found = self._found(workload)
        if isinstance(found, Refusal):
            session.deny("adopt", found.reason, re)
            return
        lent = self._lent.setdefault(session, {})
        if len(lent) + len(found) > _MOST_LENT:
            session.deny("adopt", f"{len(lent)} slots that were lent are to be released first", re)
            return
        self._roster.ledger.pin(found)
        mine = []
        for slot in found:
            number, workload.numbers = workload.numbers, workload.numbers + 1
            lent[number] = slot
            mine.append(self._loan(number, slot))
        self._adopting.add(session)
        session.link.pause()
        start(tasks, self._lend(session, workload, mine, re), session)

    def release(self, session: Session, number: int) -> bool:
        """A borrower is done with one; False where it had not borrowed it."""
        slot = self._lent.get(session, {}).pop(number, None)
        if slot is None:
            return False
        self._give_back([slot])
        return True

    def gone(self, session: Session) -> None:
        """It borrows nothing any more."""
        self._give_back(list(self._lent.pop(session, {}).values()))

    def _give_back(self, slots: list[Slot]) -> None:
        if slots:
            self._roster.unhold(slots)
            self._staging.collect()

    def _found(self, workload: Workload) -> list[Slot] | Refusal:
        job = self._roster.jobs[workload.unit]
        every = [slot for _, slot in _complete(job.members)]
        mine = [
            (generation, slot)
            for generation, slot in _complete(job.members)
            if slot.shape.run == workload.run
            # What was spilled is no sealed memory, which is all that a borrower takes.
            and not slot.spilled
            # Its user, whatever the job is called: a prefix may be shared, memory is not.
            and slot.owner.process.uid == workload.process.uid
        ]
        if every and not mine:
            return Refusal("what this job has left here is of another run")
        mine.sort(key=lambda one: (one[0], one[1].owner.rank), reverse=True)
        return [slot for _, slot in mine]

    async def _lend(
        self,
        session: Session,
        workload: Workload,
        loans: list["_Loan"],
        re: int | None,
    ) -> None:
        try:
            for loan in loans:
                # A borrower that reads slowly is no reason to drop it, nor to open its fds ahead.
                await session.link.drained.wait()
                fd = read_only(self._staging.regions.region(loan.slot).fd)
                try:
                    session.reply(Lent(loan.number, loan.slot.nbytes), re, fd)
                finally:
                    os.close(fd)
            await _summed(loans)
            document = json.dumps({"slots": [one.shown() for one in loans]}).encode()
            await self._answers.room(session)
            answer = self._answers.put(session, document)
            try:
                session.reply(Adopted(len(loans), len(document)), re, answer.fd)
            finally:
                answer.sent()
        except OSError as error:
            for loan in loans:
                self.release(session, loan.number)
            session.refuse(f"nothing can be lent: {error.strerror}", re)
        else:
            now, uid = self._clock.monotonic(), session.peer.uid
            if (unsaid := self._lines.take("lent", uid, now=now)) is not None:
                nbytes = sum(one.slot.nbytes for one in loans)
                log.info(
                    "memory.lent",
                    unit=workload.unit,
                    rank=workload.rank,
                    slots=len(loans),
                    nbytes=nbytes,
                    more=unsaid,
                )
        finally:
            self._adopting.discard(session)
            if session.link.closed:
                self.gone(session)
            session.link.resume()

    def _loan(self, number: int, slot: Slot) -> "_Loan":
        """What is told of a slot, as it is now: later it may be another generation's."""
        generation, shape = slot.generation, slot.shape
        found = self._staging.found(slot)
        assert generation is not None
        told: dict[str, object] = {
            "slot": number,
            "rank": slot.owner.rank,
            "world": shape.world,
            "incarnation": generation.incarnation,
            "step": generation.step,
            "run": shape.run,
            "layout": shape.layout,
            "body": shape.body,
            "body_nbytes": slot.body_nbytes,
            "files": [asdict(one) for one in found.files],
            "weights_metadata_nbytes": len(found.weights_metadata),
        }
        return _Loan(number, slot, told, self._staging.regions.sums(slot))


@dataclass(frozen=True, eq=False)
class _Loan:
    """One slot that is lent, and what there was to be told of it when it was."""

    number: int
    slot: Slot
    told: Mapping[str, object]
    sums: Sums | None

    def shown(self) -> dict[str, object]:
        return {**self.told, "crc32c": self.sums.known() if self.sums is not None else []}


async def _summed(loans: Sequence[_Loan]) -> None:
    """Until all is summed, or it has taken too long: of all slots together, for one waits for them."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_SUMS_SECONDS):
            for one in loans:
                if one.sums is not None and one.sums.ready < one.sums.total:
                    await one.sums.all()


def _complete(members: list[Workload]) -> Iterator[tuple[Generation, Slot]]:
    for member in members:
        yield from member.complete()

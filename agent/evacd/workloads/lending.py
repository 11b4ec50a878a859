"""What the job's processes hold complete, lent to one of them that has just begun again.

For reading alone: the fd that goes out is open for nothing else. What is lent stays as it is, until it
is released, or until its borrower's connection ends.
"""

import asyncio
import json
import os
from collections.abc import Iterator
from dataclasses import asdict

import structlog

from evac.generation import Generation
from evac.wire import Adopted, Lent
from evacd.workloads.job import Slot, Workload
from evacd.workloads.memory import read_only, sealed_bytes
from evacd.workloads.policy import Refusal
from evacd.workloads.roster import Roster
from evacd.workloads.session import Session
from evacd.workloads.staging import Staging

log = structlog.get_logger()

# For checksums that are still being taken; what is missing then is told as missing.
_SUMS_SECONDS = 5.0


class Lending:
    """Who has borrowed what."""

    def __init__(self, roster: Roster, staging: Staging) -> None:
        self._roster = roster
        self._staging = staging
        self._lent: dict[Session, dict[int, Slot]] = {}

    def adopt(
        self, session: Session, workload: Workload, re: int | None, tasks: asyncio.TaskGroup
    ) -> None:
        """Answers by a `Lent` each and `Adopted`, or by `Refuse`; meanwhile it is deaf."""
        found = self._found(workload)
        if isinstance(found, Refusal):
            session.deny("adopt", found.reason, re)
            return
        self._roster.ledger.pin(found)
        lent = self._lent.setdefault(session, {})
        mine = []
        for slot in found:
            lent[workload.numbers] = slot
            mine.append((workload.numbers, slot))
            workload.numbers += 1
        session.link.pause()
        tasks.create_task(self._lend(session, workload, mine, re))

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
        slots: list[tuple[int, Slot]],
        re: int | None,
    ) -> None:
        try:
            for number, slot in slots:
                # A borrower that reads slowly is no reason to drop it, nor to open its fds ahead.
                await session.link.drained.wait()
                fd = read_only(self._staging.regions.region(slot).fd)
                try:
                    session.reply(Lent(number, slot.nbytes), re, fd)
                finally:
                    os.close(fd)
            told = [await self._told(number, slot) for number, slot in slots]
            document = json.dumps({"slots": told}).encode()
            fd = sealed_bytes(document)
            try:
                session.reply(Adopted(len(slots), len(document)), re, fd)
            finally:
                os.close(fd)
        except OSError as error:
            session.refuse(f"nothing can be lent: {error.strerror}", re)
        else:
            log.info(
                "memory.lent", unit=workload.unit, rank=workload.rank, slots=len(slots),
                nbytes=sum(slot.nbytes for _, slot in slots),
            )  # fmt: skip
        finally:
            if session.link.closed:
                self.gone(session)
            session.link.resume()

    async def _told(self, number: int, slot: Slot) -> dict[str, object]:
        generation, shape = slot.generation, slot.shape
        found = self._staging.found(slot)
        assert generation is not None
        return {
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
            "crc32c": await self._sums(slot),
        }

    async def _sums(self, slot: Slot) -> list[int | None]:
        sums = self._staging.regions.sums(slot)
        if sums is None:
            return []
        if sums.ready < sums.total:
            try:
                async with asyncio.timeout(_SUMS_SECONDS):
                    return list(await sums.all())
            except TimeoutError:
                pass
        return sums.known()


def _complete(members: list[Workload]) -> Iterator[tuple[Generation, Slot]]:
    for member in members:
        yield from member.complete()

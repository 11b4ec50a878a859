"""Slots of before: of a daemon that was restarted, or of a connection that was lost. Pure.

A process that comes back hands its slots back one by one; then what it did not hand back and what
is not complete is freed, and all is as if nothing had happened.
"""

from collections.abc import Collection

from evacd.workloads.job import Slot, SlotState, Workload
from evacd.workloads.ledger import Ledger
from evacd.workloads.record import JobRecord, SlotRecord
from evacd.workloads.roster import Roster


def remember(roster: Roster, record: JobRecord, stores: Collection[str]) -> None:
    """What is known of a job, which has members by now.

    Args:
        stores: This daemon's: what lies in none of them is not where its job will look for it.
    """
    job = roster.jobs.get(record.unit)
    if job is not None:
        if not record.durable_in or record.durable_in in stores:
            job.durable, job.durable_in = record.durable, record.durable_in
        job.agreed, job.agreed_until = record.agreed, record.agreed_until
        for launch, ranks in record.launches:
            job.launches.setdefault(launch, set()).update(ranks)
        roster.told.changed(record.unit)


def reseat(roster: Roster, record: SlotRecord) -> Workload:
    """The owner of a slot of before, with its seat."""
    for one in roster.workloads.values():
        if (one.unit, one.rank, one.process) == (record.unit, record.rank, record.process):
            return one
    workload = record.workload(roster.next_id())
    roster.seated(workload)
    return workload


def reopen(ledger: Ledger, workload: Workload, record: SlotRecord) -> Slot:
    """A slot of before, with the memory that it had; what it holds is still to be looked at."""
    slot = ledger.reopen(workload, record.number, record.nbytes, record.shape, record.reservation)
    workload.numbers = max(workload.numbers, record.numbers, record.number + 1)
    workload.reservation = max(workload.reservation, record.current)
    workload.newest = max(filter(None, (workload.newest, record.newest)), default=None)
    if record.reservation == workload.reservation:
        workload.shape = record.shape
    slot.state = SlotState.FREE
    return slot


def handed_back(workload: Workload, slot: Slot, *, held: bool) -> None:
    """Its owner still has it, and may be writing to it.

    What is complete stays so, whatever its owner says: it may be lent, or on its way to a store.
    """
    if workload.resuming is not None:
        workload.resuming.add(slot.number)
    workload.shape = slot.shape
    slot.reservation = workload.reservation
    if held and slot.state is SlotState.FREE and not slot.holds:
        slot.state = SlotState.WRITING
    elif not held and not slot.holds and slot.state is SlotState.WRITING:
        slot.state = SlotState.FREE


def resumed(roster: Roster, workload: Workload) -> None:
    """All that it still has was handed back."""
    handed, workload.resuming = workload.resuming or set(), None
    left = [slot for slot in workload.slots.values() if slot.number not in handed]
    roster.ledger.drop(slot for slot in left if slot.state is not SlotState.COMPLETE)
    for slot in left:
        # Complete, and never written again.
        slot.reservation = -1

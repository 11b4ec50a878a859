"""A complete slot that is the only one its owner can write in gives way to a copy. Pure state.

See `evacd.workloads.spill` for what is copied where.
"""

from evac.generation import Generation
from evacd.workloads.job import Slot, SlotState
from evacd.workloads.ledger import Ledger


def begin(ledger: Ledger, slot: Slot, *, most: int) -> Slot | None:
    """Where to copy *slot*; both are held until `settle`.

    None where its owner has others to write in, or there is nothing to copy.

    Args:
        most: Numbers of slots that one process may have.
    """
    owner = slot.owner
    mine = [s for s in owner.slots.values() if s.reservation == owner.reservation]
    if mine != [slot] or slot.state is not SlotState.COMPLETE:
        return None
    if owner.numbers >= most or ledger.room(owner.process.uid) < 1:
        return None
    copy = ledger.open_spilled(slot)
    ledger.pin([slot, copy])
    return copy


def settle(ledger: Ledger, slot: Slot, copy: Slot, generation: Generation | None) -> bool:
    """The copy of *generation* was made: it takes the slot's place, which is free again.

    False where it is worth nothing any more: the slot was given up, or is being flushed, after
    which it is free anyway. Both are still held.
    """
    if (
        generation is None
        or slot.condemned
        or copy.condemned
        or slot.state is not SlotState.COMPLETE
        or slot.generation != generation
        or slot.holds > 1
    ):
        ledger.drop([copy])
        return False
    # First the copy, so that the generation is there at every moment.
    copy.weights_nbytes, copy.copied_nbytes = slot.weights_nbytes, slot.copied_nbytes
    copy.generation, copy.body_nbytes = generation, slot.body_nbytes
    copy.state = SlotState.COMPLETE
    slot.state, slot.generation, slot.body_nbytes = SlotState.FREE, None, 0
    return True

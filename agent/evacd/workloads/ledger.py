"""Every slot of the node and the bytes they take. Pure bookkeeping.

A slot that somebody holds keeps counting after it was dropped, until the last one lets go:
its memory is still there.
"""

from collections import Counter
from collections.abc import Iterable

from evacd.workloads.job import Shape, Slot, Workload

# systemd keeps 8192 fds for the service (FileDescriptorStoreMax), and each slot takes two of the daemon's
# 65536 (LimitNOFILE): no user can take them all from the others.
MOST_SLOTS, MOST_SLOTS_OF_USER = 8000, 4000


class Ledger:
    """What is taken of the budget, and what is to be given back to the system.

    Args:
        budget: Bytes that all slots may take together.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.slots: dict[int, Slot] = {}
        # Bytes of all slots, those that are still being filled or held included.
        self.used = 0
        self._used_by: Counter[int] = Counter()
        self._count_of: Counter[int] = Counter()
        self._freed: list[Slot] = []
        self._dropped: list[Slot] = []
        self._keys = 0

    def room(self, uid: int) -> int:
        """How many slots more one user may have, whatever their size."""
        return min(MOST_SLOTS - len(self.slots), MOST_SLOTS_OF_USER - self._count_of[uid])

    def used_by(self, uid: int) -> int:
        """Bytes of the slots of one user's processes, dead ones included."""
        return self._used_by[uid]

    def freed(self) -> list[Slot]:
        """Slots whose memory is to be given back, each told once."""
        freed, self._freed = self._freed, []
        return freed

    def dropped(self) -> list[Slot]:
        """Slots that count no more, though somebody may still hold them; each told once."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def open(self, workload: Workload, nbytes: int) -> Slot:
        """A new slot of the workload's current reservation, still to be filled."""
        if workload.shape is None:
            raise ValueError("a slot belongs to a reservation")
        number = workload.numbers
        workload.numbers += 1
        return self.reopen(workload, number, nbytes, workload.shape, workload.reservation)

    def reopen(
        self, workload: Workload, number: int, nbytes: int, shape: Shape, reservation: int
    ) -> Slot:
        """A slot that there was under this number before; still to be filled."""
        self._keys += 1
        slot = Slot(
            key=self._keys,
            number=number,
            owner=workload,
            nbytes=nbytes,
            shape=shape,
            reservation=reservation,
        )
        workload.slots[slot.number] = self.slots[slot.key] = slot
        self._take(slot, slot.memory_nbytes)
        self._count_of[workload.process.uid] += 1
        workload.changed()
        return slot

    def open_spilled(self, slot: Slot) -> Slot:
        """Where *slot* is copied to; of no reservation, so that nobody is granted it."""
        owner = slot.owner
        number, owner.numbers = owner.numbers, owner.numbers + 1
        self._keys += 1
        copy = Slot(self._keys, number, owner, slot.nbytes, slot.shape, -1, spilled=True)
        owner.slots[number] = self.slots[copy.key] = copy
        self._count_of[owner.process.uid] += 1
        return copy

    def drop(self, slots: Iterable[Slot]) -> None:
        """Take *slots* from their owners; what is held goes when it is let go."""
        for slot in list(slots):
            slot.owner.slots.pop(slot.number, None)
            slot.owner.changed()
            if not slot.condemned:
                slot.condemned = True
                self._dropped.append(slot)
                self._free_unheld(slot)

    def pin(self, slots: Iterable[Slot]) -> None:
        """Keep the memory of *slots*, and keep it from being granted."""
        for slot in slots:
            slot.holds += 1

    def unpin(self, slots: Iterable[Slot]) -> None:
        """The counterpart of `pin`."""
        for slot in slots:
            slot.holds -= 1
            if slot.condemned:
                self._free_unheld(slot)

    def _free_unheld(self, slot: Slot) -> None:
        if not slot.holds:
            del self.slots[slot.key]
            self._take(slot, -slot.memory_nbytes)
            self._count_of[slot.owner.process.uid] -= 1
            self._freed.append(slot)

    def _take(self, slot: Slot, nbytes: int) -> None:
        self.used += nbytes
        self._used_by[slot.owner.process.uid] += nbytes

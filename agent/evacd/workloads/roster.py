"""Who is on board, who holds which slot, and who may write where. Pure state.

::

    reserve -> FILLING -> filled -> FREE -> acquire -> WRITING -> staged -> COMPLETE
                                     ^                  |  ^                   |
                                     +---- release -----+  +---- acquire ------+

A slot that is held is never granted, and neither is one whose loss would leave the job
without its newest common generation, unless that one is durable. What has to be given
back to the system is collected by the `Ledger`: this file decides, it frees nothing.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from evac.errors import GenerationError
from evac.generation import Generation
from evac.segment import aligned
from evac.wire import Mode, Register, Reserve
from evacd.facts import Unit
from evacd.workloads.budget import Evictable, Room, fit
from evacd.workloads.job import Job, Process, Shape, Slot, SlotState, Workload, occupied
from evacd.workloads.ledger import Ledger
from evacd.workloads.policy import Refusal
from evacd.workloads.told import Told

# The wire's own limit for the number of a slot.
MOST_NUMBERS = 1_000_000
# Dead processes of one user that left nothing, told in the status until they expire.
_MOST_EMPTY = 64


class Roster:
    """Feed it what happened; it says who gets what.

    Args:
        budget: Bytes that all slots may take together.
    """

    def __init__(self, *, budget: int) -> None:
        self.ledger = Ledger(budget)
        self.workloads: dict[int, Workload] = {}
        self.jobs: dict[str, Job] = {}
        self._ids = 0
        self.told = Told(self.jobs)

    def aboard(self) -> Mapping[int, int]:
        """Live workloads per uid."""
        return Counter(w.process.uid for w in self.workloads.values() if w.alive)

    def seat(self, unit: str, rank: int) -> Workload | None:
        """Who registered last for a rank, alive or dead."""
        job = self.jobs.get(unit)
        members = job.members if job else []
        return next((one for one in reversed(members) if one.rank == rank), None)

    # --- coming and going ---------------------------------------------------------------

    def register(
        self, message: Register, *, unit: str, process: Process, share: int, now: float
    ) -> Workload | Refusal:
        """Give *process* its rank; the same process may come again after a lost connection.

        Coming again it resumes: see `evacd.workloads.returning`. Or it starts from nothing: what it
        had staged stays, what it was writing it will write anew.

        Args:
            share: Bytes that all slots of the process's user may take together.
        """
        seat = self.seat(unit, message.rank)
        if seat is not None and seat.alive and seat.process != process:
            return Refusal(
                f"rank {message.rank} of job {message.job} is already registered "
                f"by pid {seat.process.pid}"
            )
        mode = Mode(message.mode)
        for other in self.jobs[unit].members if unit in self.jobs else ():
            if other.process.uid != process.uid:
                return Refusal(f"job {message.job} belongs to uid {other.process.uid}")
            if other.alive and other.mode is not mode:
                return Refusal(f"job {message.job} takes part as {other.mode}, not as {mode}")
        if seat is not None and seat.alive:
            seat.world, seat.priority, seat.run = message.world, message.priority, message.run
            seat.need_seconds, seat.share = message.need_seconds, share
            seat.rendezvous, seat.peers = message.rendezvous, message.peers
            if message.resume:
                seat.resuming = set()
                return seat
            unwritten = [s for s in seat.slots.values() if s.state is not SlotState.COMPLETE]
            self.ledger.drop(unwritten)
            seat.shape, seat.resuming = None, None
            seat.reservation += 1
            return seat
        workload = Workload(
            id=self.next_id(),
            unit=unit,
            job=message.job,
            rank=message.rank,
            world=message.world,
            priority=message.priority,
            mode=mode,
            run=message.run,
            need_seconds=message.need_seconds,
            process=process,
            share=share,
            arrived=now,
            newest=seat.newest if seat else None,
            resuming=set() if message.resume else None,
            rendezvous=message.rendezvous,
            peers=message.peers,
        )
        self.seated(workload)
        if seat is not None and not seat.slots:
            self._forget(seat)
        return workload

    def next_id(self) -> int:
        """Of a workload that comes; none comes twice."""
        self._ids += 1
        return self._ids

    def seated(self, workload: Workload) -> None:
        """It is one of its job's from now on, and the last that came for its rank."""
        self.workloads[workload.id] = workload
        workload.news = self.told.changed
        self.jobs.setdefault(workload.unit, Job(workload.unit)).members.append(workload)
        self.told.changed(workload.unit)

    def died(self, workload: Workload, *, now: float) -> None:
        """Its process ended: what it was writing is torn, what it had staged is kept."""
        workload.died = now
        self.ledger.drop(s for s in workload.slots.values() if s.state is not SlotState.COMPLETE)
        if workload.mode is Mode.CALLBACK or (
            not workload.slots and self.seat(workload.unit, workload.rank) is not workload
        ):
            self._forget(workload)
        uid = workload.process.uid
        empty = [
            w for w in self.workloads.values()
            if not w.alive and not w.slots and w.process.uid == uid
        ]  # fmt: skip
        for one in empty[: max(0, len(empty) - _MOST_EMPTY)]:
            self._forget(one)

    def leave(self, workload: Workload) -> None:
        """Its work is finished: nothing of it is to be saved."""
        job = self.jobs[workload.unit]
        for ranks in job.launches.values():
            ranks.discard(workload.rank)
        # With it goes what processes before it left behind for the same rank.
        for one in [m for m in job.members if m.rank == workload.rank]:
            self.ledger.drop(one.slots.values())
            self._forget(one)

    def expire(self, *, now: float, seconds: float) -> None:
        """Forget who has been dead for *seconds*, with all that was kept for it."""
        for one in list(self.workloads.values()):
            if one.died is not None and now - one.died >= seconds:
                self.ledger.drop(one.slots.values())
                self._forget(one)

    # --- memory -------------------------------------------------------------------------

    def reserve(
        self, workload: Workload, message: Reserve, *, limit: int
    ) -> tuple[Slot, ...] | Refusal:
        """As many slots as fit, up to what is wanted and *limit*; all still to be filled.

        Replaces the workload's former reservation, where it is not refused: what was being
        written there is given up, what is complete stays until it is superseded.
        """
        if workload.mode is Mode.CALLBACK:
            return Refusal("a callback workload flushes by itself and has no slots")
        if workload.newest and message.incarnation < workload.newest.incarnation:
            return Refusal(
                f"incarnation {message.incarnation} of rank {workload.rank} is over: "
                f"{workload.newest} was staged since"
            )
        old = [s for s in workload.slots.values() if s.state is not SlotState.COMPLETE]
        room = self.ledger.room(workload.process.uid) + sum(not slot.holds for slot in old)
        if room < 1:
            return Refusal("this node keeps no more slots, or no more of your user")
        each, wanted = aligned(message.nbytes), min(message.slots, limit, room)
        if workload.numbers + wanted > MOST_NUMBERS:
            return Refusal("this process has reserved too often")
        returned = sum(slot.memory_nbytes for slot in old if not slot.holds)
        uid = workload.process.uid
        found = fit(
            budget=Room(self.ledger.budget, self.ledger.used - returned),
            share=Room(workload.share, self.ledger.used_by(uid) - returned),
            each=each,
            wanted=wanted,
            evictable=self._evictable(uid),
        )
        if isinstance(found, str):
            return Refusal(found)
        self.ledger.drop([*old, *(self.ledger.slots[key] for key in found.evict)])
        workload.reservation, workload.resuming = workload.reservation + 1, None
        workload.shape = Shape(
            body=message.body,
            layout=message.layout,
            incarnation=message.incarnation,
            run=workload.run,
            world=workload.world,
        )
        job = self.jobs[workload.unit]
        job.launches.setdefault(message.incarnation, set()).add(workload.rank)
        self.told.changed(workload.unit)
        self._tidy(job)
        return tuple(self.ledger.open(workload, each) for _ in range(found.slots))

    def filled(self, slot: Slot) -> None:
        """Its memory is there; the slot may be granted."""
        if slot.state is SlotState.FILLING and not slot.condemned:
            slot.state = SlotState.FREE

    def abandon(self, slots: Iterable[Slot]) -> None:
        """Their memory could not be had, or nobody waits for it any more."""
        self.ledger.drop(slot for slot in slots if slot.state is SlotState.FILLING)

    def acquire(self, workload: Workload) -> Slot | Refusal:
        """A slot to write in; asked twice without staging, the same one again."""
        if workload.resuming is not None:
            return Refusal("no free slot: those of before are still being handed back")
        mine = [s for s in workload.slots.values() if s.reservation == workload.reservation]
        free = next((s for s in mine if s.state is SlotState.WRITING and not s.holds), None)
        if free is not None:
            return free
        free = next((s for s in mine if s.state is SlotState.FREE and not s.holds), None)
        if free is None:
            protected = self.jobs[workload.unit].protected()
            spare = [
                (slot.generation, slot)
                for slot in mine
                if slot.state is SlotState.COMPLETE
                and slot.generation is not None
                and slot.generation not in protected
                and not slot.holds
            ]
            if not spare:
                return Refusal(f"no free slot: {occupied(mine)}")
            free = min(spare, key=lambda one: one[0])[1]
        free.state, free.generation, free.body_nbytes = SlotState.WRITING, None, 0
        return free

    def release(self, workload: Workload, number: int) -> None:
        """An acquired slot comes back unwritten."""
        slot = workload.slots.get(number)
        if slot is not None and slot.state is SlotState.WRITING:
            slot.state = SlotState.FREE

    def staging(self, workload: Workload, number: int, step: int) -> Slot | Refusal:
        """The slot that is said to hold *step*, where it may, or does already; unread, if not."""
        slot = workload.slots.get(number)
        if slot is not None and slot.generation == Generation(slot.shape.incarnation, step):
            return slot
        if slot is None or slot.state is not SlotState.WRITING:
            return Refusal(f"slot {number} was not acquired")
        generation = Generation(slot.shape.incarnation, step)
        if workload.newest is not None and generation <= workload.newest:
            return Refusal(f"{generation} is not newer than {workload.newest}, already staged")
        return slot

    def staged(
        self,
        slot: Slot,
        generation: Generation,
        *,
        body_nbytes: int,
        weights_nbytes: int | None = None,
        copied_nbytes: int = 0,
        supersedes: bool = True,
    ) -> None:
        """Its bytes were found to be what their owner says.

        Args:
            weights_nbytes: Of the weights; None where they do not lie apart from the rest.
            copied_nbytes: Of copies of what other ranks write.
            supersedes: What is superseded may be freed; else `tidy` will be called.
        """
        slot.state, slot.generation, slot.body_nbytes = SlotState.COMPLETE, generation, body_nbytes
        slot.weights_nbytes, slot.copied_nbytes = weights_nbytes, copied_nbytes
        slot.owner.newest = max(generation, slot.owner.newest or generation)
        if supersedes:
            self._tidy(self.jobs[slot.owner.unit])

    # --- what a flush asks --------------------------------------------------------------

    def rendezvous(self, unit: str) -> tuple[str, ...]:
        """Where a job's nodes meet, as its workloads say; what was said last comes first."""
        job = self.jobs.get(unit)
        said = [member.rendezvous for member in reversed(job.members)] if job else []
        return tuple(dict.fromkeys(one for one in said if one))

    def peers(self, key: str) -> tuple[str, ...]:
        """Where the nodes of the job that *key* belongs to keep bytes for each other.

        Of all jobs, for what belongs to none.
        """
        own = [job for job in self.jobs.values() if key.startswith(f"{job.name}/")]
        said = [m.peers for job in own or self.jobs.values() for m in reversed(job.members)]
        return tuple(dict.fromkeys(one for some in said for one in some))

    def units(self, lanes: tuple[str, ...]) -> tuple[Unit, ...]:
        """One per job, in the order of their arrival; the very same tuple where nothing has changed.

        Args:
            lanes: Of the node; one to the job's own peers only where the job has named some.
        """
        return self.told.units(lanes)

    def hold(self, unit: str, generation: Generation) -> tuple[Slot, ...]:
        """Pin one generation's slots, by rank, until `unhold`.

        Raises:
            GenerationError: It is not complete on all ranks, or gone.
        """
        job = self.jobs.get(unit)
        parts = dict(job.common()).get(generation) if job else None
        if parts is None:
            raise GenerationError(f"{unit} {generation}", "not complete on all ranks here")
        slots = tuple(parts[rank] for rank in sorted(parts))
        self.ledger.pin(slots)
        return slots

    def unhold(self, slots: Iterable[Slot]) -> None:
        """The counterpart of `hold`, and of a pin by whoever fills or reads a slot."""
        slots = list(slots)
        self.ledger.unpin(slots)
        for unit in {slot.owner.unit for slot in slots}:
            if unit in self.jobs:
                self._tidy(self.jobs[unit])

    def mark_durable(self, unit: str, generation: Generation, store: str) -> None:
        """It is whole in *store*, a durable one: memory is no longer its only place."""
        job = self.jobs.get(unit)
        if job is not None and not job.is_durable(generation):
            job.durable, job.durable_in = generation, store
            self.told.changed(unit)
            self._tidy(job)

    def tidy(self) -> None:
        """Free all that is superseded."""
        for job in list(self.jobs.values()):
            self._tidy(job)

    # --- the inside ---------------------------------------------------------------------

    def _evictable(self, uid: int) -> Iterator[Evictable]:
        """Retired slots whose loss takes no job's newest common generation away.

        Args:
            uid: Who asks.
        """
        for job in self.jobs.values():
            needed = job.needed()
            yield from (
                Evictable(
                    slot.key,
                    slot.nbytes,
                    mine=member.process.uid == uid,
                    durable=job.is_durable(generation),
                    generation=generation,
                )
                for member in job.members
                for generation, slot in member.complete()
                if slot.retired and not slot.spilled and not slot.holds and generation not in needed
            )

    def _tidy(self, job: Job) -> None:
        """Free what a newer common generation supersedes and nobody will write again.

        A dead process keeps the older generations of its own launch until they expire.
        """
        newest = job.newest_common()
        if newest is None:
            return
        job.resumed(newest)
        for member in list(job.members):
            self.ledger.drop(
                slot
                for generation, slot in list(member.complete())
                if slot.retired
                and not slot.holds
                and generation < newest
                and generation != job.agreed
                and (member.alive or generation.incarnation < newest.incarnation)
            )
            if not member.alive and not member.slots and self.seat(job.name, member.rank) != member:
                self._forget(member)

    def _forget(self, workload: Workload) -> None:
        self.workloads.pop(workload.id, None)
        job = self.jobs[workload.unit]
        job.members.remove(workload)
        self.told.changed(workload.unit)
        if not job.members:
            del self.jobs[workload.unit]
            self.told.gone(workload.unit)

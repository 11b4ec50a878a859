"""A job's ranks on this node and what they hold: the records, and what follows from them.

Pure state: no fds, no clock. The roster changes these records; here is only what can be
read off them, above all which generations every rank of the job has in common.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from evac.generation import Generation
from evac.interval import Interval
from evac.wire import Mode
from evacd.facts import Candidate, Unit

# What a unit is made of: whoever sets one of these says that its job has news.
_OF_SLOT = frozenset({"state", "generation", "body_nbytes", "weights_nbytes", "copied_nbytes"})
_OF_WORKLOAD = frozenset({"priority", "mode", "run", "need_seconds", "died", "shape", "peers"})


class SlotState(StrEnum):
    """A slot's way: filling -> free -> writing -> complete -> writing -> ..."""

    FILLING = "filling"
    FREE = "free"
    WRITING = "writing"
    COMPLETE = "complete"


@dataclass(frozen=True)
class Process:
    """One process, told apart from a later one that got the same pid.

    Attributes:
        pid: 0 where it lives outside the daemon's pid namespace.
        started: Clock ticks after boot; for pid 0 a number that is the kernel's own.
        gid: Of no weight in a comparison: a process may change it.
    """

    pid: int
    started: int
    uid: int
    gid: int = field(compare=False)


@dataclass(frozen=True)
class Shape:
    """What a reservation says of everything that is staged in it."""

    body: str
    layout: str
    incarnation: int
    run: str
    world: int


@dataclass(eq=False)
class Slot:
    """One region of memory and what its owner has in it.

    Attributes:
        key: Unique in the life of the daemon.
        number: What the owner calls it.
        nbytes: Whole pages.
        weights_nbytes: Of the body; None where weights do not lie apart from the rest.
        copied_nbytes: Of the body, copies of what other ranks write.
        holds: Who reads or fills it just now; above 0 its memory stays.
        condemned: Nobody's any more: gone as soon as nobody holds it.
        spilled: A copy on a disk: it takes no memory, and nobody writes it.
    """

    key: int
    number: int
    owner: "Workload"
    nbytes: int
    shape: Shape
    reservation: int
    state: SlotState = SlotState.FILLING
    generation: Generation | None = None
    body_nbytes: int = 0
    weights_nbytes: int | None = None
    copied_nbytes: int = 0
    holds: int = 0
    condemned: bool = False
    spilled: bool = False

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)
        if name in _OF_SLOT:
            self.owner.changed()

    @property
    def memory_nbytes(self) -> int:
        """What it takes of the budget."""
        return 0 if self.spilled else self.nbytes

    @property
    def retired(self) -> bool:
        """Its owner is dead, or has reserved anew: it will never be written again."""
        return not self.owner.alive or self.reservation != self.owner.reservation


@dataclass(eq=False)
class Workload:
    """One registered process, alive or remembered.

    Attributes:
        share: Bytes that all slots of its user may take together.
        arrived: Monotonic seconds of the first registration.
        died: Monotonic seconds; None while it lives.
        newest: What was last staged for this rank, by this process or one before it.
        shape: Of the current reservation; None before the first.
        resuming: Numbers of the slots that it has handed back so far; None once that is over.
        rendezvous: Where it says that its job's nodes meet; "" for nowhere.
        peers: Where it says that its job's nodes keep bytes for each other.
        interval: How often it stages, as it said last; None where it does not.
        news: Told the unit that has changed.
    """

    id: int
    unit: str
    job: str
    rank: int
    world: int
    priority: int
    mode: Mode
    run: str
    need_seconds: float
    process: Process
    share: int
    arrived: float
    died: float | None = None
    newest: Generation | None = None
    shape: Shape | None = None
    reservation: int = 0
    numbers: int = 0
    slots: dict[int, Slot] = field(default_factory=dict)
    resuming: set[int] | None = None
    rendezvous: str = ""
    peers: tuple[str, ...] = ()
    interval: Interval | None = None
    news: Callable[[str], None] | None = field(default=None, repr=False)

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)
        if name in _OF_WORKLOAD:
            self.changed()

    def changed(self) -> None:
        """Something of it has, by which the planner may see its job otherwise."""
        if self.news is not None:
            self.news(self.unit)

    @property
    def alive(self) -> bool:
        """Until its pidfd says otherwise; a lost connection is not a death."""
        return self.died is None

    def complete(self) -> Iterator[tuple[Generation, Slot]]:
        """Its complete slots."""
        for slot in self.slots.values():
            if slot.state is SlotState.COMPLETE and slot.generation is not None:
                yield slot.generation, slot


@dataclass(eq=False)
class Job:
    """All workloads of one prefix.

    Attributes:
        launches: Per incarnation, the local ranks that reserved memory in it and have not
            left. Remembered past a rank's own end, so that what is left of a launch is
            never mistaken for the whole of it.
        durable: The newest generation that is whole in a durable store.
        durable_in: That store's URL; "" where a version before did not write it down.
        agreed: What its nodes have agreed on, and memory keeps; see `evacd.workloads.agreement`.
        agreed_until: When that ends by itself; monotonic seconds.
    """

    name: str
    members: list[Workload] = field(default_factory=list)
    launches: dict[int, set[int]] = field(default_factory=dict)
    durable: Generation | None = None
    durable_in: str = ""
    agreed: Generation | None = None
    agreed_until: float = 0.0

    def parts(self) -> dict[Generation, dict[int, Slot]]:
        """Every complete slot, by generation and rank."""
        found: dict[Generation, dict[int, Slot]] = {}
        for member in self.members:
            for generation, slot in member.complete():
                found.setdefault(generation, {})[member.rank] = slot
        return found

    def common(self) -> list[tuple[Generation, dict[int, Slot]]]:
        """The generations that every rank they need has complete, newest first."""
        found = self.parts()
        return [(one, found[one]) for one in sorted(found, reverse=True) if self._whole(one, found)]

    def newest_common(self) -> Generation | None:
        """The newest of `common`."""
        return next((generation for generation, _ in self.common()), None)

    def is_durable(self, generation: Generation | None) -> bool:
        """Whether it, or a newer one, is safe in a store."""
        return generation is not None and self.durable is not None and generation <= self.durable

    def protected(self) -> frozenset[Generation]:
        """What nobody writes over: what was agreed on, and the newest that memory alone has."""
        newest = self.newest_common()
        kept = self.agreed, None if self.is_durable(newest) else newest
        return frozenset(one for one in kept if one is not None)

    def needed(self) -> frozenset[Generation]:
        """What nobody's need for memory costs: of two, what was agreed on, which can be whole."""
        found = self.protected()
        agreed = self.agreed
        if agreed is not None and any(one == agreed for one, _ in self.common()):
            return frozenset({agreed})
        return found

    def resumed(self, newest: Generation) -> None:
        """End the agreement where it has served: *newest* is the newest common generation."""
        agreed = self.agreed
        if agreed is not None and (
            self.is_durable(agreed) or newest.incarnation > agreed.incarnation
        ):
            self.agreed = None

    def _whole(self, one: Generation, found: dict[Generation, dict[int, Slot]]) -> bool:
        parts = found[one]
        if len({(s.shape.run, s.shape.world, s.shape.layout) for s in parts.values()}) != 1:
            return False
        shape = next(iter(parts.values())).shape
        launch = self.launches.get(one.incarnation, set())
        if any(rank < shape.world and rank not in parts for rank in launch):
            return False
        return not any(
            self._needed(member, one, shape) for member in self.members if member.rank not in parts
        )

    def _needed(self, member: Workload, one: Generation, shape: Shape) -> bool:
        """Whether *one* is torn without a part of *member*, which has none."""
        if member.rank >= shape.world:
            return False
        if member.shape is None:
            # It has not said yet which launch it belongs to; its run may tell.
            return not (member.run and shape.run and member.run != shape.run)
        if member.shape.incarnation >= one.incarnation:
            return member.shape.incarnation == one.incarnation
        if member.alive:
            return True
        # Ranks move on a restart: a dead rank is replaced once the new launch is as many.
        mine = self.launches.get(member.shape.incarnation, set())
        return len(self.launches.get(one.incarnation, set())) < len(mine)

    def unit(self, lanes: tuple[str, ...]) -> Unit:
        """The job as the planner sees it."""
        callers = [m for m in self.members if m.mode is Mode.CALLBACK]
        needs = [one.need_seconds for one in callers]
        fresh = [
            candidate
            for generation, parts in self.common()
            if not self.is_durable(generation)
            for candidate in _candidates(generation, parts.values())
        ]
        return Unit(
            name=self.name,
            priority=max(member.priority for member in self.members),
            arrived=min(member.arrived for member in self.members),
            lanes=lanes,
            candidates=tuple(fresh),
            turn_seconds=max(needs) if needs else None,
            callers=frozenset(one.id for one in callers),
            empty_because="" if fresh or needs else self._emptiness(),
            durable=self.durable,
            durable_in=self.durable_in,
            agreed=self.agreed,
            alone=self._alone(),
        )

    def _alone(self) -> bool:
        """Whether all ranks of what was staged last are of this node."""
        found = next(iter(self.common()), None)
        return found is not None and len(found[1]) == found[1][min(found[1])].shape.world

    def _emptiness(self) -> str:
        ranks = sorted({member.rank for member in self.members})
        found = self.parts()
        if self.durable is not None and all(self.is_durable(one) for one in found):
            return f"{self.durable} is already durable and nothing newer was staged"
        if not found:
            return "nothing was staged"
        have = {rank: [g.step for g in sorted(found) if rank in found[g]] for rank in ranks}
        empty = [str(rank) for rank in ranks if not have[rank]]
        if empty:
            who = f"rank {empty[0]} has" if len(empty) == 1 else f"ranks {_some(empty)} have"
            return f"{who} no complete generation"
        if any(found[g].keys() >= set(ranks) for g in found):
            return "the ranks disagree about run, world or layout of what they staged"
        told = [f"rank {rank}: {_some([str(s) for s in have[rank]])}" for rank in ranks]
        return f"no step is complete on all ranks ({_some(told, '; ')})"


def _candidates(generation: Generation, parts: Iterable[Slot]) -> Iterator[Candidate]:
    """All of a generation, and its weights where they lie apart in every part of it."""
    weights = 0
    apart, nbytes = True, 0
    for slot in parts:
        nbytes += slot.body_nbytes - slot.copied_nbytes
        apart &= slot.weights_nbytes is not None
        weights += slot.weights_nbytes or 0
    yield Candidate(generation, nbytes)
    if apart:
        yield Candidate(generation, weights, "weights")


def _some(words: list[str], between: str = ", ") -> str:
    return between.join(words[:8]) + (between + "..." if len(words) > 8 else "")


def occupied(slots: list[Slot]) -> str:
    """Why none of them can be written to, for a person."""
    if not slots:
        return "nothing is reserved"
    words = []
    for slot in slots:
        if slot.generation is None:
            words.append("one is being prepared")
        elif slot.holds:
            words.append(f"step {slot.generation.step} is being flushed, or is lent")
        else:
            words.append(f"step {slot.generation.step} is the newest that all ranks have")
    return ", ".join(words)

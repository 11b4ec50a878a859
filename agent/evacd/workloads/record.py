"""What is remembered of a slot and of a job for the next daemon. Pure: records in, JSON out, and back.

A record is written by this daemon or by the one before it and read on the same machine, of the
same boot; what cannot be read is nobody's.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from evac.generation import Generation
from evac.wire import Mode
from evacd.workloads.job import Job, Process, Shape, Slot, SlotState, Workload

# The newest launches of a job tell which of its ranks a generation needs.
_LAUNCHES = 8


@dataclass(frozen=True)
class SlotRecord:
    """One slot and its owner.

    Attributes:
        inode: Device and number of its memfd.
        died: Monotonic seconds of this boot; None while the owner lived.
        newest: Of the owner; None before its first stage.
        current: The owner's reservation.
        numbers: The owner's next slot's.
    """

    inode: tuple[int, int]
    unit: str
    job: str
    rank: int
    world: int
    priority: int
    run: str
    process: Process
    share: int
    arrived: float
    died: float | None
    newest: Generation | None
    current: int
    numbers: int
    number: int
    nbytes: int
    shape: Shape
    reservation: int
    state: SlotState
    generation: Generation | None

    def workload(self, id: int) -> Workload:
        """Its owner, as it was."""
        return Workload(
            id=id,
            unit=self.unit,
            job=self.job,
            rank=self.rank,
            world=self.world,
            priority=self.priority,
            mode=Mode.STAGED,
            run=self.run,
            need_seconds=0.0,
            process=self.process,
            share=self.share,
            arrived=self.arrived,
            died=self.died,
            newest=self.newest,
            shape=self.shape,
            reservation=self.current,
            numbers=self.numbers,
        )


@dataclass(frozen=True)
class JobRecord:
    """What is known of a job beyond its slots; see `Job`."""

    unit: str
    durable: Generation | None
    launches: tuple[tuple[int, tuple[int, ...]], ...]


Record: TypeAlias = SlotRecord | JobRecord


def of_slot(slot: Slot, inode: tuple[int, int]) -> SlotRecord:
    """As it is now."""
    owner = slot.owner
    return SlotRecord(
        inode=inode,
        unit=owner.unit,
        job=owner.job,
        rank=owner.rank,
        world=owner.world,
        priority=owner.priority,
        run=owner.run,
        process=owner.process,
        share=owner.share,
        arrived=owner.arrived,
        died=owner.died,
        newest=owner.newest,
        current=owner.reservation,
        numbers=owner.numbers,
        number=slot.number,
        nbytes=slot.nbytes,
        shape=slot.shape,
        reservation=slot.reservation,
        state=slot.state,
        generation=slot.generation,
    )


def of_job(job: Job) -> JobRecord:
    """As it is now."""
    newest = sorted(job.launches.items(), reverse=True)[:_LAUNCHES]
    launches = tuple((launch, tuple(sorted(ranks))) for launch, ranks in newest)
    return JobRecord(job.name, job.durable, launches)


def encode(record: Record) -> bytes:
    """As JSON."""
    return json.dumps(asdict(record), separators=(",", ":")).encode()


def decode(data: bytes) -> Record | None:
    """Read one; None where it is none."""
    try:
        return _read(json.loads(data))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _read(found: dict[str, Any]) -> Record:
    if "launches" in found:
        launches = tuple((int(launch), tuple(ranks)) for launch, ranks in found["launches"])
        return JobRecord(found["unit"], _generation(found["durable"]), launches)
    found |= {
        "inode": (int(found["inode"][0]), int(found["inode"][1])),
        "process": Process(**found["process"]),
        "newest": _generation(found["newest"]),
        "shape": Shape(**found["shape"]),
        "state": SlotState(found["state"]),
        "generation": _generation(found["generation"]),
    }
    return SlotRecord(**found)


def _generation(found: dict[str, int] | None) -> Generation | None:
    return None if found is None else Generation(**found)

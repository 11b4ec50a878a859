"""What is remembered of a slot and of a job for the next daemon. Pure: records in, JSON out, and back.

A record is written by this daemon or by the one before it and read on the same machine, of the
same boot; what cannot be read is nobody's.
"""

import json
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeAlias

from evac.generation import Generation
from evac.wire import Mode
from evacd.workloads.job import Job, Process, Shape, Slot, SlotState, Workload

# Of what is written. A reader knows no version by name: it passes over fields that it does not know,
# and has a value for each that came later than the first version; see `_LATER`.
VERSION = 1
# Bytes of JSON that are written as they are, and that are read at most.
_PLAIN, _MOST_UNPACKED = 1500, 1 << 20
# What a version before may not have written.
_LATER: dict[str, Any] = {"priority": 0, "share": 1 << 62, "died": None}
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
    agreed: Generation | None = None
    agreed_until: float = 0.0
    durable_in: str = ""


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
    return JobRecord(job.name, job.durable, launches, job.agreed, job.agreed_until, job.durable_in)


def encode(record: Record) -> bytes:
    """As JSON; compressed where that is long, so that whatever may be registered fits in a row."""
    found = asdict(record) | {"v": VERSION}
    if isinstance(record, JobRecord):
        found["launches"] = [(launch, _ranges(ranks)) for launch, ranks in record.launches]
    elif record.shape.run == record.run:
        del found["shape"]["run"]
    data = json.dumps(found, separators=(",", ":"), ensure_ascii=False).encode()
    return data if len(data) <= _PLAIN else zlib.compress(data, 9)


def decode(data: bytes) -> Record | None:
    """Read one; None where it is none."""
    try:
        return _read(json.loads(data if data[:1] == b"{" else _unpacked(data)))
    except (
        zlib.error,
        ValueError,
        TypeError,
        KeyError,
        IndexError,
        AttributeError,
        RecursionError,
    ):
        return None


def _read(found: dict[str, Any]) -> Record:
    if "launches" in found:
        launches = tuple((int(launch), _ranks(ranks)) for launch, ranks in found["launches"])
        durable, agreed = (_generation(found.get(name)) for name in ("durable", "agreed"))
        until = float(found.get("agreed_until", 0.0))
        where = str(found.get("durable_in", ""))
        return JobRecord(found["unit"], durable, launches, agreed, until, where)
    shape = {"layout": "", "run": found.get("run", ""), **found["shape"]}
    found = {
        **_LATER,
        **found,
        "inode": (int(found["inode"][0]), int(found["inode"][1])),
        "process": Process(**_fields(Process, found["process"])),
        "newest": _generation(found.get("newest")),
        "shape": Shape(**_fields(Shape, shape)),
        "state": SlotState(found["state"]),
        "generation": _generation(found.get("generation")),
    }
    return SlotRecord(**_fields(SlotRecord, found))


def _unpacked(data: bytes) -> bytes:
    return zlib.decompressobj().decompress(data, _MOST_UNPACKED)


def _fields(kind: type, found: dict[str, Any]) -> dict[str, Any]:
    """Those that this version knows."""
    return {one.name: found[one.name] for one in fields(kind) if one.name in found}


def _ranges(ranks: Sequence[int]) -> list[int | list[int]]:
    """``0, 1, 2, 5`` as ``[[0, 2], 5]``."""
    found: list[list[int]] = []
    for rank in sorted(ranks):
        if found and rank == found[-1][1] + 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    return [first if first == last else [first, last] for first, last in found]


def _ranks(found: list[int | list[int]]) -> tuple[int, ...]:
    each = [one if isinstance(one, list) else [one, one] for one in found]
    return tuple(rank for first, last in each for rank in range(first, last + 1))


def _generation(found: dict[str, int] | None) -> Generation | None:
    return None if found is None else Generation(**found)

"""Writes down what becomes of each slot, and finds it again in the next daemon."""

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import structlog

from evacd.errors import StateError
from evacd.workloads.job import Job, Process, Slot, Workload
from evacd.workloads.keeping.fds import FdStore, Given
from evacd.workloads.keeping.table import Table
from evacd.workloads.memory import Region
from evacd.workloads.record import (
    JobRecord,
    Record,
    SlotRecord,
    decode,
    encode,
    of_job,
    of_slot,
)

log = structlog.get_logger()

# Unit, rank, process and number: what its owner knows of a slot.
_SlotOf: TypeAlias = tuple[str, int, Process, int]


class Keeper:
    """For the loop's thread alone, after `open`.

    Without a table it keeps nothing: a slot ends with its daemon.

    Args:
        path: Of the table; None for none.
        given: What the fd store had for this daemon.
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        boot: str = "",
        fds: FdStore | None = None,
        given: Sequence[Given] = (),
    ) -> None:
        self._path = path
        self._boot = boot
        self._fds = fds
        self._given = {one.name: one.fd for one in given}
        self._table: Table | None = None
        self._rows: dict[int, int] = {}
        self._jobs: dict[str, int] = {}
        self._jobs_before: dict[str, JobRecord] = {}
        self._free: list[int] = []
        self._end = 0
        self._pushed: set[int] = set()
        # Slots of before without their memory: whoever has it may hand it back.
        self._awaited: dict[int, SlotRecord] = {}
        self._awaited_by: dict[_SlotOf, int] = {}
        self._failing = False

    def open(self) -> None:
        """Read what there is. Blocks for a moment; what cannot be read is told of and passed over."""
        if self._path is not None:
            try:
                self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
                self._table = Table(self._path, boot=self._boot)
            except (StateError, OSError) as error:
                log.warning("memory.forgetful", reason=str(error))
        taken = self._table.rows if self._table is not None else {}
        self._end = max(taken, default=-1) + 1
        self._free = [number for number in range(self._end) if number not in taken]

    @property
    def nbytes(self) -> int:
        """What the slots of before take together, whoever has their memory just now."""
        return sum(one.nbytes for _, one in self._records() if isinstance(one, SlotRecord))

    def job(self, unit: str) -> JobRecord | None:
        """What is known of a job of before."""
        return self._jobs_before.get(unit)

    def slots(self) -> list[tuple[int, SlotRecord, int | None]]:
        """All slots of before, each with its row and the fd that was kept for it, the caller's now."""
        found = []
        for number, record in self._records():
            if isinstance(record, JobRecord):
                self._jobs[record.unit] = number
                self._jobs_before[record.unit] = record
            else:
                fd = self._given.pop(_name(number), None)
                found.append((number, record, fd))
                if fd is None:
                    self._awaited[number] = record
                    self._awaited_by[_slot_of(record)] = number
                else:
                    self._pushed.add(number)
        for name, fd in self._given.items():
            log.warning("memory.unknown", name=name)
            os.close(fd)
            if self._fds is not None:
                self._fds.remove(name)
        self._given = {}
        return sorted(found, key=lambda one: one[1].arrived)

    def awaited(self, workload: Workload, number: int) -> tuple[int, SlotRecord] | None:
        """A slot of *workload* of before whose memory is still missing, with its row."""
        row = self._awaited_by.get((workload.unit, workload.rank, workload.process, number))
        return None if row is None else (row, self._awaited[row])

    def waiting(self) -> list[SlotRecord]:
        """All slots of before whose memory is still missing."""
        return list(self._awaited.values())

    def give_up(self, record: SlotRecord) -> None:
        """One of `waiting` does not come any more."""
        row = self._awaited_by.get(_slot_of(record))
        if row is not None:
            self.remove(row)

    def found(self, row: int, slot: Slot) -> None:
        """The slot of a row is there again."""
        self._wait_no_more(row)
        self._rows[slot.key] = row

    def remove(self, row: int) -> None:
        """A slot of before is gone for good."""
        self._wait_no_more(row)
        self._clear(row)

    def note(self, slot: Slot, region: Region) -> None:
        """Write down what a slot is now. Before anybody is told of it."""
        if self._table is None or slot.condemned:
            return
        row = self._rows.get(slot.key)
        if row is None:
            row = self._rows[slot.key] = self._next()
        if self._put(row, of_slot(slot, region.inode)) and row not in self._pushed:
            self._pushed.add(row)
            if self._fds is not None:
                self._fds.push(_name(row), region.fd)

    def note_job(self, job: Job) -> None:
        """Write down what is known of a job beyond its slots."""
        if self._table is None:
            return
        if job.name not in self._jobs:
            self._jobs[job.name] = self._next()
        self._put(self._jobs[job.name], of_job(job))

    def forget_jobs(self, left: Collection[str]) -> None:
        """Of no other job is anybody left, or awaited.

        Args:
            left: Units.
        """
        awaited = {record.unit for record in self._awaited.values()}
        for unit in [one for one in self._jobs if one not in left and one not in awaited]:
            self._jobs_before.pop(unit, None)
            self._clear(self._jobs.pop(unit))

    def forget(self, slot: Slot) -> None:
        """It counts no more."""
        row = self._rows.pop(slot.key, None)
        if row is not None:
            self._clear(row)

    def close(self) -> None:
        """Leave all as it is, for the next daemon."""
        for fd in self._given.values():
            os.close(fd)
        if self._table is not None:
            self._table.close()
            self._table = None

    def stop(self) -> None:
        """The last of all: see that the fd store has what it was given. Blocks for a moment."""
        if self._fds is not None:
            self._fds.stop()

    def _wait_no_more(self, row: int) -> None:
        record = self._awaited.pop(row, None)
        if record is not None:
            self._awaited_by.pop(_slot_of(record), None)

    def _records(self) -> Iterator[tuple[int, Record]]:
        for number, row in list(self._table.rows.items()) if self._table is not None else []:
            record = decode(row)
            if record is None:
                self._clear(number)
            else:
                yield number, record

    def _next(self) -> int:
        if self._free:
            return self._free.pop()
        self._end += 1
        return self._end - 1

    def _put(self, row: int, record: Record) -> bool:
        assert self._table is not None
        try:
            self._table.put(row, encode(record))
        except (OSError, ValueError) as error:
            if isinstance(record, JobRecord) and len(record.launches) > 1:
                return self._put(row, replace(record, launches=record.launches[:1]))
            if not self._failing:
                log.warning("memory.unrecorded", unit=record.unit, reason=str(error))
            self._failing = True
            return False
        self._failing = False
        return True

    def _clear(self, row: int) -> None:
        if self._table is not None:
            self._table.remove(row)
        self._free.append(row)
        if row in self._pushed:
            self._pushed.discard(row)
            if self._fds is not None:
                self._fds.remove(_name(row))


def _slot_of(record: SlotRecord) -> _SlotOf:
    return record.unit, record.rank, record.process, record.number


def _name(row: int) -> str:
    """Short: systemd passes all names in one variable, of at most 128 KiB."""
    return f"s{row}"

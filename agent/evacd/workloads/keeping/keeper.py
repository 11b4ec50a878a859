"""Writes down what becomes of each slot, and finds it again in the next daemon."""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import structlog

from evacd.errors import StateError
from evacd.workloads.job import Job, Process, Slot, Workload
from evacd.workloads.keeping.fds import FdStore, Given
from evacd.workloads.keeping.table import Table, rows_of
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

_MOST_TOLD = 256

# Unit, rank, process and number: what its owner knows of a slot.
_SlotOf: TypeAlias = tuple[str, int, Process, int]


class Keeper:
    """For the loop's thread alone, after `open`.

    Without a table it keeps nothing: a slot ends with its daemon. What an fd store gave, and no row
    tells of, is thrown away only where the table is known to be whole.

    Args:
        paths: Of the table: the first that can be used is, and the next where that one is full.
        given: What the fd store had for this daemon.
        former: Where a daemon before this one may have had the table, in this boot; nothing is at the
            first path yet.
    """

    def __init__(
        self,
        *paths: Path,
        boot: str = "",
        fds: FdStore | None = None,
        given: Sequence[Given] = (),
        former: Path | None = None,
    ) -> None:
        self._paths = list(paths)
        self._former = former
        self._boot = boot
        self._fds = fds
        self._given = list(given)
        # Whose rows are not to be read, or were lost: told, and kept for as long as one may come.
        self._unplaced: list[Given] = []
        self._sure = True
        self._table: Table | None = None
        self._rows: dict[int, int] = {}
        self._jobs: dict[str, int] = {}
        self._jobs_before: dict[str, JobRecord] = {}
        self._free: list[int] = []
        self._end = 0
        # Under which name the fd store has a row's memory.
        self._pushed: dict[int, str] = {}
        # Slots of before without their memory: whoever has it may hand it back.
        self._awaited: dict[int, SlotRecord] = {}
        self._awaited_by: dict[_SlotOf, int] = {}
        self._unrecorded: set[str] = set()

    def open(self) -> None:
        """Read what there is. Blocks for a moment; what cannot be read is told of and passed over.

        Raises:
            AlreadyRunning: Another daemon has the table.
        """
        failed = []
        if self._former is not None:
            self._move(self._former, self._paths[0])
        while self._table is None and self._paths:
            path = self._paths.pop(0)
            self._table = self._opened(path, salvage=bool(self._given))
            if self._table is None:
                failed.append(path)
        self._sure = self._sure and self._table is not None and self._table.sound
        for path in failed if self._table is not None else ():
            self._sure = self._take_over(rows_of(path, boot=self._boot)) and self._sure
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
        found: list[tuple[int, SlotRecord, int | None]] = []
        given, more = _by_inode(self._given)
        self._given = []
        for number, record in self._records():
            if isinstance(record, JobRecord):
                self._jobs[record.unit] = number
                self._jobs_before[record.unit] = record
            elif (one := given.pop(record.inode, None)) is None:
                found.append((number, record, None))
                self._wait(number, record)
            else:
                found.append((number, record, one.fd))
                self._pushed[number] = one.name
        for one in more:
            os.close(one.fd)
        self._unplaced = list(given.values())
        if self._unplaced:
            log.warning("memory.unknown", slots=len(self._unplaced), kept=not self._sure)
        if self._sure:
            self.let_go()
        return sorted(found, key=lambda one: one[1].arrived)

    def let_go(self) -> None:
        """Nobody comes any more for what no row tells of."""
        names = set(self._pushed.values())
        for one in self._unplaced:
            os.close(one.fd)
            # Under one name there may be several; with the name all of them would go.
            if self._fds is not None and one.name not in names:
                self._fds.remove(one.name)
        self._unplaced = []

    def misfit(self, row: int, record: SlotRecord, *, lasting: bool) -> None:
        """What came for a row is not its memory: its owner may have it still.

        Args:
            lasting: It never will be, and is of no use to the next daemon, either.
        """
        if lasting:
            self._unpush(row)
        self._wait(row, record)

    def shown(self) -> dict[str, object]:
        """For the status."""
        return {
            "remembers": self._table is not None,
            "awaited": len(self._awaited),
            "unplaced": len(self._unplaced),
            "unstored": self._fds.waiting if self._fds is not None else 0,
        }

    def awaited(self, workload: Workload, number: int) -> tuple[int, SlotRecord] | None:
        """A slot of *workload* of before whose memory is still missing, with its row."""
        row = self._awaited_by.get((workload.unit, workload.rank, workload.process, number))
        return None if row is None else (row, self._awaited[row])

    def waiting(self) -> list[SlotRecord]:
        """All slots of before whose memory is still missing."""
        return list(self._awaited.values())

    def awaits(self, unit: str, uid: int | None = None) -> bool:
        """Whether memory of *unit* is still missing; of one user's processes, where one is named."""
        return any(
            one.unit == unit and uid in (None, one.process.uid) for one in self._awaited.values()
        )

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
            self._pushed[row] = _name(region.inode)
            if self._fds is not None:
                self._fds.push(self._pushed[row], region.fd)

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
        for one in (*self._given, *self._unplaced):
            os.close(one.fd)
        self._given, self._unplaced = [], []
        if self._table is not None:
            self._table.close()
            self._table = None

    def stop(self) -> None:
        """The last of all: see that the fd store has what it was given. Blocks for a moment."""
        if self._fds is not None:
            self._fds.stop()

    def _opened(self, path: Path, *, salvage: bool = False) -> Table | None:
        try:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            return Table(path, boot=self._boot, salvage=salvage)
        except (StateError, OSError) as error:
            log.warning("memory.forgetful", path=str(path), reason=str(error))
            return None

    def _take_over(self, rows: Mapping[int, bytes] | None) -> bool:
        """What was written elsewhere; whether all of it is here now."""
        assert self._table is not None
        try:
            for number, row in (rows or {}).items():
                self._table.put(number, row)
        except (OSError, ValueError):
            return False
        return rows is not None

    def _move(self, former: Path, here: Path) -> None:
        """All that *former* holds, in a table at *here*, which is there as a whole or not at all."""
        rows, old = rows_of(former, boot=self._boot), None
        if rows != {}:
            # Held meanwhile: it may be another daemon's, that runs.
            with suppress(StateError, OSError):
                old = Table(former, boot=self._boot, salvage=bool(self._given))
                rows = old.rows
        if rows:
            beside = here.with_name(f"{here.name}.new")
            try:
                here.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
                beside.unlink(missing_ok=True)
                new = Table(beside, boot=self._boot)
                try:
                    for number, row in rows.items():
                        new.put(number, row)
                    beside.rename(here)
                finally:
                    new.close()
            except (StateError, OSError, ValueError):
                # There is no room: it goes on where it is.
                self._paths.reverse()
                rows = None
        self._sure = old.sound if old is not None else rows is not None
        if old is not None:
            old.close()
        if rows is not None:
            with suppress(OSError):
                former.unlink()

    def _moved(self) -> bool:
        """Whether there is room elsewhere, and all is there from now on."""
        former = self._table
        while former is not None and self._paths:
            self._table = self._opened(self._paths.pop(0)) or former
            if self._table is not former:
                if self._take_over(former.rows):
                    former.close()
                    # Who starts next looks there first.
                    with suppress(OSError):
                        former.path.unlink()
                    return True
                self._table.close()
                self._table = former
        return False

    def _wait(self, row: int, record: SlotRecord) -> None:
        self._awaited[row] = record
        self._awaited_by[_slot_of(record)] = row

    def _unpush(self, row: int) -> None:
        name = self._pushed.pop(row, None)
        if name is not None and self._fds is not None:
            self._fds.remove(name)

    def _wait_no_more(self, row: int) -> None:
        record = self._awaited.pop(row, None)
        if record is not None:
            self._awaited_by.pop(_slot_of(record), None)

    def _records(self) -> Iterator[tuple[int, Record]]:
        for number, row in list(self._table.rows.items()) if self._table is not None else []:
            record = decode(row)
            if record is None:
                self._sure = False
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
            if isinstance(error, OSError) and self._moved():
                return self._put(row, record)
            if isinstance(record, JobRecord) and len(record.launches) > 1:
                return self._put(row, replace(record, launches=record.launches[:1]))
            # Each once: what fails for one job goes on to work for the others.
            if record.unit not in self._unrecorded and len(self._unrecorded) < _MOST_TOLD:
                self._unrecorded.add(record.unit)
                log.warning("memory.unrecorded", unit=record.unit, reason=str(error))
            return False
        return True

    def _clear(self, row: int) -> None:
        if self._table is not None:
            self._table.remove(row)
        self._free.append(row)
        self._unpush(row)


def _slot_of(record: SlotRecord) -> _SlotOf:
    return record.unit, record.rank, record.process, record.number


def _by_inode(given: Sequence[Given]) -> tuple[dict[tuple[int, int], Given], list[Given]]:
    """What was given, by the file that it is; and what is given twice."""
    found: dict[tuple[int, int], Given] = {}
    more = []
    for one in given:
        stat = os.fstat(one.fd)
        if found.setdefault((stat.st_dev, stat.st_ino), one) is not one:
            more.append(one)
    return found, more


def _name(inode: tuple[int, int]) -> str:
    """Short: systemd passes all names in one variable, of at most 128 KiB.

    A row is used again, its memory never is: what a kill left in the store is nobody else's.
    """
    return f"m{inode[1]:x}"

"""The incident journal: one SQLite file, written by a thread of its own.

A disk that hangs or is full must never hold up the event loop or the flush: `Journal.record`
only puts the event in a queue. The writer takes what is there and commits it in one
transaction, so that events come to the disk as fast as it can fsync them, and what was
committed outlives the process and the power. The format is `evac.incident`'s.
"""

import asyncio
import json
import queue
import sqlite3
import threading
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import structlog

from evac.incident import APPLICATION_ID, SCHEMA, SCHEMA_VERSION
from evacd.clock import Clock
from evacd.errors import StateError
from evacd.facts import Notice, Order, Scope

log = structlog.get_logger()

# Incidents of the node that are kept, and of jobs that went by themselves, which any user may open and
# push out none of the node's by; each is some kilobytes.
KEPT = 500
# Events that wait for the disk at most; beyond, they are counted and dropped.
MOST_WAITING = 20_000
_STOP_SECONDS = 2.0
_AGAIN_SECONDS = 0.5


@dataclass(frozen=True)
class _Write:
    """For the writer, who never splits it: an SQL statement and its values, or some in their order."""

    statements: tuple[tuple[str, tuple[Any, ...]], ...]


@dataclass(frozen=True)
class _Settled:
    """Reached in the queue: all before it is written, or has failed."""

    tell: Callable[[], None]


_OPEN = """
INSERT INTO incident (id, node, boot, began, source, kind, confidence, window_seconds)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET ended = NULL
"""
_RECORD = """
INSERT INTO event (incident, at, name, data)
SELECT number, ?, ?, ? FROM incident WHERE id = ?
"""
_LAST = """
SELECT incident.id, max(event.at) FROM incident JOIN event ON event.incident = incident.number
GROUP BY incident.number ORDER BY incident.number DESC LIMIT 64
"""
_CLOSE = "UPDATE incident SET ended = ? WHERE id = ?"
_PRUNE = """
DELETE FROM incident WHERE number IN (SELECT number FROM (
    SELECT number, row_number() OVER (PARTITION BY source = ? ORDER BY number DESC) AS place
    FROM incident
) WHERE place > ?)
"""
_PRUNED = _PRUNE, (Scope.WORKLOAD.value, KEPT)
# Of incidents that are over, to so many of the last ones something is still added.
_REMEMBERED = 64


class Journal:
    """Writes incidents; `evac.incident.load` reads them."""

    def __init__(self, path: Path, clock: Clock) -> None:
        """Open or create the file, and start the writer. Blocks for a moment.

        A file that is not a journal of this version, or is damaged, is moved aside.

        Raises:
            StateError: Nothing can be written at *path*.
        """
        self._path = path
        self._clock = clock
        self._connection = _prepared(path, clock)
        self._seen: dict[str, float] = {}
        # What an earlier daemon recorded last, of each incident.
        self._left: dict[str, float] = dict(self._connection.execute(_LAST).fetchall())
        # In the order in which they ended.
        self._closed: dict[str, None] = {}
        self._queue: queue.SimpleQueue[_Write | _Settled | None] = queue.SimpleQueue()
        self._dropped = 0
        self._failing = False
        # A daemon thread: a disk that hangs must not keep the process from ending.
        self._writer = threading.Thread(target=self._write_all, name="journal", daemon=True)
        self._writer.start()

    def open(self, order: Order, notice: Notice, *, node: str, boot: str) -> None:
        """Begin the incident of *order*; its events count from when *notice* was seen."""
        self._seen[order.id] = notice.seen
        self._closed.pop(order.id, None)
        since = timedelta(seconds=self._clock.monotonic() - notice.seen)
        began = (self._clock.utc() - since).astimezone(UTC).isoformat(timespec="milliseconds")
        values = (
            order.id,
            node,
            boot,
            began,
            notice.source,
            notice.kind,
            order.confidence.word,
            order.deadline - notice.seen,
        )
        self._put((_OPEN, values))

    def resume(self, incident_id: str, *, since_seconds: float) -> None:
        """Go on with an incident that an earlier daemon opened.

        Args:
            since_seconds: How long ago its first notice was seen. Where only the wall clock could tell, over a
                boot, and has been set back since, it is at least as long as what is on record.
        """
        since = max(since_seconds, self._left.get(incident_id, 0.0))
        self._seen.setdefault(incident_id, self._clock.monotonic() - since)

    def record(self, incident_id: str, name: str, data: Mapping[str, Any]) -> None:
        """Write one event of an incident that was opened; never blocks, never raises.

        Args:
            name: ``stage.verb``.
            data: JSON values; what is none is written as its text.
        """
        if self._knows(incident_id, name):
            self._put((_RECORD, self._event(incident_id, name, data)))

    def close(self, incident_id: str) -> None:
        """The order is over. Events that come later are still recorded."""
        if incident_id in self._seen:
            self._put((_CLOSE, (self._since(incident_id), incident_id)), _PRUNED)
            self._ended(incident_id)

    def finish(self, incident_id: str, name: str, data: Mapping[str, Any]) -> None:
        """Its last event, as `record`, and `close`: on the disk are both of them or neither."""
        if self._knows(incident_id, name):
            last = (_RECORD, self._event(incident_id, name, data))
            self._put(last, (_CLOSE, (self._since(incident_id), incident_id)), _PRUNED)
            self._ended(incident_id)

    async def settled(self, *, within: float | None = None) -> None:
        """Wait until all that was recorded so far is on the disk, or could not be written.

        Args:
            within: Seconds; after them a disk that hangs is waited for no longer.
        """
        loop = asyncio.get_running_loop()
        written = asyncio.Event()

        def tell() -> None:
            # The loop may be gone by then, and with it whoever waited.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(written.set)

        self._queue.put(_Settled(tell))
        if self._writer.is_alive():
            with suppress(TimeoutError):
                async with asyncio.timeout(within):
                    await written.wait()

    def stop(self) -> None:
        """Write what is left and close the file; at most 2 seconds, whatever the disk does."""
        self._queue.put(None)
        self._writer.join(_STOP_SECONDS)
        if self._writer.is_alive():
            log.warning("journal.abandoned", path=str(self._path))

    def _since(self, incident_id: str) -> float:
        return round(self._clock.monotonic() - self._seen[incident_id], 6)

    def _knows(self, incident_id: str, name: str) -> bool:
        known = incident_id in self._seen
        if not known:
            log.warning("journal.ignored", incident=incident_id, name=name)
        return known

    def _event(self, incident_id: str, name: str, data: Mapping[str, Any]) -> tuple[Any, ...]:
        try:
            text = json.dumps(dict(data), default=str)
        except (TypeError, ValueError, RecursionError):
            text = json.dumps({"unreadable": repr(data)[:1000]})
        return self._since(incident_id), name, text, incident_id

    def _ended(self, incident_id: str) -> None:
        self._closed.pop(incident_id, None)
        self._closed[incident_id] = None
        for old in list(self._closed)[:-_REMEMBERED]:
            del self._closed[old], self._seen[old]

    def _put(self, *statements: tuple[str, tuple[Any, ...]]) -> None:
        if self._queue.qsize() < MOST_WAITING:
            self._queue.put(_Write(statements))
            return
        if not self._dropped:
            log.warning("journal.overrun", path=str(self._path), waiting=MOST_WAITING)
        self._dropped += 1

    # --- the writer's thread -------------------------------------------------------------

    def _write_all(self) -> None:
        with closing(self._connection):
            waiting: list[_Write] = []
            over = False
            while not over:
                batch: list[_Write | _Settled | None] = []
                with suppress(queue.Empty):
                    # What did not go in is tried again, be it that no event follows: the disk may
                    # have room by then.
                    batch.append(self._queue.get(timeout=_AGAIN_SECONDS if waiting else None))
                    while batch[-1] is not None:
                        batch.append(self._queue.get_nowait())
                waiting += [item for item in batch if isinstance(item, _Write)]
                if self._written(waiting):
                    waiting = []
                # It never grows without end.
                del waiting[:-MOST_WAITING]
                for item in batch:
                    if isinstance(item, _Settled):
                        item.tell()
                over = None in batch

    def _written(self, writes: list[_Write]) -> bool:
        try:
            with self._connection:
                for write in writes:
                    for sql, values in write.statements:
                        self._execute(sql, values)
        except sqlite3.Error as error:
            if not self._failing:
                log.warning("journal.failed", path=str(self._path), reason=str(error))
            self._failing = True
            return False
        if self._failing:
            log.info("journal.recovered", path=str(self._path))
        self._failing = False
        return True

    def _execute(self, sql: str, values: tuple[Any, ...]) -> None:
        try:
            self._connection.execute(sql, values)
        except (sqlite3.InterfaceError, sqlite3.ProgrammingError, ValueError) as error:
            # A value that no disk would take: trying it again would hold up all others.
            log.error("journal.refused", path=str(self._path), reason=str(error))


def _prepared(path: Path, clock: Clock) -> sqlite3.Connection:
    """A connection to a journal at *path* that can be written.

    Raises:
        StateError: It cannot.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        wrong = _judged(path)
        if wrong is not None:
            aside = _move_aside(path, clock)
            log.warning("journal.moved_aside", path=str(path), to=str(aside), reason=wrong)
        return _connected(path)
    except OSError as error:
        raise StateError(str(path), error.strerror or type(error).__name__) from error
    except sqlite3.Error as error:
        raise StateError(str(path), str(error)) from error


def _judged(path: Path) -> str | None:
    """Why what lies at *path* cannot be gone on with; None where it can, or nothing is there."""
    if not path.exists() or path.stat().st_size == 0:
        return None
    try:
        with closing(sqlite3.connect(path, timeout=2.0)) as connection:
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if application != APPLICATION_ID:
                return "it is not evacd's journal"
            if version != SCHEMA_VERSION:
                return f"its schema is {version}, this evacd writes {SCHEMA_VERSION}"
            (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            return None if found == "ok" else f"it is damaged: {found}"
    except sqlite3.OperationalError:
        # Locked, no permission, no such directory: nothing is known to be wrong with it.
        raise
    except sqlite3.DatabaseError as error:
        return str(error)


def _move_aside(path: Path, clock: Clock) -> Path:
    stamp = clock.utc().astimezone(UTC).strftime("%Y%m%dT%H%M%S")
    aside = path.with_name(f"{path.name}.aside-{stamp}")
    count = 1
    while aside.exists():
        count += 1
        aside = path.with_name(f"{path.name}.aside-{stamp}-{count}")
    path.rename(aside)
    for ending in ("-wal", "-shm"):
        with suppress(FileNotFoundError):
            path.with_name(path.name + ending).rename(f"{aside}{ending}")
    return aside


def _connected(path: Path) -> sqlite3.Connection:
    # Opened here, so that whoever starts the daemon hears what is wrong; used by one thread
    # at a time all the same.
    connection = sqlite3.connect(path, timeout=2.0, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        # Commit means on the disk: the machine is about to lose its power.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            connection.executescript(
                f"BEGIN IMMEDIATE; {SCHEMA}; PRAGMA application_id = {APPLICATION_ID};"
                f" PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
            )
        with connection:
            # Also the proof that the file can be written.
            connection.execute(*_PRUNED)
    except BaseException:
        connection.close()
        raise
    return connection

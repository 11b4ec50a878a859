"""The journal's file format, and how to read it.

One SQLite file in WAL mode. `APPLICATION_ID` tells it from any other SQLite file, and
`user_version` holds `SCHEMA_VERSION`. https://www.sqlite.org/fileformat2.html, read 2026-11.
"""

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from evac.errors import EvacError

# "EVAC"
APPLICATION_ID = 0x45564143
SCHEMA_VERSION = 1
SCHEMA = """
CREATE TABLE incident (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    node TEXT NOT NULL,
    boot TEXT NOT NULL,
    began TEXT NOT NULL,
    source TEXT NOT NULL,
    kind TEXT NOT NULL,
    confidence TEXT NOT NULL,
    window_seconds REAL NOT NULL,
    ended REAL
);
CREATE TABLE event (
    number INTEGER PRIMARY KEY,
    incident INTEGER NOT NULL REFERENCES incident (number) ON DELETE CASCADE,
    at REAL NOT NULL,
    name TEXT NOT NULL,
    data TEXT NOT NULL
);
CREATE INDEX event_of_incident ON event (incident);
"""


class JournalError(EvacError):
    """The journal cannot be read; *reason* says why and what to try."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


@dataclass(frozen=True)
class Event:
    """One thing that happened.

    Attributes:
        at: Seconds since the notice was first seen.
        name: ``stage.verb``, past tense: ``flush.finished``.
        data: JSON values.
    """

    at: float
    name: str
    data: Mapping[str, Any]


@dataclass(frozen=True)
class Incident:
    """One order, from notice to report.

    Attributes:
        id: Of the order.
        boot: Kernel boot id of the node.
        began: When the notice was first seen: UTC, ISO 8601.
        source: Of the notice, as `kind` is: ``gcp``, ``preempted``.
        confidence: ``planned``, ``certain`` or ``started``, when the order was given.
        window_seconds: From `began` to the deadline as the order first had it.
        ended: Seconds since the notice; None where nobody closed it: the order still runs,
            or the machine went away.
        events: In the order in which they were recorded.
    """

    id: str
    node: str
    boot: str
    began: str
    source: str
    kind: str
    confidence: str
    window_seconds: float
    ended: float | None
    events: tuple[Event, ...]


def load(
    path: Path, *, last: int = 1, id: str | None = None, source: str | None = None
) -> tuple[Incident, ...]:
    """Read the *last* incidents, oldest first, or the one of order *id*; changes nothing.

    Args:
        source: Only those of this one.

    Returns:
        Empty where nothing is on record.

    Raises:
        JournalError: There is no such file, or it is not a journal that this version reads.
    """
    if not path.is_file():
        raise JournalError(str(path), "there is no journal here; evacd makes it when it starts")
    try:
        with closing(_open(path)) as connection:
            _check(path, connection)
            return _read(connection, last, id, source)
    except sqlite3.Error as error:
        raise JournalError(str(path), f"cannot be read: {error}") from error


def _open(path: Path) -> sqlite3.Connection:
    address = f"file:{quote(str(path.absolute()))}?mode=ro"
    connection = sqlite3.connect(address, uri=True, timeout=2.0)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        connection.close()
        # A WAL file needs its -shm beside it, which a reader who may not write here cannot
        # make. Where no -wal is left either, the file alone is the whole truth.
        if path.with_name(f"{path.name}-wal").exists():
            raise
        connection = sqlite3.connect(f"{address}&immutable=1", uri=True)
    return connection


def _check(path: Path, connection: sqlite3.Connection) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION_ID:
        raise JournalError(str(path), "this is not evacd's journal")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > SCHEMA_VERSION:
        raise JournalError(
            str(path),
            f"was written by a newer evacd (schema {version}, this evac reads"
            f" {SCHEMA_VERSION}); use that version's evac",
        )


_FIELDS = ("id", "node", "boot", "began", "source", "kind", "confidence", "window_seconds", "ended")


def _read(
    connection: sqlite3.Connection, last: int, id: str | None, source: str | None
) -> tuple[Incident, ...]:
    columns = f"SELECT number, {', '.join(_FIELDS)} FROM incident"
    if id is not None:
        rows = connection.execute(f"{columns} WHERE id = ?", (id,)).fetchall()
    else:
        newest_first = f"{columns} WHERE source = ifnull(?, source) ORDER BY number DESC LIMIT ?"
        rows = connection.execute(newest_first, (source, max(last, 0))).fetchall()
    return tuple(
        Incident(**dict(zip(_FIELDS, row[1:], strict=True)), events=_events(connection, row[0]))
        for row in reversed(rows)
    )


def _events(connection: sqlite3.Connection, number: int) -> tuple[Event, ...]:
    rows = connection.execute(
        "SELECT at, name, data FROM event WHERE incident = ? ORDER BY number", (number,)
    )
    return tuple(Event(at, name, _object(data)) for at, name, data in rows)


def _object(text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}

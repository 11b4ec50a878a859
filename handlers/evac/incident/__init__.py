"""The record of one evacuation: read it, judge it, show it. Standard library only.

The daemon writes the journal; this side reads it, also where the daemon is dead or the disk
hangs on another machine.
"""

from evac.incident.place import DEFAULT, place, report_command
from evac.incident.record import (
    APPLICATION_ID,
    SCHEMA,
    SCHEMA_VERSION,
    Event,
    Incident,
    JournalError,
    load,
)
from evac.incident.summary import Ending, Summary, UnitSummary, as_json, summary
from evac.incident.timeline import render

__all__ = [
    "APPLICATION_ID",
    "DEFAULT",
    "SCHEMA",
    "SCHEMA_VERSION",
    "Ending",
    "Event",
    "Incident",
    "JournalError",
    "Summary",
    "UnitSummary",
    "as_json",
    "load",
    "place",
    "render",
    "report_command",
    "summary",
]

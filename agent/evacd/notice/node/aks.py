"""The date in a condition's message of AKS's node-problem-detector. Pure.

``Preempt Scheduled: Sat, 01 Aug 2026 05:41:02 GMT. For more information, see … EventId: …``
The date is the scheduled event's `NotBefore`, an RFC 1123 date in GMT, as Azure's metadata
service wrote it (learn.microsoft.com/azure/virtual-machines/linux/scheduled-events).
Observed messages: Azure/karpenter-provider-azure pkg/controllers/interruption. Read 2026-10.
"""

import re
from datetime import UTC, datetime

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DATE = re.compile(
    r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun), ([0-9]{1,2}) (" + "|".join(_MONTHS) + r") ([0-9]{4})"
    r" ([0-9]{1,2}):([0-9]{2}):([0-9]{2}) (?:GMT|UTC)\b"
)


def date_in(message: str) -> datetime | None:
    """The first date in GMT after the event's name and a colon; None where there is none.

    Another zone is not guessed at: a wrong deadline is worse than none.
    """
    _, colon, rest = message.partition(": ")
    found = _DATE.match(rest.lstrip()) if colon else None
    if found is None:
        return None
    day, month, year, hour, minute, second = found.groups()
    try:
        return datetime(
            int(year),
            _MONTHS.index(month) + 1,
            int(day),
            int(hour),
            int(minute),
            int(second),
            tzinfo=UTC,
        )
    except ValueError:
        return None

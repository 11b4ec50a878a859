"""`EVAC_*` variables that nobody reads, but somebody seems to have meant. Pure.

They are no errors: workloads and sites have variables of their own.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from evacd.config.table import SECTIONS, SETTINGS

# What evac's other commands and workloads read.
OTHERS = (
    "EVAC_CONFIG",
    "EVAC_DAEMON_UID",
    "EVAC_JOB",
    "EVAC_JOURNAL",
    "EVAC_NAMESPACE",
    "EVAC_PEERS",
    "EVAC_PRIORITY",
    "EVAC_RANK",
    "EVAC_RENDEZVOUS",
    "EVAC_WORLD",
)
# More is another word, and not this one mistyped.
_SLIPS = 2


@dataclass(frozen=True)
class Unread:
    """A variable that is set in vain.

    Attributes:
        meant: The variable that it is most like; "" where there is none.
    """

    name: str
    meant: str


def unread(environ: Mapping[str, str]) -> tuple[Unread, ...]:
    """Variables of *environ* that look like settings and are none, by name."""
    known = {one.env for one in SETTINGS} | set(OTHERS)
    by_key = {f"EVAC_{one.key}".upper().replace(".", "_"): one.env for one in SETTINGS}
    found = []
    for name in sorted(environ):
        if not name.startswith("EVAC_") or name in known:
            continue
        meant = by_key.get(name) or _nearest(name, sorted(known))
        if meant or any(name.startswith(f"EVAC_{section.upper()}_") for section in SECTIONS):
            found.append(Unread(name, meant))
    return tuple(found)


def _nearest(name: str, known: Iterable[str]) -> str:
    slips, nearest = min((distance(name, one), one) for one in known)
    return nearest if slips <= _SLIPS else ""


def distance(one: str, other: str) -> int:
    """How many letters have to be put in, left out or exchanged to make *other* of *one*."""
    above = list(range(len(other) + 1))
    for row, letter in enumerate(one, start=1):
        line = [row]
        for column, there in enumerate(other, start=1):
            change = above[column - 1] + (letter != there)
            line.append(min(change, above[column] + 1, line[-1] + 1))
        above = line
    return above[-1]

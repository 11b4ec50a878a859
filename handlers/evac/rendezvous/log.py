"""The job's log in a store: entries are numbered, without gaps, and never change.

::

    log/<n>        one event
    snap           a snapshot: the state after all entries before `at`; older ones are deleted
    beat/<agent>   changes every few seconds for as long as the agent lives

An entry is written with "create unless it is there": so it is either whole or not there, and a writer
that dies in between leaves no gap. To fail is to have been told that there is one more to read.

The snapshot is there from the first agent on, and only ever replaced by compare-and-set: it names the
service of the log that counts in this store (`services`).
"""

from collections.abc import Iterable, Iterator

from evac.rendezvous.keys import Keys
from evac.rendezvous.snapshot import Snapshot, dump, load

SNAPSHOT = "snap"
_BATCH = 64
_ENTRY = "log/"


def entry(number: int) -> str:
    """Key of an entry."""
    return f"{_ENTRY}{number}"


def beat(agent: str) -> str:
    """Key of an agent's pulse."""
    return f"beat/{agent}"


def read_on(keys: Keys, number: int) -> Iterator[bytes]:
    """All entries from *number* on that are there now."""
    # One first: mostly there is no more, and a store answers for one key in one step.
    size = 1
    while True:
        for text in keys.get([entry(number + i) for i in range(size)]):
            if text is None:
                return
            yield text
            number += 1
        size = _BATCH


def find(keys: Keys) -> tuple[bytes, Snapshot | None]:
    """The snapshot, as it lies there ("" where there is none) and as it reads."""
    found = keys.get([SNAPSHOT])[0] or b""
    return found, load(found) if found else None


def snapshot(keys: Keys) -> Snapshot | None:
    """The last one; None where there is none yet."""
    return find(keys)[1]


def append(keys: Keys, number: int, text: bytes) -> int:
    """Write *text* as the first entry from *number* on that is free; which it is.

    For those who need not know what the others said. Nobody may have deleted that far.
    """
    while keys.create(entry(number), text) != text:
        number += 1
    return number


def compact(keys: Keys, made: Snapshot) -> None:
    """Publish *made*, and delete what the snapshot before it had made superfluous.

    One snapshot's worth of entries stays: who is only a little late finds them still there. Pulses
    of agents that were there then, and are not any more, go.
    """
    text, before = find(keys)
    if before is None or before.service != made.service or before.at >= made.at:
        return
    since = Snapshot(made.at, before.at, made.state, made.service)
    if keys.replace(SNAPSHOT, text, dump(since)):
        keys.delete(*map(entry, range(before.since, before.at)))
        # Who was killed takes no pulse along.
        keys.delete(*map(beat, _agents(before) - _agents(made)))


def _agents(of: Snapshot) -> set[str]:
    forming = of.state.forming.agents if of.state.forming else ()
    return {agent.id for agent in (*of.state.round.agents, *forming, *of.state.waiting)}


def erase(keys: Keys, agents: Iterable[str] = ()) -> None:
    """Delete all of it; nothing where there is none."""
    if keys.clear():
        return
    found = snapshot(keys)
    number = found.since if found else 0
    # One at a time: what was there when it was looked at is read to its end by now.
    while keys.get([entry(number)])[0] is not None:
        keys.delete(entry(number))
        number += 1
    keys.delete(SNAPSHOT, *map(beat, agents))

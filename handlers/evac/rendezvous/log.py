"""The job's log in a store: entries are numbered from 0, without gaps, and never change.

::

    log/<n>        one event
    snap           a snapshot: the state after all entries before `at`; older ones are deleted
    beat/<agent>   changes every few seconds for as long as the agent lives

An entry is written with "create unless it is there": so it is either whole or not there, and a writer
that dies in between leaves no gap. To fail is to have been told that there is one more to read.
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


def snapshot(keys: Keys) -> Snapshot | None:
    """The last one; None where there is none yet."""
    found = keys.get([SNAPSHOT])[0]
    return load(found) if found else None


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
    before = snapshot(keys)
    if before is not None and before.at >= made.at:
        return
    at, since = (before.at, before.since) if before else (0, 0)
    keys.put(SNAPSHOT, dump(Snapshot(made.at, at, made.state)))
    for number in range(since, at):
        keys.delete(entry(number))
    # Who was killed takes no pulse along.
    for agent in _agents(before) - _agents(made):
        keys.delete(beat(agent))


def _agents(of: Snapshot | None) -> set[str]:
    if of is None:
        return set()
    forming = of.state.forming.agents if of.state.forming else ()
    return {agent.id for agent in (*of.state.round.agents, *forming, *of.state.waiting)}


def erase(keys: Keys, end: int, agents: Iterable[str]) -> None:
    """Delete all of it, up to the entry before *end*."""
    found = snapshot(keys)
    for number in range(found.since if found else 0, end):
        keys.delete(entry(number))
    keys.delete(SNAPSHOT)
    for agent in agents:
        keys.delete(beat(agent))

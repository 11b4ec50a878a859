"""A departure as an entry of the job's own log, which its torchrun agents read (`evac.rendezvous`)."""

from typing import Protocol

from evac.rendezvous import log
from evac.rendezvous.choices import NO_CHOICES, Choices
from evac.rendezvous.events import Depart, decode, encode
from evac.rendezvous.rounds import after
from evac.rendezvous.snapshot import load
from evac.rendezvous.state import State
from evacd.rendezvous import Departure

# Entries behind a snapshot that are looked at; agents make a new one each time that a round stands.
_MOST_ENTRIES = 4096


class Keys(Protocol):
    """A connection to a job's store, as much as is needed here. Any `OSError` or `Unreachable` ends it."""

    async def get(self, key: str) -> bytes | None:
        """What the key holds; None where it is not there."""
        ...

    async def create(self, key: str, value: bytes) -> bytes:
        """Write unless it is there; what it holds now."""
        ...


def entry_of(departure: Departure) -> bytes:
    """What is written: the same for every try, so that a repeated one finds itself."""
    generation = departure.generation
    return encode(
        Depart(
            departure.word.value,
            departure.node,
            departure.boot,
            departure.sequence,
            order=departure.order,
            seconds_left=round(departure.seconds_left, 3),
            step=generation.step if generation else -1,
            incarnation=generation.incarnation if generation else 0,
            store=departure.store[:1024],
            reason=departure.reason[:1024],
            job=departure.job,
        )
    )


async def append(keys: Keys, text: bytes, *, served: bool = False) -> State | None:
    """Write *text* as the first entry that is free.

    Never in front of the last snapshot: what lies there is deleted, and nobody reads it. A store that has
    come back empty may be given a new one, by the agents, while this is written: it is looked at again.
    (Where there is none yet, they look for what was written before it.)

    Args:
        served: Only where the log is served by now.

    Returns:
        What is known of the job by then, *text* included; None where the log is not served.
    """
    first, state = await _begin(keys)
    if served and not state.term:
        return None
    while True:
        number = first
        while (found := await keys.create(log.entry(number), text)) != text:
            state = _with(state, found, number - first)
            number += 1
        at, latest = await _begin(keys)
        if at == first:
            return _with(state, text, 0)
        first, state = at, latest


def heirs(state: State) -> tuple[str, ...]:
    """``host:port`` of where the log may go on, once the node that serves it has left."""
    return tuple(agent.standby for agent in state.successors()) if state.moves else ()


async def choices(keys: Keys) -> Choices:
    """What the jobs of this log have chosen by now."""
    number, state = await _begin(keys)
    for count in range(_MOST_ENTRIES):
        if (found := await keys.get(log.entry(number + count))) is None:
            return state.choices
        state = _with(state, found, count)
    return NO_CHOICES


async def _begin(keys: Keys) -> tuple[int, State]:
    """From where the log is read on, and what was said before."""
    found = await keys.get(log.SNAPSHOT)
    snapshot = load(found) if found is not None else None
    return (snapshot.at, snapshot.state) if snapshot else (0, State())


def _with(state: State, text: bytes, count: int) -> State:
    """Departures alone say anything of a choice; who fills a log for ever is not listened to."""
    event = decode(text) if count < _MOST_ENTRIES else None
    return after(state, event) if isinstance(event, Depart) else state

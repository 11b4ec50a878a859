"""A departure as an entry of the job's own log, which its torchrun agents read (`evac.rendezvous`)."""

from typing import Protocol

from evac.rendezvous import log
from evac.rendezvous.events import Depart, encode
from evac.rendezvous.snapshot import load
from evacd.rendezvous import Departure


class Keys(Protocol):
    """A connection to a job's store, as much as is needed here. Any `OSError` ends it."""

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
        )
    )


async def append(keys: Keys, text: bytes) -> None:
    """Write *text* as the first entry that is free.

    Never in front of the last snapshot: what lies there is deleted, and nobody reads it.
    """
    found = await keys.get(log.SNAPSHOT)
    snapshot = load(found) if found is not None else None
    number = snapshot.at if snapshot else 0
    while await keys.create(log.entry(number), text) != text:
        number += 1

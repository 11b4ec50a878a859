"""The peers that a group knows by now: a store for each, and who is not to be asked for a while."""

from dataclasses import replace
from typing import TypeVar

from evac._clock import Monotonic
from evac.store.location import Location
from evac.store.peer import PeerStore
from evac.store.peer_links import Pace

V = TypeVar("V")
# A peer that did not answer, or leaves, is the last to be offered a body for so long.
AWAY_SECONDS = 60.0
# Nodes come and go for months; a job has fewer at once, and one that was forgotten is met anew.
MOST = 1024


class KnownPeers:
    """By address, ``host:port``.

    Args:
        location: Of the group; a peer's has its own address.
        clock: Monotonic seconds.
    """

    def __init__(self, location: Location, looks: Pace, clock: Monotonic) -> None:
        self._location = location
        self._looks = looks
        self._clock = clock
        self._stores: dict[str, PeerStore] = {}
        self._away: dict[str, float] = {}
        self._gone: dict[str, float] = {}

    def store(self, address: str) -> PeerStore:
        """That peer's memory."""
        if (store := self._stores.get(address)) is None:
            there = replace(self._location, bucket=address)
            store = PeerStore(there, looks=self._looks, clock=self._clock)
            _note(self._stores, address, store)
        return store

    def leave_alone(self, address: str, *, gone: bool) -> None:
        """It does not answer, or leaves: the last to be offered a body; where it is *gone*, not asked at all."""
        until = self._clock() + AWAY_SECONDS
        _note(self._away, address, until)
        if gone:
            _note(self._gone, address, until)

    def is_away(self, address: str) -> bool:
        """Whether it is the last to be offered a body."""
        return self._away.get(address, 0.0) > self._clock()

    def is_gone(self, address: str) -> bool:
        """Whether there was no sign of its host: each further call would wait as long."""
        return self._gone.get(address, 0.0) > self._clock()


def _note(known: dict[str, V], address: str, value: V) -> None:
    known.pop(address, None)
    if len(known) >= MOST:
        del known[next(iter(known))]
    known[address] = value

"""Thins out the places that this node writes to: with no more reading than is new, and nothing that is on its way."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from evac.commit import Known, retain
from evac.generation import Generation
from evac.store import Owner, Store

# A node that lives for months has had many jobs; of the last ones it is remembered what lies there.
_REMEMBERED = 64


@dataclass(frozen=True)
class Place:
    """Where a job's generations lie, for whoever thins them out."""

    store: str
    prefix: str
    owner: Owner


class Thinning:
    """One for all that writes on this node: flushes, quiet time and drills."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Known] = {}
        self._written: Counter[tuple[str, str, Generation]] = Counter()

    @property
    def remembered(self) -> int:
        """Of how many places it is known what lies there."""
        return len(self._known)

    @contextmanager
    def spared(self, store: str, prefix: str, generation: Generation) -> Iterator[None]:
        """While it is being written nobody here deletes it, even where a newer one is whole by now."""
        key = (store, prefix, generation)
        self._written[key] += 1
        try:
            yield
        finally:
            self._written[key] -= 1
            if not self._written[key]:
                del self._written[key]

    async def thin(self, store: Store, place: Place, *, keep: int) -> None:
        """Delete what is older than the newest *keep* generations; see `retain`.

        Args:
            store: The one of that place.

        Raises:
            StoreError: It was not all done.
        """
        where = (place.store, place.prefix)
        known = self._known.pop(where, None) or Known()
        self._known[where] = known
        for oldest in list(self._known)[:-_REMEMBERED]:
            del self._known[oldest]
        await retain(
            store,
            place.prefix,
            keep=keep,
            known=known,
            busy=lambda one: (*where, one) in self._written,
        )

"""The memory of several peers as one store: ``evac://job``, or by name ``evac://a:9912,b:9912``.

What one node puts of one job goes to one peer, chosen by rendezvous hashing over the node and the job: nodes that
leave together spread over those that stay, without asking anybody. A peer that leaves itself, is full
or does not answer is passed over, and the next in that order takes its place. Reads ask them all: who reads after
a loss does not know who has what. A peer's own daemon refuses while it leaves, so that a node that leaves
never puts anything into its own memory, even where it is named among its job's peers.

Turned down: the least loaded peer. Its load is known when it is asked, and nodes that leave together ask
at the same moment and are all sent to the same one.
"""

import os
import socket
from asyncio import TaskGroup
from collections.abc import Awaitable, Callable, Iterable, Sequence
from hashlib import blake2b
from threading import Lock
from typing import TypeVar

from evac._clock import Monotonic, monotonic
from evac.errors import StoreError, StoreMissing, StoreRejected, StoreUnavailable
from evac.store import Entry
from evac.store.keys import split
from evac.store.location import JOB, Location, is_address, parse
from evac.store.peer import OPTIONS, PeerLeaving, PeerStore, token_path

T = TypeVar("T")
# What a process that has registered nobody goes by: "host:port,host:port".
VARIABLE = "EVAC_PEERS"
# A peer that did not answer, or leaves, is left alone for so long.
AWAY_SECONDS = 60.0


class PeerGroup:
    """A `Store` in the memory of several nodes.

    Args:
        location: As `parse` gave it.
        members: Addresses (``host:port``) of those that may have, or take, what is under a key.
        node: Who puts; nodes of other names choose other peers.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        location: Location,
        members: Callable[[str], Iterable[str]],
        *,
        node: str,
        clock: Monotonic = monotonic,
    ) -> None:
        self._location = location
        self._members = members
        self._node = node
        self._clock = clock
        self._stores: dict[str, PeerStore] = {}
        self._away: dict[str, float] = {}

    @classmethod
    def from_url(
        cls, url: str, members: Callable[[str], Iterable[str]] | None = None
    ) -> "PeerGroup":
        """The store behind ``evac://job`` or ``evac://host:port,host:port``.

        Args:
            members: Who they are, for ``evac://job``; those in ``EVAC_PEERS`` by default.

        Raises:
            ConfigError: Malformed, or it holds what may not stand in a URL.
        """
        location = parse(url, options=OPTIONS)
        token_path(location)  # a malformed one is told now
        if location.bucket == JOB:
            return cls(location, members or _from_environment, node=socket.gethostname())
        named = tuple(location.bucket.split(","))
        return cls(location, lambda _: named, node=socket.gethostname())

    def __repr__(self) -> str:
        return f"PeerGroup({self.url!r})"

    @property
    def url(self) -> str:
        """As configured, without anything secret."""
        return self._location.url

    async def put(
        self, key: str, data: memoryview, *, progress: Callable[[int], None] | None = None
    ) -> None:
        """See `Store.put`: to the first peer that takes it; *progress* hears of no byte twice."""
        split(key)
        told, lock = 0, Lock()

        async def attempt(store: PeerStore) -> None:
            written = 0

            def further(nbytes: int) -> None:
                nonlocal told, written
                with lock:
                    written += nbytes
                    step = max(written - told, 0)
                    told += step
                if progress is not None and step:
                    progress(step)

            await store.put(key, data, progress=further)

        await self._first(key, attempt)

    async def create(self, key: str, data: bytes) -> bool:
        """See `Store.create`: nowhere where any peer that answers has it."""
        split(key)
        if await self._holders(key):
            return False
        return await self._first(key, lambda store: store.create(key, data))

    async def get(self, key: str) -> bytes:
        """See `Store.get`; at most 256 MiB."""
        split(key)
        return await (await self._holder(key)).get(key)

    async def read(self, key: str, offset: int, into: memoryview) -> int:
        """See `Store.read`."""
        split(key)
        return await (await self._holder(key)).read(key, offset, into)

    async def list(self, prefix: str) -> Sequence[Entry]:
        """See `Store.list`: what any peer has that answers."""
        if prefix:
            split(prefix)
        found: dict[str, Entry] = {}
        for _, entries in await self._all(f"{prefix}/" if prefix else "", lambda s: s.list(prefix)):
            for entry in entries:
                found.setdefault(entry.key, entry)
        return sorted(found.values(), key=lambda entry: entry.key)

    async def delete(self, key: str) -> None:
        """See `Store.delete`: everywhere."""
        split(key)
        await self._all(key, lambda store: store.delete(key))

    async def prepare(self, prefix: str) -> None:
        """See `Store.prepare`: memory has no owners."""
        split(prefix)

    async def clean(self, *, older_than: float = 60.0) -> int:
        """Nothing to do: see `PeerStore.clean`."""
        return 0

    # --- who ------------------------------------------------------------------------------

    def order(self, key: str) -> tuple[str, ...]:
        """The peers for what this node puts under *key*, the first choice first; those away last."""
        whose = "/".join(key.split("/")[:2])
        now = self._clock()

        def weight(address: str) -> tuple[bool, bytes]:
            text = f"{whose}\0{self._node}\0{address}".encode()
            return self._away.get(address, now) > now, blake2b(text, digest_size=16).digest()

        known = {address for address in self._members(key) if is_address(address)}
        return tuple(sorted(known, key=weight))

    async def _first(self, key: str, work: Callable[[PeerStore], Awaitable[T]]) -> T:
        """By the first peer that does it.

        Raises:
            StoreError: None does; worth another try where one of them did not answer.
        """
        failure: StoreError = StoreRejected(key, "no peer of this job is known")
        for address in self.order(key):
            try:
                return await work(self._store(address))
            except PeerLeaving as error:
                self._leave_alone(address)
                failure = failure if isinstance(failure, StoreUnavailable) else error
            except StoreUnavailable as error:
                self._leave_alone(address)
                failure = error
            except StoreRejected as error:
                failure = failure if isinstance(failure, StoreUnavailable) else error
        raise failure

    async def _holder(self, key: str) -> PeerStore:
        holders = await self._holders(key)
        if not holders:
            raise StoreMissing(key, "no such object")
        return holders[0]

    async def _holders(self, key: str) -> Sequence[PeerStore]:
        nothing = memoryview(b"")
        found = await self._all(key, lambda store: _exists(store, key, nothing))
        return [store for store, exists in found if exists]

    async def _all(
        self, key: str, work: Callable[[PeerStore], Awaitable[T]]
    ) -> Sequence[tuple[PeerStore, T]]:
        """By all peers at once; what those say that answer, in their order.

        Raises:
            StoreError: None answers.
        """
        order = self.order(key)
        now = self._clock()
        here = [one for one in order if self._away.get(one, now) <= now] or order
        said: dict[str, T] = {}
        failures: list[StoreError] = []

        async def ask(address: str) -> None:
            try:
                said[address] = await work(self._store(address))
            except StoreError as error:
                failures.append(error)
                if isinstance(error, StoreUnavailable):
                    self._leave_alone(address)

        async with TaskGroup() as tasks:
            for address in here:
                tasks.create_task(ask(address))
        if failures and not said:
            raise failures[0]
        return [(self._store(one), said[one]) for one in here if one in said]

    def _leave_alone(self, address: str) -> None:
        self._away[address] = self._clock() + AWAY_SECONDS

    def _store(self, address: str) -> PeerStore:
        if address not in self._stores:
            there = self._location
            self._stores[address] = PeerStore(
                Location(there.scheme, address, there.prefix, there.options)
            )
        return self._stores[address]


async def _exists(store: PeerStore, key: str, nothing: memoryview) -> bool:
    try:
        await store.read(key, 0, nothing)
    except StoreMissing:
        return False
    return True


def _from_environment(_: str) -> Sequence[str]:
    return [one for part in os.environ.get(VARIABLE, "").split(",") if (one := part.strip())]

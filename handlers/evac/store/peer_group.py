"""The memory of several peers as one store: ``evac://job``, or by name ``evac://a:9912,b:9912``.

What one node puts of one job goes to one peer, chosen by rendezvous hashing over the node and the job: nodes that
leave together spread over those that stay, without asking anybody. A peer that leaves itself, is full or does not
answer is passed over, and the next in that order takes its place. A peer's own daemon refuses while it leaves, so that
a node that leaves never puts anything into its own memory, even where it is named among its job's peers.

Reads ask them all: who reads after a loss does not know who has what. Of several copies the one that came last counts,
by the age that each holder tells. Where nothing listens any more nothing is kept; a peer that is there and does not
answer may have what is asked for, so that nobody says it is nowhere.

Who saves is *hurried*: one peer whose daemon hangs would else keep every node of its jobs from committing anything,
since each commit asks them all, and the notice is shorter than one answer may take. A peer that does not answer at
once is passed over then for a minute, as one that is gone. What it has may come back, older than what was put since.

`create` is decided by looking twice: nobody has the key, one takes it, and then nobody else has taken it meanwhile; of
two that did, the first in an order of the addresses alone stays, and both writers come to the same answer.

Turned down: the least loaded peer. Its load is known when it is asked, and nodes that leave together ask
at the same moment and are all sent to the same one.
"""

import asyncio
import os
import random
import socket
from asyncio import CancelledError, TaskGroup
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from typing import TypeVar

from evac._clock import Monotonic, monotonic
from evac.errors import StoreError, StoreMissing, StoreRejected, StoreUnavailable
from evac.store import Entry
from evac.store.keys import split
from evac.store.location import JOB, Location, is_address, parse
from evac.store.peer import OPTIONS, PeerLeaving, PeerStore, token_path
from evac.store.peer_known import KnownPeers
from evac.store.peer_links import HURRIED, PATIENT, PeerGone
from evac.store.progress import Told

T = TypeVar("T")
# What a process that has registered nobody goes by: "host:port,host:port".
VARIABLE = "EVAC_PEERS"
# A put that is cut off where nothing has moved for so long hung on its peer.
_HUNG_SECONDS = 1.0
# Bodies of which it is remembered who has them: few enough to cost nothing.
_REMEMBERED = 4096
# Of who finds others writing the same key; each is an even chance for two.
_TURNS = 10


class PeerGroup:
    """A `Store` in the memory of several nodes.

    Args:
        location: As `parse` gave it.
        members: Addresses (``host:port``) of those that may take what is under a key.
        everybody: Of those that may have it, where these are more: this node itself.
        node: Who puts; nodes of other names choose other peers.
        clock: Monotonic seconds.
        hurried: For whoever saves: see above. Who reads waits, and is told what nobody can know.
    """

    def __init__(
        self,
        location: Location,
        members: Callable[[str], Iterable[str]],
        *,
        node: str,
        everybody: Callable[[str], Iterable[str]] | None = None,
        clock: Monotonic = monotonic,
        hurried: bool = False,
    ) -> None:
        self._location = location
        self._hurried = hurried
        self._members = members
        self._everybody = everybody or members
        self._node = node
        self._clock = clock
        self._peers = KnownPeers(location, HURRIED if hurried else PATIENT, clock)
        self._where: dict[str, str] = {}

    @classmethod
    def from_url(
        cls,
        url: str,
        members: Callable[[str], Iterable[str]] | None = None,
        everybody: Callable[[str], Iterable[str]] | None = None,
        *,
        hurried: bool = False,
    ) -> "PeerGroup":
        """The store behind ``evac://job`` or ``evac://host:port,host:port``.

        Args:
            members: Who they are, for ``evac://job``; those in ``EVAC_PEERS`` by default.
            everybody: See the class.
            hurried: See the class.

        Raises:
            ConfigError: Malformed, or it holds what may not stand in a URL.
        """
        location = parse(url, options=OPTIONS)
        token_path(location)  # a malformed one is told now
        made = partial(cls, location, node=socket.gethostname(), hurried=hurried)
        if location.bucket == JOB:
            return made(members or _from_environment, everybody=everybody)
        named = tuple(location.bucket.split(","))
        return made(lambda _: named)

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
        told = Told(progress)

        async def attempt(store: PeerStore) -> None:
            heard, further = self._clock(), told.attempt()

            def moved(nbytes: int) -> None:
                nonlocal heard
                heard = self._clock()
                further(nbytes)

            try:
                await store.put(key, data, progress=moved)
            except CancelledError:
                if self._clock() - heard >= _HUNG_SECONDS:
                    self._peers.leave_alone(store.address, gone=False)
                raise

        before = self._where.pop(key, None)
        address, _ = await self._first(key, self.order(key), attempt)
        self._remember(key, address)
        if before is not None and before != address:
            with suppress(StoreError):  # the newer one counts, wherever an older one is left
                await self._peers.store(before).delete(key)

    async def create(self, key: str, data: bytes) -> bool:
        """See `Store.create`: nowhere where any peer has it.

        Raises:
            StoreError: One that may have it does not answer (`hurried`: none does), none takes it, or others write it, too.
        """
        split(key)
        for turn in range(_TURNS):
            if await self._holders(key):
                return False
            if await self._alone_with(key, data):
                return True
            # Another one is at it as well: whoever comes back first finds nothing, and wins.
            await asyncio.sleep(random.SystemRandom().uniform(0.0, 0.05) * (turn + 1))
        raise StoreUnavailable(f"{self.url}/{key}", f"others write it, too, {_TURNS} times now")

    async def _alone_with(self, key: str, data: bytes) -> bool:
        """Put it where nobody else has done so at the same time; else leave nothing.

        Two nodes may choose different peers, for none keeps its own bytes. Who sees only its own
        was first: the other one is still to look, and will see both.
        """
        order = self._ordered(key, self._members(key), whose="")

        async def attempt(store: PeerStore) -> bool:
            return await store.create(key, data)

        if self._hurried:
            order = self._away_last(order)
        at, made = await self._first(key, order, attempt, sure=not self._hurried)
        if not made:
            return False
        if all(store.address == at for store in await self._holders(key)):
            self._remember(key, at)  # a put may go elsewhere, and takes it away then
            return True
        await self._peers.store(at).delete(key)
        return False

    async def get(self, key: str) -> bytes:
        """See `Store.get`; at most 256 MiB."""
        split(key)
        return await self._from_holder(key, lambda store: store.get(key))

    async def read(self, key: str, offset: int, into: memoryview) -> int:
        """See `Store.read`; whoever had it the last time is asked first, since no body ever changes."""
        split(key)
        if (address := self._where.get(key)) is not None:
            try:
                return await self._peers.store(address).read(key, offset, into)
            except StoreError:
                self._where.pop(key, None)
        return await self._from_holder(key, lambda store: store.read(key, offset, into))

    async def list(self, prefix: str) -> Sequence[Entry]:
        """See `Store.list`: what all of them have together.

        Raises:
            StoreError: One that is there does not answer, or refuses (`hurried`: each one).
        """
        if prefix:
            split(prefix)

        async def ask(store: PeerStore) -> Sequence[tuple[float, Entry]]:
            entries = await store.aged(prefix)
            return [(self._came(age), entry) for entry, age in entries]

        said, silent = await self._all(f"{prefix}/" if prefix else "", ask)
        if silent is not None:
            raise silent
        newest: dict[str, tuple[float, Entry]] = {}
        for _, entries in said:
            for came, entry in entries:
                if entry.key not in newest or came > newest[entry.key][0]:
                    newest[entry.key] = came, entry
        return [newest[key][1] for key in sorted(newest)]

    async def delete(self, key: str) -> None:
        """See `Store.delete`: everywhere.

        Raises:
            StoreError: One that is there does not answer, or refuses (`hurried`: each one); what it has would come back.
        """
        split(key)
        self._where.pop(key, None)
        _, silent = await self._all(key, lambda store: store.delete(key))
        if silent is not None:
            raise silent

    async def prepare(self, prefix: str) -> None:
        """See `Store.prepare`: memory has no owners."""
        split(prefix)

    async def clean(self, *, older_than: float = 60.0) -> int:
        """Nothing to do: see `PeerStore.clean`."""
        return 0

    # --- who ------------------------------------------------------------------------------

    def order(self, key: str) -> tuple[str, ...]:
        """The peers for what this node puts under *key*, the first choice first; those away last."""
        return self._away_last(self._ordered(key, self._members(key), whose=self._node))

    def _away_last(self, order: Sequence[str]) -> tuple[str, ...]:
        return tuple(sorted(order, key=self._peers.is_away))

    def _ordered(self, key: str, addresses: Iterable[str], *, whose: str) -> Sequence[str]:
        job = "/".join(key.split("/")[:2])

        def weight(address: str) -> bytes:
            return blake2b(f"{job}\0{whose}\0{address}".encode(), digest_size=16).digest()

        return sorted({address for address in addresses if is_address(address)}, key=weight)

    async def _first(
        self,
        key: str,
        order: Sequence[str],
        work: Callable[[PeerStore], Awaitable[T]],
        *,
        sure: bool = False,
    ) -> tuple[str, T]:
        """By the first peer that does it; its address, and what it said.

        Args:
            sure: One that does not answer may have done it: nobody else is asked then.

        Raises:
            StoreError: None does; worth another try where one of them did not answer.
        """
        failure: StoreError = StoreRejected(key, "no peer of this job is known")
        for address in order:
            try:
                return address, await work(self._peers.store(address))
            except PeerLeaving as error:
                self._peers.leave_alone(address, gone=False)
                failure = failure if isinstance(failure, StoreUnavailable) else error
            except StoreUnavailable as error:
                self._peers.leave_alone(address, gone=False)
                if sure and not (isinstance(error, PeerGone) and error.refused):
                    raise
                failure = error
            except StoreRejected as error:
                failure = failure if isinstance(failure, StoreUnavailable) else error
        raise failure

    async def _from_holder(self, key: str, work: Callable[[PeerStore], Awaitable[T]]) -> T:
        """By whoever has it, the newest copy first.

        Raises:
            StoreMissing: Nobody has it.
            StoreUnavailable: One that may have it does not answer, or who has it fails.
        """
        failure: StoreError = StoreMissing(key, "no such object")
        for store in await self._holders(key):
            try:
                answer = await work(store)
            except StoreError as error:
                failure = error
            else:
                self._remember(key, store.address)
                return answer
        raise failure

    async def _holders(self, key: str) -> Sequence[PeerStore]:
        """Who has it, the newest copy first; none where surely nobody has (`hurried`: nobody that answers).

        Raises:
            StoreError: One that may have it does not answer (`hurried`: none does), and nobody else has it.
        """

        async def ask(store: PeerStore) -> float | None:
            try:
                return self._came(await store.age(key))
            except StoreMissing:
                return None

        said, silent = await self._all(key, ask)
        found = [(came, store.address) for store, came in said if came is not None]
        if not found and silent is not None:
            raise silent
        return [self._peers.store(address) for _, address in sorted(found, reverse=True)]

    def _came(self, age: int) -> float:
        """When what is *age* milliseconds old by an answer that has just come was put there, on our clock.

        One that is slow to answer tells a greater age by that: only points in time can be compared.
        """
        return self._clock() - age / 1000

    async def _all(
        self, key: str, work: Callable[[PeerStore], Awaitable[T]]
    ) -> tuple[Sequence[tuple[PeerStore, T]], StoreError | None]:
        """By all peers at once; what those said that answered, and why one did not that is there (None if `hurried`).

        Raises:
            StoreError: None answers.
        """
        known = self._ordered(key, self._everybody(key), whose=self._node)
        asked = [one for one in known if not self._peers.is_gone(one)] or known
        said: dict[str, T] = {}
        gone: list[StoreError] = []
        silent: list[StoreError] = []

        async def ask(address: str) -> None:
            try:
                said[address] = await work(self._peers.store(address))
            except PeerGone as error:
                self._peers.leave_alone(address, gone=not error.refused)
                gone.append(error)
            except StoreError as error:
                if isinstance(error, StoreUnavailable):  # a refusal may be of this one call
                    self._peers.leave_alone(address, gone=self._hurried)
                (gone if self._hurried else silent).append(error)

        async with TaskGroup() as tasks:
            for address in asked:
                tasks.create_task(ask(address))
        if not said and (silent or gone):
            raise (silent or gone)[0]
        answers = [(self._peers.store(one), said[one]) for one in asked if one in said]
        return answers, silent[0] if silent else None

    def _remember(self, key: str, address: str) -> None:
        if len(self._where) >= _REMEMBERED:
            self._where.pop(next(iter(self._where)))
        self._where[key] = address


def _from_environment(_: str) -> Sequence[str]:
    return [one for part in os.environ.get(VARIABLE, "").split(",") if (one := part.strip())]

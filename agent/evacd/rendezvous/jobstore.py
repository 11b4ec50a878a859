"""The `rendezvous` departure: an entry in the store that the job's own nodes meet in.

Where that is, the job's workers say when they register (the torchrun backend tells them), or the
operator in the configuration. What a worker says is data: nothing is connected to but a plain
address of a network, few of them, each within the time limit, and nothing of what comes back is kept.
"""

import asyncio
import ipaddress
import socket
from asyncio import TaskGroup
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import aiohttp

from evac.rendezvous.address import Address, parse, split_endpoint
from evac.rendezvous.choices import Choices, generation_of
from evac.rendezvous.keys import Denied, Unreachable
from evac.rendezvous.state import State
from evacd.clock import Clock
from evacd.rendezvous import Agreed, Departure, Word
from evacd.rendezvous.etcd import Etcd, Etcds
from evacd.rendezvous.joblog import Keys, append, choices, entry_of, heirs
from evacd.rendezvous.tcpstore import TcpStore

# A job meets in one store; more than one is heard of while it moves.
_MOST_STORES = 4
_MOST_JOBS = 1024
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 1.0
# Where it is turned away: etcd's users may be in the middle of a change, a file may be half renewed. Few, for
# passwords are made to be slow to look at.
_DENIED_PAUSES = (1.0, 2.0, 4.0)
# A try that hangs leaves time for another.
_TRY_SHARE = 0.4
_FAILURES = (TimeoutError, OSError, Unreachable, aiohttp.InvalidURL)


class JobStoreAnnouncer:
    """Writes departures into the log of each job that has one."""

    name = "rendezvous"

    def __init__(
        self,
        registered: Callable[[str], Sequence[str]],
        session: aiohttp.ClientSession,
        *,
        configured: Sequence[str] = (),
        timeout_seconds: float,
        clock: Clock,
        agreed: Callable[[Agreed], None] = lambda _agreed: None,
        etcds: Etcds | None = None,
        denied_pauses: Sequence[float] = _DENIED_PAUSES,
    ) -> None:
        """Wire it up.

        Args:
            registered: Addresses that a job's workers have named, the newest first.
            session: For etcd.
            configured: Addresses that hear of all jobs.
            timeout_seconds: Of one announcement, all its tries and stores included.
            etcds: What each etcd is shown; by default, nothing.
            denied_pauses: Seconds between tries at a store that turns us away; behind the last of them its
                word is final.
            agreed: Told what a job's nodes have chosen, each time that its store was read.
        """
        self._registered = registered
        self._session = session
        self._configured = tuple(configured)
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._agreed = agreed
        self._etcds = etcds or Etcds()
        self._denied_pauses = tuple(denied_pauses)
        # Its workers are stopped soon after the first word, and may be forgotten.
        self._told: dict[str, tuple[str, ...]] = {}
        # By store, in the order in which they were heard of: where its log goes on, if it lies in a
        # node that leaves.
        self._heirs: dict[str, tuple[Address, ...]] = {}

    def concerns(self, departure: Departure) -> bool:
        """Whether there is a store to tell."""
        return bool(self._stores(departure.job))

    async def announce(self, departure: Departure) -> str | None:
        """See `Announcer`."""
        stores = self._stores(departure.job)
        if departure.word is Word.LEAVING:
            self._told.pop(departure.job, None)
            self._told[departure.job] = stores
            if len(self._told) > _MOST_JOBS:
                del self._told[next(iter(self._told))]
        deadline = self._clock.monotonic() + self._timeout_seconds
        text = entry_of(departure)
        async with TaskGroup() as tasks:
            tries = [
                tasks.create_task(self._tell(store, departure.job, text, deadline))
                for store in stores
            ]
        wrong = [
            f"{store}: {reason}"
            for store, task in zip(stores, tries, strict=True)
            if (reason := task.result())
        ]
        return "; ".join(wrong) or None

    async def look(self, job: str) -> None:
        """Read what the job's nodes have chosen, once; what cannot be read says nothing."""
        limit = self._timeout_seconds * _TRY_SHARE
        async with TaskGroup() as tasks:
            for store in self._stores(job):
                tasks.create_task(self._look(store, job, limit))

    async def _look(self, store: str, job: str, seconds: float) -> None:
        with suppress(ValueError, Forbidden, *_FAILURES):
            address = parse(store)
            async with asyncio.timeout(seconds), self._opened(address) as keys:
                self._read(job, await choices(keys))

    def _read(self, job: str, found: Choices) -> None:
        if (choice := found.get(job)) is not None:
            self._agreed(Agreed(job, generation_of(choice), choice.node, choice.boot))

    def _stores(self, job: str) -> tuple[str, ...]:
        said = (*(self._registered(job) if job else ()), *self._told.get(job, ()))
        return (*self._configured, *tuple(dict.fromkeys(said))[:_MOST_STORES])

    async def _tell(self, store: str, job: str, text: bytes, deadline: float) -> str | None:
        try:
            address = parse(store)
        except ValueError as error:
            return str(error)
        wrong, pause, denied = "no answer", _FIRST_PAUSE_SECONDS, iter(self._denied_pauses)
        try:
            async with asyncio.timeout_at(deadline):
                while True:
                    reason = await self._try_all(store, address, job, text)
                    if not reason:
                        return None
                    wrong = str(reason)
                    if isinstance(reason, Forbidden):
                        again = next(denied, None) if reason.for_now else None
                        if again is None:
                            return wrong
                        await asyncio.sleep(again)
                        continue
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
        except TimeoutError:
            return f"{wrong}; not told within {self._timeout_seconds:g} s"

    async def _try_all(
        self, store: str, address: Address, job: str, text: bytes
    ) -> "str | Forbidden":
        """Once in the store, and where its log may be served since; "" if it stands in one of them."""
        places = self._heirs.get(store, ())
        async with TaskGroup() as tasks:
            later = [tasks.create_task(self._try_heir(one, job, text)) for one in places]
            wrong = await self._try(store, address, job, text)
        return "" if any(task.result() for task in later) else wrong

    async def _try(self, store: str, address: Address, job: str, text: bytes) -> "str | Forbidden":
        limit = self._timeout_seconds * _TRY_SHARE
        try:
            async with asyncio.timeout(limit), self._opened(address) as keys:
                state = await append(keys, text)
        except Forbidden as error:
            return error
        except Denied as error:
            return Forbidden(error.reason, for_now=True)
        except TimeoutError:
            return f"no answer within {limit:g} s"
        except Unreachable as error:
            return error.reason
        except (OSError, aiohttp.InvalidURL) as error:
            return str(error) or type(error).__name__
        if state is not None:
            self._read(job, state.choices)
            self._inherit(store, address, state)
        return ""

    async def _try_heir(self, address: Address, job: str, text: bytes) -> bool:
        """Whether the log is served there by now, and was told."""
        limit = self._timeout_seconds * _TRY_SHARE
        with suppress(Forbidden, *_FAILURES):
            async with asyncio.timeout(limit), self._opened(address) as keys:
                state = await append(keys, text, served=True)
            if state is not None:
                self._read(job, state.choices)
                return True
        return False

    def _inherit(self, store: str, address: Address, state: State) -> None:
        """The agent that serves the log may be gone at the next word."""
        found = [split_endpoint(one, 0) for one in heirs(state)[:_MOST_STORES]]
        self._heirs.pop(store, None)
        if found:
            self._heirs[store] = tuple(replace(address, host=h, port=p) for h, p in found)
            if len(self._heirs) > _MOST_JOBS:
                del self._heirs[next(iter(self._heirs))]

    @asynccontextmanager
    async def _opened(self, address: Address) -> AsyncIterator[Keys]:
        ip = await resolved(address)
        if address.in_etcd:
            yield Etcd(self._session, address, ip, await self._etcds.shown(address))
            return
        store = await TcpStore.connect(ip, address.port, address.prefix)
        try:
            yield store
            await store.flushed()
        finally:
            store.close()


class Forbidden(Exception):
    """Such an address is not connected to, or its store does not let us in: hardly another try can help.

    Attributes:
        for_now: A person may be about to change that.
    """

    def __init__(self, reason: str, *, for_now: bool = False) -> None:
        super().__init__(reason)
        self.for_now = for_now


async def resolved(address: Address) -> str:
    """An IP address that may be connected to; the one that was looked at is the one that is used.

    A cloud's metadata service is link-local: no workload may make the daemon talk to it.

    Raises:
        Forbidden: It is no address of a store.
        OSError: No address has that name.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    for *_, where in found:
        ip = ipaddress.ip_address(str(where[0]).partition("%")[0])
        mapped = getattr(ip, "ipv4_mapped", None) or ip
        if not (mapped.is_link_local or mapped.is_multicast or mapped.is_unspecified):
            return str(ip)
    raise Forbidden(f"{address.host} is no address of a store")

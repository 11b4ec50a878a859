"""Bytes to and from S3 and Azure through obstore: no copy, no GIL, several connections.

obstore reads a body from an iterator of memoryviews straight out of the shared memory (0.35 CPU
seconds per GB). Its file-like input costs six times that, and a signed payload four times: here
payloads are unsigned, TLS guards them on the way and the manifests' checksums after it.
"""

import asyncio
import atexit
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from types import MappingProxyType
from typing import TypeAlias

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import AzureStore as ObstoreAzure
from obstore.store import S3Store as ObstoreS3

from evac.errors import StoreError, StoreMissing, StoreRejected
from evac.groups import one_error
from evac.store import Entry, answers
from evac.store.keys import split
from evac.store.leaving import wait_for_foreign_threads
from evac.store.location import Location
from evac.store.parts import LARGEST, SINGLE, Slices, part_nbytes, unbroken
from evac.store.threads import in_thread

Client: TypeAlias = "ObstoreS3 | ObstoreAzure"

GET_LIMIT = 256 * 1024 * 1024
CONNECTIONS = 8
# One range of a read; a few are on their way at once.
RANGE = 8 * 1024 * 1024
# A request that takes longer than this hangs: at a rate at which nothing could be saved anyway.
REQUEST_SECONDS = 60.0
SLOWEST = 1_000_000  # bytes per second of one connection
# One lost part must not cost the body. What lasts longer is for the caller to judge.
RETRY = {
    "max_retries": 4,
    "retry_timeout": timedelta(seconds=30),
    "backoff": {
        "init_backoff": timedelta(milliseconds=100),
        "max_backoff": timedelta(seconds=2),
        "base": 2,
    },
}

atexit.register(wait_for_foreign_threads)


class BlobStore(ABC):
    """A `Store` in a bucket or container; what differs between the clouds is in its heirs."""

    # Up to here one request carries a body; and the bytes of one part, None for what suits the body.
    single = SINGLE
    part: int | None = None
    # How the library makes a lost call again.
    retry: Mapping[str, object] = MappingProxyType(RETRY)

    def __init__(self, location: Location) -> None:
        self._location = location
        self._connections = int(location.options.get("connections", CONNECTIONS))
        self._timeout = float(location.options.get("timeout", REQUEST_SECONDS))
        # The store has said so, whatever our clock says: the next call must bring newer keys.
        self._expired = False
        self._clients: dict[float, Client] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    @property
    def url(self) -> str:
        """As configured, without anything secret."""
        return self._location.url

    @abstractmethod
    def _open(self, seconds: float) -> Client:
        """A client whose single requests may take that long."""

    @abstractmethod
    async def _abandoned(self, key: str) -> None:
        """The put of a body was cut off before it could fail: forget the parts that are there."""

    async def prepare(self, prefix: str) -> None:
        """See `Store.prepare`: a bucket has no owners of single objects."""
        split(prefix)

    @abstractmethod
    async def clean(self, *, older_than: float = 60.0) -> int:
        """See `Store.clean`."""

    @abstractmethod
    async def _ready(self) -> None:
        """Called before each use; raises where it could not succeed."""

    async def put(
        self, key: str, data: memoryview, *, progress: Callable[[int], None] | None = None
    ) -> None:
        """See `Store.put`. When cancelled, what is on its way is dropped and its parts aborted."""
        split(key)
        await self._ready()
        with data.cast("B") as view:
            if view.nbytes > self.single:
                await self._put_parts(key, view, progress)
                return
            # One slice as well, so that we know when it has been let go.
            whole = Slices(view, max(view.nbytes, 1), window=1, progress=None)
            try:
                with self._translated(key):
                    await obstore.put_async(
                        self._client(), key, next(whole, b""), use_multipart=False
                    )
            finally:
                await _all_let_go(whole)
            if progress is not None and view.nbytes:
                await _tell(progress, view.nbytes)

    async def create(self, key: str, data: bytes) -> bool:
        """See `Store.create`.

        After a lost answer the library asks again and is told that the object exists: False may
        then speak of our own. Callers compare what is there.
        """
        split(key)
        await self._ready()
        with self._translated(key):
            try:
                await obstore.put_async(self._client(), key, data, mode="create")
            except AlreadyExistsError:
                return False
        return True

    async def get(self, key: str) -> bytes:
        """See `Store.get`; at most 256 MiB."""
        split(key)
        await self._ready()
        with self._translated(key):
            found = await obstore.get_async(self._client(), key)
            nbytes = found.meta["size"]
            if nbytes > GET_LIMIT:
                raise StoreRejected(key, f"{nbytes} bytes, expected at most {GET_LIMIT}")
            return bytes(await found.bytes_async())

    async def read(self, key: str, offset: int, into: memoryview) -> int:
        """See `Store.read`; several ranges at once."""
        split(key)
        await self._ready()
        got: dict[int, int] = {}
        window = asyncio.Semaphore(self._connections)

        async def fetch(start: int, view: memoryview) -> None:
            async with window:
                got[start] = await self._read_range(
                    key, offset + start, view[start : start + RANGE]
                )

        with into.cast("B") as view, one_error():
            async with asyncio.TaskGroup() as tasks:
                for start in range(0, view.nbytes, RANGE):
                    tasks.create_task(fetch(start, view))
        return unbroken(got, RANGE)

    async def list(self, prefix: str) -> Sequence[Entry]:
        """See `Store.list`."""
        if prefix:
            split(prefix)
        await self._ready()
        found: list[Entry] = []
        with self._translated(prefix or "."):
            async for some in obstore.list(self._client(), prefix=prefix or None):
                found += [Entry(one["path"], one["size"]) for one in some]
        return sorted(found, key=lambda entry: entry.key)

    async def delete(self, key: str) -> None:
        """See `Store.delete`."""
        split(key)
        await self._ready()
        with suppress(StoreMissing), self._translated(key):
            await obstore.delete_async(self._client(), key)

    @contextmanager
    def _translated(self, key: str) -> Iterator[None]:
        try:
            yield
        except AlreadyExistsError:
            raise
        except ValueError:  # before any request: a path that obstore cannot express
            raise StoreRejected(key, "not a name that this store can have") from None
        except (BaseError, OSError) as error:
            told = answers.of_text(key, str(error))
            self._expired = self._expired or answers.wants_other_keys(told)
            # Not `from error`: its text repeats the URL, and Azure's may carry its signature there.
            raise told from None

    def _client(self, part: int = 0) -> Client:
        seconds = max(self._timeout, part / SLOWEST if part > LARGEST else 0.0)
        if seconds not in self._clients:
            self._clients[seconds] = self._open(seconds)
        return self._clients[seconds]

    async def _put_parts(
        self, key: str, view: memoryview, progress: Callable[[int], None] | None
    ) -> None:
        size = self.part or part_nbytes(view.nbytes)
        slices = Slices(view, size, window=self._connections, progress=progress)
        try:
            with self._translated(key):
                await obstore.put_async(
                    self._client(size),
                    key,
                    slices,
                    chunk_size=size,
                    max_concurrency=self._connections,
                )
        except StoreError:
            # The library has aborted what it began, or tried to: whoever waits has another store to try.
            slices.stop()
            await _all_let_go(slices)
            raise
        except BaseException:
            slices.stop()
            await _all_let_go(slices)
            await self._abandoned(key)
            raise
        await _all_let_go(slices)
        if progress is not None:
            await _tell(progress, view.nbytes - slices.reported)

    async def _read_range(self, key: str, offset: int, into: memoryview) -> int:
        if not into.nbytes:
            await self._head(key)
            return 0
        try:
            with self._translated(key):
                found = await obstore.get_range_async(
                    self._client(), key, start=offset, length=into.nbytes
                )
        except StoreRejected as error:
            if error.reason != answers.BEYOND or await self._head(key) > offset:
                raise
            return 0
        nbytes = len(found)
        into[:nbytes] = memoryview(found)
        return nbytes

    async def _head(self, key: str) -> int:
        with self._translated(key):
            return (await obstore.head_async(self._client(), key))["size"]


async def _tell(progress: Callable[[int], None], nbytes: int) -> None:
    """Report the last bytes; not on the loop, since whoever hears of them may hold us up."""
    try:
        await in_thread(lambda _: progress(nbytes))
    except RuntimeError:  # the interpreter shuts down and lends no thread any more
        progress(nbytes)


async def _all_let_go(slices: Slices) -> None:
    """Wait until the library has dropped the caller's memory, whoever cancels us meanwhile.

    It does so in its own threads, a few milliseconds after its call has ended.
    """
    cancelled = False
    while not slices.let_go():
        try:
            await asyncio.sleep(0.002)
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError

"""Google Cloud Storage: ``gs://bucket/prefix`` (and ``endpoint=http://host:port`` for an emulator).

A large body goes as parallel part objects below ``.evac-parts/<random>/``, which are then
composed under its key and deleted. Each part's checksum is compared with the store's before, and the
whole's after, so a body that was damaged on the way never gets its name unnoticed. Turned down:
resumable uploads (one connection) and the XML API's multipart (no test server answers it).
"""

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from threading import Event
from typing import TypeVar

from evac.errors import StoreError, StoreMissing, StoreRejected, StoreUnavailable
from evac.store import Entry
from evac.store.direct import Stopped
from evac.store.errands import Errands
from evac.store.gcs_calls import PIECE, SILENCE, Calls, Made
from evac.store.gcs_upload import PAUSE, Upload, tried
from evac.store.keys import split
from evac.store.location import Location, parse
from evac.store.parts import SINGLE, part_nbytes, unbroken
from evac.store.sums import combined
from evac.store.threads import Threads, in_thread

T = TypeVar("T")
OPTIONS = ("connections", "endpoint", "timeout")
PARTS = ".evac-parts"
# One compose call takes no more.
COMPOSE = 32
CONNECTIONS = 8
GET_LIMIT = 256 * 1024 * 1024
# One range of a read; a few are on their way at once.
RANGE = 8 * 1024 * 1024
# The newest part of a put that lives is never older than this.
PART_SECONDS = 300.0


class GcsStore:
    """A `Store` in a bucket.

    Args:
        location: As `parse` gave it.
    """

    # Up to here one request carries a body; and the bytes of one part, None for what suits the body.
    single = SINGLE
    part: int | None = None
    # Before a call that was lost is made again; see `tried`.
    pause = PAUSE

    def __init__(self, location: Location) -> None:
        self._location = location
        self._connections = int(location.options.get("connections", CONNECTIONS))
        self._lender = Threads(location.url)
        self._calls = Calls(
            location.bucket,
            endpoint=location.options.get("endpoint"),
            connections=self._connections + 2,
            silence=float(location.options.get("timeout", SILENCE)),
        )

    @classmethod
    def from_url(cls, url: str) -> "GcsStore":
        """The store behind ``gs://...``.

        Raises:
            ConfigError: Malformed, or it holds what may not stand in a URL.
        """
        return cls(parse(url, options=OPTIONS))

    def __repr__(self) -> str:
        return f"GcsStore({self.url!r})"

    @property
    def url(self) -> str:
        """As configured, without anything secret."""
        return self._location.url

    async def put(
        self, key: str, data: memoryview, *, progress: Callable[[int], None] | None = None
    ) -> None:
        """See `Store.put`. When cancelled, stops within 1 MiB per connection and deletes its parts."""
        _checked(key)
        await in_thread(partial(self._put, key, data, progress), self._lender)

    async def create(self, key: str, data: bytes) -> bool:
        """See `Store.create`.

        False may speak of our own, where a first answer was lost. Callers compare what is there.
        """
        _checked(key)
        return await in_thread(partial(self._create, key, data), self._lender)

    async def get(self, key: str) -> bytes:
        """See `Store.get`; at most 256 MiB."""
        _checked(key)
        return await in_thread(partial(self._get, key), self._lender)

    async def read(self, key: str, offset: int, into: memoryview) -> int:
        """See `Store.read`."""
        _checked(key)
        return await in_thread(partial(self._read, key, offset, into), self._lender)

    async def list(self, prefix: str) -> Sequence[Entry]:
        """See `Store.list`; parts of bodies that are on their way are left out."""
        if prefix:
            split(prefix)
        return await in_thread(partial(self._list, prefix), self._lender)

    async def delete(self, key: str) -> None:
        """See `Store.delete`."""
        _checked(key)
        with suppress(StoreMissing):
            await in_thread(partial(self._delete, key), self._lender)

    async def prepare(self, prefix: str) -> None:
        """See `Store.prepare`: a bucket has no owners of single objects."""
        split(prefix)

    async def clean(self, *, older_than: float = 60.0) -> int:
        """Delete part objects of puts that ended long ago; how many they were.

        Args:
            older_than: Seconds since the newest part of a put, and five minutes in which one may be on
                its way.
        """
        return await in_thread(partial(self._clean, older_than), self._lender)

    def _put(
        self, key: str, data: memoryview, progress: Callable[[int], None] | None, stop: Event
    ) -> None:
        with data.cast("B") as view:
            size = self.part or part_nbytes(view.nbytes, most=COMPOSE * COMPOSE)
            upload = Upload(self._calls, key, view, size, stop, progress, self.pause, self._lender)
            if view.nbytes <= self.single:
                upload.whole(self._location.key(key))
                return
            folder = self._location.key(f"{PARTS}/{secrets.token_hex(8)}")
            try:
                upload.parts(folder, threads=self._connections)
                self._join(key, folder, upload)
            finally:
                self._forget(f"{folder}/", key)

    def _join(self, key: str, folder: str, upload: "Upload") -> None:
        """Compose parts until one is left, which gets the key."""
        made = upload.made()
        level = 0
        while len(made) > COMPOSE:
            level += 1
            groups = [made[start : start + COMPOSE] for start in range(0, len(made), COMPOSE)]
            made = [
                self._composed(key, f"{folder}/c{level}-{number:05}", group, upload.stop)
                for number, group in enumerate(groups)
            ]
        self._composed(key, self._location.key(key), made, upload.stop)

    def _composed(self, key: str, name: str, parts: Sequence[Made], stop: Event) -> Made:
        def compose() -> Made:
            return self._calls.compose(name, [part.name for part in parts], key=key)

        try:
            made = self._tried(compose, stop)
        except StoreMissing as error:
            # A rule of the bucket's or somebody else has deleted what was sent; from the start it may go well.
            raise StoreUnavailable(key, "a part that was sent is not there any more") from error
        nbytes = sum(part.nbytes for part in parts)
        crc = combined([(part.crc32c or 0, part.nbytes) for part in parts])
        if made.nbytes != nbytes or made.crc32c not in (None, crc):
            with suppress(StoreError):
                self._calls.delete(name, key=key)
            raise StoreUnavailable(key, "the store composed other bytes than were sent")
        return Made(made.name, nbytes, crc, made.created)

    def _create(self, key: str, data: bytes, stop: Event) -> bool:
        name = self._location.key(key)
        try:
            self._tried(lambda: self._calls.create(name, data, key=key), stop)
        except FileExistsError:
            return False
        return True

    def _tried(self, work: Callable[[], T], stop: Event) -> T:
        return tried(work, stop, pause=self.pause)

    def _delete(self, key: str, stop: Event) -> None:
        self._tried(lambda: self._calls.delete(self._location.key(key), key=key), stop)

    def _described(self, key: str, stop: Event) -> Made:
        return self._tried(lambda: self._calls.describe(self._location.key(key), key=key), stop)

    def _get(self, key: str, stop: Event) -> bytes:
        nbytes = self._described(key, stop).nbytes
        if nbytes > GET_LIMIT:
            raise StoreRejected(key, f"{nbytes} bytes, expected at most {GET_LIMIT}")
        buffer = bytearray(nbytes)
        with memoryview(buffer) as into:
            got = self._read(key, 0, into, stop)
        return bytes(buffer[:got])

    def _read(self, key: str, offset: int, into: memoryview, stop: Event) -> int:
        got: dict[int, int] = {}

        def fetch(start: int) -> None:
            with view[start : start + RANGE] as piece:
                got[start] = self._tried(
                    partial(self._read_range, key, offset + start, piece, stop), stop
                )

        with into.cast("B") as view:
            if not view.nbytes:
                self._described(key, stop)
                return 0
            starts = range(0, view.nbytes, RANGE)
            Errands(starts, fetch, self._lender).run(self._connections)
        return unbroken(got, RANGE)

    def _read_range(self, key: str, offset: int, into: memoryview, stop: Event) -> int:
        name, got = self._location.key(key), 0
        with self._calls.reading(name, offset, into.nbytes, key=key) as stream:
            while stream is not None and got < into.nbytes:
                if stop.is_set():
                    raise Stopped
                with into[got : got + PIECE] as piece, _reading(key):
                    step = stream.readinto(piece)
                if not step:
                    break
                got += step
        return got

    def _list(self, prefix: str, stop: Event) -> Sequence[Entry]:
        root = self._location.key("")
        name = self._location.key(f"{prefix}/" if prefix else "")
        found, _ = self._tried(lambda: self._calls.list(name, key=prefix or "."), stop)
        entries = (Entry(one.name.removeprefix(root), one.nbytes) for one in found)
        kept = [one for one in entries if not one.key.startswith(f"{PARTS}/")]
        return sorted(kept, key=lambda entry: entry.key)

    def _clean(self, older_than: float, stop: Event) -> int:
        found, now = self._calls.list(self._location.key(f"{PARTS}/"), key=PARTS)
        newest: dict[str, Made] = {}
        for one in found:
            folder = one.name.rpartition("/")[0]
            if folder not in newest or newest[folder].created < one.created:
                newest[folder] = one
        before = now - timedelta(seconds=older_than + PART_SECONDS)
        dead = [one for one in found if newest[one.name.rpartition("/")[0]].created <= before]
        for one in dead:
            with suppress(StoreMissing):
                self._calls.delete(one.name, key=PARTS)
        return len(dead)

    def _forget(self, prefix: str, key: str) -> None:
        """Delete the parts of a put that has ended; what cannot be deleted now is `clean`'s."""
        with suppress(StoreError):
            found, _ = self._calls.list(prefix, key=key)

            def delete(number: int) -> None:
                with suppress(StoreMissing):
                    self._calls.delete(found[number].name, key=key)

            # Side by side: whoever waits for this put has little time.
            Errands(range(len(found)), delete, self._lender).run(self._connections)


@contextmanager
def _reading(key: str) -> Iterator[None]:
    """Errors in mid-body come from below requests, which no longer sees them."""
    try:
        yield
    except StoreError:
        raise
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("urllib3", "http", "builtins"):
            raise
        raise StoreUnavailable(key, "connection lost in mid-answer") from error


def _checked(key: str) -> None:
    if split(key)[0] == PARTS:
        raise StoreRejected(key, "the name of a part")

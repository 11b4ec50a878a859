"""A peer's memory: ``evac://host:port/prefix``, kept by the evacd that runs there. Never durable.

It is the one store that a 30 s notice leaves time for, and it lasts as long as that node does: what is
here counts as saved for nobody who asks whether it is durable. A body goes in parts of 16 MiB over several
connections, straight out of the caller's memory, and gets its name when all have arrived.
"""

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Event
from urllib.parse import urlsplit
from weakref import finalize

from evac._clock import Monotonic, monotonic
from evac.errors import (
    ConfigError,
    StoreError,
    StoreMissing,
    StoreRejected,
    StoreUnavailable,
)
from evac.store import Entry
from evac.store import peer_wire as wire
from evac.store.errands import Errands
from evac.store.keys import split
from evac.store.location import Location, parse
from evac.store.parts import unbroken
from evac.store.peer_links import HURRIED, PATIENT, Link, Links, Pace, PeerLost
from evac.store.threads import in_thread

OPTIONS = ("connections", "timeout", "token_file")
CONNECTIONS = 4
# Of one answer. Bytes that do not move at all give up sooner.
TIMEOUT = 60
GET_LIMIT = 256 * 1024 * 1024


class PeerLeaving(StoreRejected):
    """The peer goes away itself and takes nothing new: another one may."""


class PeerStore:
    """A `Store` in another node's memory.

    Args:
        location: As `parse` gave it.
        looks: How long is waited for anything but a put: who saves has little time for them.
        clock: Monotonic seconds.
    """

    def __init__(
        self, location: Location, *, looks: Pace = PATIENT, clock: Monotonic = monotonic
    ) -> None:
        self._location = location
        self._looks = looks
        self._connections = int(location.options.get("connections", CONNECTIONS))
        there = urlsplit(f"//{location.bucket}")
        self._links = Links(
            there.hostname or "",
            there.port or 0,
            token_path(location),
            patience=float(location.options.get("timeout", TIMEOUT)),
            clock=clock,
        )
        # A store has no end of its own; its connections go with it.
        finalize(self, self._links.close)

    @classmethod
    def from_url(cls, url: str) -> "PeerStore":
        """The store behind ``evac://...``.

        Raises:
            ConfigError: Malformed, or it holds what may not stand in a URL.
        """
        return cls(parse(url, options=OPTIONS))

    def __repr__(self) -> str:
        return f"PeerStore({self.url!r})"

    @property
    def url(self) -> str:
        """As configured, without anything secret."""
        return self._location.url

    @property
    def address(self) -> str:
        """``host:port``."""
        return self._location.bucket

    async def put(
        self, key: str, data: memoryview, *, progress: Callable[[int], None] | None = None
    ) -> None:
        """See `Store.put`. When cancelled, stops within 1 MiB per connection, and the peer forgets it.

        Raises:
            PeerLeaving: It takes nothing new.
        """
        split(key)
        await in_thread(partial(self._put, key, data, progress))

    async def create(self, key: str, data: bytes) -> bool:
        """See `Store.create`.

        False may speak of our own, where a first answer was lost. Callers compare what is there.
        """
        split(key)
        return await in_thread(partial(self._create, key, data))

    async def get(self, key: str) -> bytes:
        """See `Store.get`; at most 256 MiB."""
        split(key)
        return await in_thread(partial(self._get, key))

    async def read(self, key: str, offset: int, into: memoryview) -> int:
        """See `Store.read`; several parts at once."""
        split(key)
        return await in_thread(partial(self._read, key, offset, into))

    async def list(self, prefix: str) -> Sequence[Entry]:
        """See `Store.list`."""
        return [entry for entry, _ in await self.aged(prefix)]

    async def aged(self, prefix: str) -> Sequence[tuple[Entry, int]]:
        """The same, each with the milliseconds since it came."""
        if prefix:
            split(prefix)
        return await in_thread(partial(self._list, prefix))

    async def age(self, key: str) -> int:
        """Milliseconds since the peer got what it has under *key*.

        Raises:
            StoreMissing: It has nothing.
        """
        split(key)
        return await in_thread(partial(self._age, key))

    async def delete(self, key: str) -> None:
        """See `Store.delete`."""
        split(key)
        await in_thread(partial(self._delete, key))

    async def prepare(self, prefix: str) -> None:
        """See `Store.prepare`: memory has no owners."""
        split(prefix)

    async def clean(self, *, older_than: float = 60.0) -> int:
        """Nothing to do: what a writer did not finish goes with its connection."""
        return 0

    # --- in a thread ----------------------------------------------------------------------

    def _put(
        self, key: str, data: memoryview, progress: Callable[[int], None] | None, stop: Event
    ) -> None:
        with data.cast("B") as view, self._links.line(key, stop.is_set, HURRIED) as link:
            self._send(link, key, view, progress, stop, wire.Verb.COMMIT)

    def _create(self, key: str, data: bytes, stop: Event) -> bool:
        with memoryview(data) as view, self._links.line(key, stop.is_set, HURRIED) as link:
            made = self._send(link, key, view, None, stop, wire.Verb.CREATE)
        return made.status is wire.Status.OK

    def _send(
        self,
        link: Link,
        key: str,
        view: memoryview,
        progress: Callable[[int], None] | None,
        stop: Event,
        ending: wire.Verb,
    ) -> wire.Answer:
        """Begin, all parts, and the end. The put lives and dies with *link*."""
        begin = wire.Request(wire.Verb.BEGIN, self._location.key(key), nbytes=view.nbytes)
        number = _checked(key, link.ask(begin)).number

        def send(at: int, over: Link) -> None:
            nbytes = wire.part_nbytes(view.nbytes, at)
            part = wire.Request(wire.Verb.PART, put=number, offset=at, nbytes=nbytes)
            with view[at : at + nbytes] as body:
                _checked(key, over.ask(part, body, sealed=wire.is_sealed(key)))
            if progress is not None:
                progress(nbytes)

        def errand(at: int) -> None:
            with self._links.line(key, stop.is_set, HURRIED) as over:
                send(at, over)

        starts = range(0, view.nbytes, wire.PART)
        try:
            if len(starts) <= 1:
                for at in starts:
                    send(at, link)
            else:
                Errands(starts, errand).run(self._connections)
        except PeerLost:
            link.drop()  # that tells it to forget the put; to wait for an answer would be for nothing
            raise
        except StoreError:
            # Told, so that its memory is free at once.
            with suppress(StoreError):
                link.ask(wire.Request(wire.Verb.ABORT, put=number))
            raise
        done = link.ask(wire.Request(ending, put=number))
        return done if done.status is wire.Status.EXISTS else _checked(key, done)

    def _get(self, key: str, stop: Event) -> bytes:
        with self._links.line(key, stop.is_set, self._looks) as link:
            nbytes = self._ask_for(link, key, 0, 0).number
            if nbytes > GET_LIMIT:
                raise StoreRejected(key, f"{nbytes} bytes, expected at most {GET_LIMIT}")
        buffer = bytearray(nbytes)
        with memoryview(buffer) as into:
            got = self._read(key, 0, into, stop)
        return bytes(buffer[:got])

    def _read(self, key: str, offset: int, into: memoryview, stop: Event) -> int:
        got: dict[int, int] = {}

        def fetch(start: int) -> None:
            with self._links.line(key, stop.is_set, self._looks) as link:
                end, at = min(start + wire.PART, view.nbytes), start
                while True:
                    answer = self._ask_for(link, key, offset + at, end - at)
                    if answer.nbytes > end - at:
                        raise StoreUnavailable(key, "the peer sent more than was asked for")
                    with view[at : at + answer.nbytes] as piece:
                        link.receive(piece, sealed=wire.is_sealed(key))
                    at += answer.nbytes
                    # An answer ends where a piece of the peer's memory does.
                    if at == end or not answer.nbytes:
                        break
                got[start] = at - start

        with into.cast("B") as view:
            starts = range(0, view.nbytes or 1, wire.PART)
            Errands(starts, fetch).run(self._connections)
        return unbroken(got, wire.PART)

    def _age(self, key: str, stop: Event) -> int:
        with self._links.line(key, stop.is_set, self._looks) as link:
            text = self._ask_for(link, key, 0, 0).text
        if not (text.isascii() and text.isdecimal()):
            raise StoreUnavailable(key, "the peer does not say how old it is")
        return int(text)

    def _list(self, prefix: str, stop: Event) -> Sequence[tuple[Entry, int]]:
        root = self._location.key("")
        asked = self._location.key(prefix).rstrip("/")
        with self._links.line(prefix or self.url, stop.is_set, self._looks) as link:
            answer = _checked(prefix or self.url, link.ask(wire.Request(wire.Verb.LIST, asked)))
            if answer.nbytes > wire.MAX_LIST:
                raise StoreRejected(prefix or self.url, "a listing too long to be one")
            buffer = bytearray(answer.nbytes)
            with memoryview(buffer) as into:
                link.receive(into, sealed=True)
        try:
            found = [
                (Entry(str(key).removeprefix(root), int(nbytes)), int(age))
                for key, nbytes, age in json.loads(buffer)
            ]
        except (ValueError, TypeError) as error:
            raise StoreUnavailable(prefix or self.url, "its listing is none") from error
        return sorted(found, key=lambda one: one[0].key)

    def _delete(self, key: str, stop: Event) -> None:
        what = wire.Request(wire.Verb.DELETE, self._location.key(key))
        with suppress(StoreMissing), self._links.line(key, stop.is_set, self._looks) as link:
            _checked(key, link.ask(what))

    def _ask_for(self, link: Link, key: str, offset: int, nbytes: int) -> wire.Answer:
        name = self._location.key(key)
        what = wire.Request(wire.Verb.READ, name, offset=offset, nbytes=nbytes)
        return _checked(key, link.ask(what))


def token_path(location: Location) -> Path | None:
    """The file that holds what opens the peer; None where nothing is said to.

    Raises:
        ConfigError: It is relative: to what, nobody could say.
    """
    token = location.options.get("token_file") or os.environ.get(wire.TOKEN_VARIABLE)
    if token and not token.startswith("/"):
        raise ConfigError("store", location.url, "an absolute path after token_file=")
    return Path(token) if token else None


def _checked(key: str, answer: wire.Answer) -> wire.Answer:
    """The answer, where it is the one that was hoped for.

    Raises:
        StoreError: What it is instead.
    """
    match answer.status:
        case wire.Status.OK:
            return answer
        case wire.Status.MISSING:
            raise StoreMissing(key, "no such object")
        case wire.Status.LEAVING:
            raise PeerLeaving(key, "the peer is about to be taken away itself")
        case wire.Status.DAMAGED:
            raise StoreUnavailable(key, f"chunk {answer.number} arrived damaged")
        case wire.Status.GONE:
            raise StoreUnavailable(key, "the peer has forgotten this put")
        case wire.Status.FULL:
            raise StoreRejected(key, f"the peer has no room: {answer.text}")
        case _:
            raise StoreRejected(key, f"the peer refused: {answer.text or answer.status.name}")

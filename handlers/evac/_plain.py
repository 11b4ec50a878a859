"""Plain bytes: staged whole with one call, and got back with another.

For state that is bytes already, or arrays that are (JAX, numpy): no torch, no layout.
"""

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from evac._adoption import AdoptedSlot
from evac.errors import EvacError, GenerationError, NotConnected, Refused
from evac.generation import Generation
from evac.segment import PAGE, Header, SlotState, aligned

if TYPE_CHECKING:
    from evac.client import Client

log = logging.getLogger("evac")

# Anything contiguous with the buffer protocol: bytes, arrays of numpy or JAX on the host...
# A list or tuple is several of them. Arrays' own types do not say so before Python 3.12.
Bytes: TypeAlias = Any
# A little room to grow: another reservation gives up what is staged in the one before.
_ROOM = 8


@dataclass(frozen=True)
class Kept:
    """One rank's bytes of a whole generation.

    Attributes:
        step: That was staged.
        data: All of it, in one piece.
        where: The store's URL, or ``this node's memory``.
    """

    step: int
    # Gigabytes, which nobody wants in a log or on a terminal.
    data: bytes = field(repr=False)
    where: str


class Plain:
    """What `Client.stage` and `Client.newest` do; see there."""

    def __init__(self, client: "Client", *, rank: int) -> None:
        self._client = client
        self._rank = rank
        self._connection = 0
        self._room = -1
        self._incarnation = 0

    def stage(self, data: Bytes, step: int, incarnation: int | None, timeout: float) -> str:
        """Why nothing was staged; "" where it was."""
        parts = [memoryview(one).cast("B") for one in _parts(data)]
        nbytes = sum(part.nbytes for part in parts)
        try:
            self._reserve(nbytes, incarnation)
        except (NotConnected, Refused) as error:
            return str(error)
        slot = self._client.acquire(timeout)
        if slot is None:
            return self._client.last_refusal
        try:
            slot.begin(self._incarnation)
            at = PAGE
            for part in parts:
                slot.memory[at : at + part.nbytes] = part
                at += part.nbytes
            slot.complete(Header(SlotState.COMPLETE, self._incarnation, step, nbytes))
        except BaseException:
            self._client.release(slot)
            raise
        self._client.staged(slot, step)
        return ""

    def newest(self, store: str | None) -> Kept | None:
        """From memory where it is newer than what any store has, or as new."""
        here = self._in_memory()
        stores = [*self._client.stores, *([store] if store else [])]
        for url in dict.fromkeys(stores):
            found = _from_store(url, self._client.prefix, self._rank, above=here)
            if found is not None:
                here = found
        return None if here is None else here[1]

    def _reserve(self, nbytes: int, incarnation: int | None) -> None:
        same = incarnation is None or incarnation == self._incarnation
        if self._connection == self._client.connection and nbytes <= self._room and same:
            return
        room = nbytes if self._room < 0 else nbytes + nbytes // _ROOM
        self._incarnation = self._client.reserve(
            nbytes=PAGE + aligned(max(1, room)),
            body=f"rank{self._rank}.bin",
            incarnation=incarnation,
        )
        self._connection, self._room = self._client.connection, aligned(max(1, room))

    def _in_memory(self) -> tuple[Generation, Kept] | None:
        try:
            adoption = self._client.adopt()
        except EvacError as error:
            log.debug("nothing is adopted: %s", error)
            return None
        with adoption:
            shares: dict[Generation, dict[int, AdoptedSlot]] = {}
            for slot in adoption:
                shares.setdefault(slot.generation, {})[slot.rank] = slot
            for generation, ranks in sorted(shares.items(), reverse=True):
                worlds = {one.world for one in ranks.values()}
                if self._rank in ranks and worlds == {len(ranks)}:
                    data = _sound(ranks[self._rank])
                    if data is not None:
                        return generation, Kept(generation.step, data, "this node's memory")
        return None


def _parts(data: Bytes) -> Sequence[Any]:
    return data if isinstance(data, list | tuple) else [data]


def _sound(slot: AdoptedSlot) -> bytes | None:
    from evac.commit import chunk_sums

    data = bytes(slot.data)
    if any(one is not None for one in slot.crc32c):
        with memoryview(data) as view:
            sums = chunk_sums(view)
        if any(a not in (None, b) for a, b in zip(slot.crc32c, sums, strict=True)):
            log.warning("%s is damaged in this node's memory: walking back", slot.generation)
            return None
    return data


def _from_store(
    url: str, prefix: str, rank: int, *, above: tuple[Generation, Kept] | None
) -> tuple[Generation, Kept] | None:
    """The newest sound one that is newer than *above*."""
    with ThreadPoolExecutor(1, "evac-newest") as pool:
        work = _read(url, prefix, rank, above[0] if above else None)
        return pool.submit(asyncio.run, work).result()


async def _read(
    url: str, prefix: str, rank: int, above: Generation | None
) -> tuple[Generation, Kept] | None:
    from evac.commit import chunk_sums, finish_all, newest_complete, was_ever_complete
    from evac.commit.reading import load
    from evac.store import open_store

    store = open_store(url)
    await finish_all(store, prefix)
    below = None
    while (generation := await newest_complete(store, prefix, below=below)) is not None:
        if above is not None and generation <= above:
            return None
        loaded = await load(store, prefix, generation)
        manifest = loaded.manifests.get(rank)
        data = bytearray()
        sound = manifest is not None
        for one in manifest.files if manifest else ():
            part = bytearray(one.nbytes)
            with memoryview(part) as view:
                got = await store.read(f"{loaded.folder}/{one.name}", 0, view)
                sound &= got == one.nbytes and chunk_sums(view) == one.crc32c
            data += part
        if sound:
            return generation, Kept(generation.step, bytes(data), url)
        log.warning("%s: %s is damaged for rank %d: walking back", url, generation, rank)
        below = generation
    if above is None and (below is not None or await was_ever_complete(store, prefix)):
        raise GenerationError(prefix, f"{url}: nothing usable, and there was a whole generation")
    return None

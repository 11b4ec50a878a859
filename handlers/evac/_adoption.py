"""What processes before this one left with the daemon, to be read and not written."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from evac._connection import Connection
from evac._memory import Mapping, map_slot, read_answer
from evac.errors import EvacError, NotConnected, ProtocolError, Refused, SegmentError
from evac.generation import Generation
from evac.manifest import chunks
from evac.segment import HEADER_BYTES, PAGE, Header
from evac.wire import Adopt, Adopted, Lent, Message, Refuse, Release


@dataclass(frozen=True, eq=False)
class AdoptedFile:
    """One of the files that a body consists of.

    Attributes:
        name: Its name in a store, in the generation's folder.
        offset: From the body's start.
        crc32c: Of each 4 MiB of it; None as in `AdoptedSlot`.
        slot: Where it lies.
    """

    name: str
    offset: int
    nbytes: int
    crc32c: tuple[int | None, ...]
    slot: "AdoptedSlot"

    @property
    def data(self) -> memoryview:
        """Its bytes: read-only."""
        return self.slot.data[self.offset : self.offset + self.nbytes]

    @property
    def memory(self) -> memoryview:
        """The same, for who needs a view that is not marked as read-only, and only reads."""
        return self.slot.body_memory[self.offset : self.offset + self.nbytes]


@dataclass(frozen=True, eq=False)
class AdoptedSlot:
    """One rank's share of a generation, in this node's memory.

    Attributes:
        rank: Who staged it, of *world* ranks; ranks may have moved since.
        run: The launch that staged it; equal to this client's own.
        body: File name of the body in a store, where it is one file.
        crc32c: Of each 4 MiB of each file in `data`, as the daemon found it soon after staging;
            None for a chunk that it had no time to sum. Whoever wants to be sure compares.
        parts: Name, offset and length of each file, where there are several.
        weights_metadata_nbytes: How much behind `metadata` is that of the weights alone.
        data: The body: read-only.
        memory: The whole slot; writing to it ends the process.
    """

    number: int
    rank: int
    world: int
    run: str
    generation: Generation
    layout: str
    body: str
    crc32c: tuple[int | None, ...]
    header: Header
    memory: Mapping
    parts: tuple[tuple[str, int, int], ...] = ()
    weights_metadata_nbytes: int = 0

    @property
    def data(self) -> memoryview:
        """See above."""
        return self._view(PAGE, self.header.body_nbytes)

    @property
    def body_memory(self) -> memoryview:
        """The same, for who needs a view that is not marked as read-only, and only reads."""
        return memoryview(self.memory)[PAGE : PAGE + self.header.body_nbytes]

    @property
    def descriptor(self) -> bytes:
        """The JSON that says what lies where; b"" where there is none."""
        return bytes(self._view(self.header.descriptor_offset, self.header.descriptor_nbytes))

    @property
    def metadata(self) -> bytes:
        """DCP's `.metadata`; b"" where the body is no DCP file."""
        nbytes = self.header.metadata_nbytes - self.weights_metadata_nbytes
        return bytes(self._view(self.header.metadata_offset, max(0, nbytes)))

    @property
    def files(self) -> tuple[AdoptedFile, ...]:
        """What the body consists of, as in a store."""
        found, first = [], 0
        for name, offset, nbytes in self.parts or ((self.body, 0, self.header.body_nbytes),):
            sums = self.crc32c[first : first + chunks(nbytes)]
            found.append(AdoptedFile(name, offset, nbytes, sums, self))
            first += chunks(nbytes)
        return tuple(found)

    def _view(self, offset: int, nbytes: int) -> memoryview:
        return memoryview(self.memory).toreadonly()[offset : offset + nbytes]


class Adoption:
    """All that was adopted, newest generation first; until `close` the daemon leaves it as it is."""

    def __init__(self, slots: tuple[AdoptedSlot, ...], release: Callable[[int], None]) -> None:
        self.slots = slots
        self._release = release

    def close(self) -> None:
        """Give it back. What is still mapped stays readable; harmless a second time."""
        slots, self.slots = self.slots, ()
        for slot in slots:
            self._release(slot.number)

    def __iter__(self) -> Iterator[AdoptedSlot]:
        return iter(self.slots)

    def __len__(self) -> int:
        return len(self.slots)

    def __enter__(self) -> "Adoption":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Adopting:
    """The answers to one `adopt`, as they come.

    Args:
        missing: Why the connection is gone.
        release: Gives back one slot, by its number.

    Attributes:
        over: No further one will come.
    """

    def __init__(self, missing: Callable[[], NotConnected], release: Callable[[int], None]) -> None:
        self.over = False
        self._missing = missing
        self._release = release
        self._abandoned = False
        self._lent: set[int] = set()
        self._mapped: dict[int, Mapping] = {}
        self._found: list[Any] | EvacError | None = None

    def hear(self, message: Message | None, fd: int | None) -> None:
        """Take one answer."""
        found: list[Any] | EvacError | None = None
        try:
            if isinstance(message, Lent) and self._abandoned:
                self._release(message.slot)
            elif isinstance(message, Lent) and fd is not None:
                self._lent.add(message.slot)
                self._mapped[message.slot] = map_slot(fd, message.nbytes, writable=False)
            elif isinstance(message, Adopted) and fd is not None:
                found = _slots(read_answer(fd, message.nbytes))
            elif isinstance(message, Refuse):
                found = Refused(message.reason)
            elif message is None:
                found = self._missing()
        except EvacError as error:
            found = error
        if self._found is None and found is not None:
            self._found, self.over = found, True

    def adoption(self) -> Adoption:
        """What came of it, once it is over.

        Raises:
            EvacError: See `Client.adopt`; then it is abandoned.
        """
        try:
            if isinstance(self._found, EvacError):
                raise self._found
            slots = tuple(_adopted(told, self._mapped) for told in self._found or ())
        except EvacError:
            self.abandon()
            raise
        return Adoption(slots, self._release)

    def abandon(self) -> None:
        """Nobody will read it: what was lent goes back, and so does what still comes.

        Else nobody could write there for as long as this client is connected.
        """
        self._abandoned = True
        self._mapped.clear()
        lent, self._lent = self._lent, set()
        for number in lent:
            self._release(number)


def adopt(connection: Connection, timeout: float) -> Adoption:
    """See `Client.adopt`."""
    adopting = Adopting(connection.missing, lambda number: _release(connection, number))

    def hear(message: Message | None, fd: int | None) -> None:
        with connection.changed:
            adopting.hear(message, fd)
            connection.changed.notify_all()

    if not connection.post(Adopt(), hear):
        raise connection.missing()
    with connection.changed:
        try:
            connection.changed.wait_for(lambda: adopting.over, timeout)
            if not adopting.over:
                raise NotConnected(connection.path, f"no answer to adopt in {timeout:g} s")
            return adopting.adoption()
        except BaseException:
            # A signal's, too.
            adopting.abandon()
            raise


def _release(connection: Connection, number: int) -> None:
    connection.post(Release(slot=number))


def _slots(document: dict[str, Any]) -> list[Any]:
    slots = document.get("slots")
    if not isinstance(slots, list):
        raise ProtocolError("adopted names no slots")
    return slots


def _adopted(told: Any, mapped: dict[int, Mapping]) -> AdoptedSlot:
    try:
        memory = mapped[told["slot"]]
        header = Header.unpack(bytes(memory[:HEADER_BYTES]), slot_nbytes=len(memory))
        generation = Generation(told["incarnation"], told["step"])
        slot = AdoptedSlot(
            number=told["slot"],
            rank=told["rank"],
            world=told["world"],
            run=told["run"],
            generation=generation,
            layout=told["layout"],
            body=told["body"],
            crc32c=tuple(told["crc32c"]),
            header=header,
            memory=memory,
            parts=tuple((one["name"], one["offset"], one["nbytes"]) for one in told["files"]),
            weights_metadata_nbytes=told["weights_metadata_nbytes"],
        )
    except (KeyError, TypeError) as error:
        raise ProtocolError(f"adopted tells of a slot in an unknown way: {error}") from error
    if Generation(header.incarnation, header.step) != generation:
        raise SegmentError(f"an adopted slot holds another generation than {generation}")
    return slot

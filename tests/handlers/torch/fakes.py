"""A daemon's half of the client, in this process: real sealed memory, no socket."""

import fcntl
import os
from collections.abc import Callable, Sequence
from typing import cast

from evac._callbacks import RunningOrder
from evac._memory import FIXED_SIZE, SlotMemory, map_slot
from evac.client import Client
from evac.errors import Refused
from evac.interval import Interval
from evac.segment import PAGE, Header
from evac.wire import Advice


class FakeClient:
    """Keeps what was staged, as the daemon does; a test frees slots by `free`."""

    def __init__(self, stores: Sequence[str] = (), *, prefix: str = "me/run") -> None:
        self.connected = True
        self.connection = 1
        self.prefix = prefix
        self.socket = "/run/no.sock"
        self.absence = "it is a fake"
        self.lost: float | None = None
        self.stores = tuple(stores)
        self.refuses = ""
        self.left = False
        self.closed = False
        self.reservations: list[dict[str, object]] = []
        self.kept: list[tuple[int, int]] = []
        self.released: list[int] = []
        self.orders: list[Callable[[RunningOrder], object]] = []
        self.advice: list[Callable[[Advice], object]] = []
        self._slots: dict[int, SlotMemory] = {}
        self._free: list[int] = []

    def on_order(self, function: Callable[[RunningOrder], object]) -> None:
        self.orders.append(function)

    def on_advice(self, function: Callable[[Advice], object]) -> None:
        self.advice.append(function)

    def as_client(self) -> Client:
        return cast("Client", self)

    def wait_connected(self, timeout: float) -> bool:
        return self.connected

    def reserve(self, *, nbytes: int, body: str, layout: str, incarnation: int, slots: int) -> None:
        if self.refuses:
            raise Refused(self.refuses)
        self.reservations.append(
            {"nbytes": nbytes, "body": body, "layout": layout, "incarnation": incarnation}
        )
        self._slots = {n: self._slot(n, nbytes) for n in range(slots)}
        self._free = list(self._slots)

    @property
    def openings(self) -> int:
        return len(self._slots)

    def acquire(self, timeout: float) -> SlotMemory | None:
        return self._slots[self._free.pop(0)] if self._free else None

    def staged(self, slot: SlotMemory, step: int, *, interval: Interval | None = None) -> None:
        self.kept.append((slot.number, step))

    def release(self, slot: SlotMemory) -> None:
        self.released.append(slot.number)
        self._free.append(slot.number)

    def leave(self) -> None:
        self.left = True

    def close(self) -> None:
        self.closed = True

    def free(self, number: int) -> None:
        self._free.append(number)

    def restart(self) -> None:
        """As a daemon that comes back and knows nothing of old slots."""
        self.connection += 1

    def header(self, number: int) -> Header:
        slot = self._slots[number]
        return Header.unpack(bytes(slot.memory[:PAGE]), slot_nbytes=slot.nbytes)

    def body(self, number: int) -> bytes:
        header = self.header(number)
        return bytes(self._slots[number].memory[PAGE : PAGE + header.body_nbytes])

    def metadata(self, number: int) -> bytes:
        header = self.header(number)
        end = header.metadata_offset + header.metadata_nbytes
        return bytes(self._slots[number].memory[header.metadata_offset : end])

    def descriptor(self, number: int) -> bytes:
        header = self.header(number)
        end = header.descriptor_offset + header.descriptor_nbytes
        return bytes(self._slots[number].memory[header.descriptor_offset : end])

    def _slot(self, number: int, nbytes: int) -> SlotMemory:
        fd = os.memfd_create("slot", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, nbytes)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, FIXED_SIZE | fcntl.F_SEAL_SEAL)
            return SlotMemory(number, self.connection, map_slot(fd, nbytes))
        finally:
            os.close(fd)

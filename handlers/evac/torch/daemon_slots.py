"""Slots that belong to the node's daemon: what is staged there outlives this process."""

from evac._memory import SlotMemory
from evac.client import Client
from evac.errors import EvacError
from evac.segment import Header
from evac.torch.layout import Layout

_ACQUIRE_SECONDS = 0.25


class DaemonSlots:
    """See `Slots`. Does not own *client*: its maker closes it."""

    def __init__(self, client: Client, *, slots: int) -> None:
        self._client = client
        self._slots = slots

    @property
    def prefix(self) -> str:
        """See `Slots.prefix`."""
        return self._client.prefix

    @property
    def stores(self) -> tuple[str, ...]:
        """See `Slots.stores`."""
        return self._client.stores

    @property
    def epoch(self) -> int:
        """See `Slots.epoch`: a daemon that was restarted knows nothing of old slots."""
        return self._client.connection

    def ready(self) -> str:
        """See `Slots.ready`."""
        return "" if self._client.connected else "the daemon is away"

    def reserve(self, nbytes: int, layout: Layout, incarnation: int) -> str:
        """See `Slots.reserve`."""
        try:
            self._client.reserve(
                nbytes=nbytes,
                body=layout.body,
                layout=layout.name,
                incarnation=incarnation,
                slots=self._slots,
            )
        except EvacError as error:
            return f"no slots of {nbytes:,} bytes: {error}"
        return ""

    def acquire(self) -> SlotMemory | None:
        """See `Slots.acquire`."""
        return self._client.acquire(_ACQUIRE_SECONDS)

    def staged(self, slot: SlotMemory, header: Header) -> None:
        """See `Slots.staged`."""
        self._client.staged(slot, header.step)

    def release(self, slot: SlotMemory) -> None:
        """See `Slots.release`."""
        self._client.release(slot)

    def close(self) -> None:
        """See `Slots.close`."""

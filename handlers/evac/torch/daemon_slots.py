"""Slots that belong to the node's daemon: what is staged there outlives this process."""

from collections.abc import Callable

from evac._clock import Monotonic, monotonic
from evac._memory import SlotMemory
from evac.client import Client
from evac.errors import EvacError, NotConnected
from evac.interval import Interval
from evac.segment import Header
from evac.torch.layout import Layout

# For an answer, or a slot whose memory is still being made: at least as long as that takes for some
# hundred MiB, so that the stage after the first one is not skipped, and no longer, for training waits.
_ACQUIRE_SECONDS = 0.25
# From one question in vain to the next: a daemon that hangs costs training 1 %, and so does memory
# that is long in the making.
_PAUSE_SECONDS = 100 * _ACQUIRE_SECONDS
# A reservation that is long in the making, where the node's memory is slow or many ranks begin at once, is not
# asked for again before this: that would begin it anew, at the end of the line, and have training wait once more.
_ANEW_SECONDS = 600.0


class DaemonSlots:
    """See `Slots`. Does not own *client*: its maker closes it.

    Args:
        interval: How often the job stages as of a monotonic second, for the node's status.
    """

    def __init__(
        self,
        client: Client,
        *,
        slots: int,
        clock: Monotonic = monotonic,
        interval: Callable[[float], Interval | None] = lambda _: None,
    ) -> None:
        self._client = client
        self._slots = slots
        self._clock = clock
        self._interval = interval
        self._not_before = 0.0
        # When the last question was in vain.
        self._openings = 0
        # What was asked for and has not come in time, from when on to ask again, and at how many openings.
        self._late: tuple[object, float, int] | None = None

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
        """See `Slots.reserve`; without asking where the same is still being made."""
        wanted, openings = (nbytes, layout.name, incarnation, self.epoch), self._client.openings
        late, self._late = self._late, None
        if late is None or late[0] != wanted or (late[2] == openings and self._clock() >= late[1]):
            try:
                self._client.reserve(
                    nbytes=nbytes,
                    body=layout.body,
                    layout=layout.name,
                    incarnation=incarnation,
                    slots=self._slots,
                )
            except EvacError as error:
                if isinstance(error, NotConnected) and self._client.connected:
                    self._late = (wanted, self._clock() + _ANEW_SECONDS, openings)
                return f"no slots of {nbytes:,} bytes: {error}"
        elif late[2] == openings:
            self._late = late
            return f"no slots of {nbytes:,} bytes: evacd is still making the first"
        # Another reservation, and it does not hang: nothing was in vain yet.
        self._not_before = 0.0
        return ""

    def acquire(self) -> SlotMemory | None:
        """See `Slots.acquire`; None without asking where the last time was waited out in vain.

        Until a slot or a grant has come since: each slot is waited for once, so that a reservation
        costs at most 0.25 s a slot, and what was granted late is there without a question.
        """
        began, openings = self._clock(), self._client.openings
        if began < self._not_before and openings == self._openings:
            return None
        slot = self._client.acquire(_ACQUIRE_SECONDS)
        now = self._clock()
        if slot is None and now - began >= _ACQUIRE_SECONDS:
            self._not_before, self._openings = now + _PAUSE_SECONDS, openings
        return slot

    def staged(self, slot: SlotMemory, header: Header) -> None:
        """See `Slots.staged`."""
        self._client.staged(slot, header.step, interval=self._interval(self._clock()))

    def release(self, slot: SlotMemory) -> None:
        """See `Slots.release`."""
        self._client.release(slot)

    def close(self) -> None:
        """See `Slots.close`."""

"""Where to stage now: with the daemon while it is there, else in this process's own memory."""

import logging
from collections.abc import Callable

from evac._clock import Monotonic
from evac.client import Client
from evac.interval import Interval
from evac.torch.daemon_slots import DaemonSlots
from evac.torch.own_slots import OwnSlots
from evac.torch.slots import Slots

log = logging.getLogger("evac")


class Switch:
    """Goes over to own slots when the daemon stays away, and back as soon as it is back.

    The ranks of a node lose their daemon together, and go over within a step or two of each other;
    only what all ranks of the job commit by themselves becomes whole.

    Args:
        make_own: Makes the own slots; None where there is no store to commit them to.
        interval: How often the job stages as of a monotonic second, for the daemon to show.
        slots: How many generations the daemon is asked to hold.
        patience: Seconds without a daemon that was there before.
    """

    def __init__(
        self,
        client: Client,
        make_own: Callable[[], OwnSlots] | None,
        interval: Callable[[float], Interval | None] = lambda _: None,
        *,
        slots: int,
        patience: float,
        clock: Monotonic,
    ) -> None:
        self._client = client
        self._make_own = make_own
        self._slots = slots
        self._patience = patience
        self._clock = clock
        self._interval = interval
        self._now: Slots | None = None
        self._own: OwnSlots | None = None

    def where(self) -> Slots | None:
        """The slots for the next stage; None where there is neither a daemon nor a store."""
        if self._client.connected:
            return self._with_daemon()
        if isinstance(self._now, DaemonSlots) and not self._given_up():
            return self._now
        return self._alone(self._make_own) if self._make_own else self._now

    def close(self, patience: float | None = None) -> None:
        """Commit what is under way in our own memory.

        Args:
            patience: Seconds to wait for it; None for the usual.
        """
        if self._own is not None:
            self._own.close() if patience is None else self._own.close(patience)

    def _given_up(self) -> bool:
        lost = self._client.lost
        return lost is not None and self._clock() - lost >= self._patience

    def _with_daemon(self) -> Slots:
        if not isinstance(self._now, DaemonSlots):
            if self._own is not None:
                log.info("evacd is there: staging with it from now on")
                self._own.rest()
            self._now = DaemonSlots(self._client, slots=self._slots, interval=self._interval)
        return self._now

    def _alone(self, make_own: Callable[[], OwnSlots]) -> Slots:
        own = self._own = self._own or make_own()
        if self._now is not own:
            if self._now is not None:
                text = "evacd is away for %g s: committing to %s from this process until it is back"
                log.warning(text, self._patience, own.stores[0])
            self._now = own
        return own

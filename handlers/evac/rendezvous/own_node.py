"""Does this agent's own node leave? It asks evacd, for scripts that have never heard of evac.

A worker that registers with evacd names the job's store, and evacd writes the departure there itself; it
is told what becomes of the bytes, too. Where no worker does, the agent sees the order in evacd's status
and says as much as it can: that the node leaves, or stays after all. Both may say it; it counts once.
"""

import logging
import os
from collections.abc import Callable, Mapping
from threading import Event as Flag
from threading import Thread
from typing import Any

from evac.admin import read_status
from evac.errors import EvacError
from evac.rendezvous.events import LEAVING, STAYING, Depart, Event
from evac.rendezvous.state import Agent

logger = logging.getLogger("evac")

_PERIOD_SECONDS, _ANSWER_SECONDS = 0.5, 2.0


class OwnNode:
    """Looks at evacd's status in a thread of its own, from `start` to `stop`."""

    def __init__(self, socket: str, me: Agent, say: Callable[[Event], None]) -> None:
        self._socket = socket
        self._me = me
        self._say = say
        self._told = ""
        self._stop = Flag()

    def start(self) -> None:
        """Begin to look."""
        Thread(target=self._look, name="evac-rdzv-node", daemon=True).start()

    def stop(self) -> None:
        """Look no more."""
        self._stop.set()

    def _look(self) -> None:
        while not self._stop.wait(_PERIOD_SECONDS):
            if not os.path.exists(self._socket):
                continue
            try:
                status = read_status(self._socket, timeout=_ANSWER_SECONDS)
            except (EvacError, OSError) as error:
                # It says neither that the node leaves nor that it stays.
                logger.debug("evacd gives no status: %s", error)
                continue
            if (word := self.heard(status)) is not None:
                self._say(word)

    def heard(self, status: Mapping[str, Any]) -> Depart | None:
        """What follows from a status, the first time that it does."""
        order = status.get("order")
        running = str(order.get("id") or "?") if isinstance(order, Mapping) else ""
        if running == self._told:
            return None
        before, self._told = self._told, running
        word, id = (LEAVING, running) if running else (STAYING, before)
        left = order.get("seconds_left") if isinstance(order, Mapping) else 0.0
        # Numbered below all that evacd says itself: its own word is the better one.
        return Depart(
            word,
            self._me.node,
            self._me.boot,
            order=id[:64],
            seconds_left=max(float(left), 0.0) if isinstance(left, (int, float)) else 0.0,
        )

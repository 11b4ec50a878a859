"""Tells this node's evacd which generation the job has agreed on: it keeps it until the job has resumed.

evacd itself reads the job's log only while its own node leaves; those who stay learn it from here. What
workers stage until they are stopped would write over it, so it is told at once.
"""

import logging
import os
from collections.abc import Callable, Mapping
from threading import Thread
from typing import Protocol

from evac.admin import request
from evac.errors import EvacError
from evac.rendezvous.choices import Choices, generation_of
from evac.rendezvous.state import Agent, State
from evac.wire import Pin, Refuse

logger = logging.getLogger("evac")

_ANSWER_SECONDS = 2.0
# Between two looks at whether this should end, and between two tries; and how many tries.
_PAUSE_SECONDS = 1.0
_TRIES = 30


class Follows(Protocol):
    """Who reads the job's log; `evac.rendezvous.follower.Follower` does."""

    @property
    def state(self) -> State:
        """What the log has said so far."""
        ...

    def wait(self, until: Callable[[State], bool], seconds: float) -> bool:
        """Wait at most *seconds* for a state that *until* is content with."""
        ...


class Pins:
    """Passes on what changes, in a thread of its own, from `start` to `stop`."""

    def __init__(self, socket: str, me: Agent, follower: Follows) -> None:
        self._socket = socket
        self._me = me
        self._follower = follower
        self._told: dict[str, Pin] = {}
        self._tries = 0
        self._ended = False

    def start(self) -> None:
        """Begin to pass on."""
        Thread(target=self._run, name="evac-rdzv-pin", daemon=True).start()

    def stop(self) -> None:
        """Pass on no more."""
        self._ended = True

    def _run(self) -> None:
        while not self._ended:
            if self._follower.wait(self._looks_up, _PAUSE_SECONDS) and not self._tell_all():
                self._follower.wait(lambda _: self._ended, _PAUSE_SECONDS)

    def _looks_up(self, state: State) -> bool:
        return self._ended or bool(news(self._told, state.choices, self._me))

    def _tell_all(self) -> bool:
        """Whether all of it was heard."""
        every = news(self._told, self._follower.state.choices, self._me)
        heard = [pin for pin in every if self._tell(pin)]
        self._told.update({pin.prefix: pin for pin in heard})
        return len(heard) == len(every)

    def _tell(self, pin: Pin) -> bool:
        """Whether there is nothing left to be told: it was heard, or nobody is there to hear it."""
        if not os.path.exists(self._socket):
            return True
        try:
            answer = request(self._socket, pin, timeout=_ANSWER_SECONDS)
        except (EvacError, OSError) as error:
            logger.debug("evacd does not hear what the job has agreed on: %s", error)
            self._tries = (self._tries + 1) % _TRIES
            return not self._tries
        if isinstance(answer, Refuse):
            logger.debug("evacd keeps nothing of %s: %s", pin.prefix, answer.reason)
        return True


def news(told: Mapping[str, Pin], choices: Choices, me: Agent) -> list[Pin]:
    """What is still to be told; what this node has chosen itself, its evacd knows best."""
    found = []
    for job, choice in choices.items():
        if (choice.node, choice.boot) == (me.node, me.boot):
            continue
        chosen = generation_of(choice)
        pin = Pin(job[:256], chosen.incarnation, chosen.step)
        if told.get(pin.prefix) != pin:
            found.append(pin)
    for job, pin in told.items():
        if pin.keep and job not in choices:
            found.append(Pin(job, pin.incarnation, pin.step, keep=False))
    return found

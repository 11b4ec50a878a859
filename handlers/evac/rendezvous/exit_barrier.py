"""Has an agent of this round finished its work? The one thing here that torch keeps to itself.

An agent whose workers have ended well waits for the others in a barrier, and says so nowhere but
in the round's store. From then on nobody may be made to restart: who has finished does not come
back. It waits 300 s for whoever leaves instead; so that one counts itself there as it goes. The keys are
private to torch (`SimpleElasticAgent._exit_barrier`: ``torchelastic/agent/terminal_state`` in
agent/server/api.py, with what `barrier` in utils/store.py appends); the same in 2.9, 2.13 and 2.14. In a
torch that we have not read, nobody ever counts as finished: a departure in the last second of a job then
restarts workers, as it does without this file.
"""

from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import Protocol

import torch

_ALL_OF_THEM = "torchelastic/agent/terminal_state"
_COUNT, _COMPLETE = f"{_ALL_OF_THEM}/num_members", f"{_ALL_OF_THEM}/last_member"
_READ = ((2, 9), (2, 14))
_LOOK_SECONDS = 1.0


class Store(Protocol):
    """As much of torch's stores as is used here."""

    def check(self, keys: list[str], /) -> bool:
        """Whether all of *keys* are there."""
        ...

    def add(self, key: str, amount: int, /) -> int:
        """Count up; what it is then."""
        ...

    def set(self, key: str, value: str, /) -> None:
        """Write."""
        ...


def finishing(store: Store) -> bool:
    """Whether an agent of the round whose store this is has finished; False where unknown.

    Asked with a time limit: the store's machine may be gone.
    """
    return _asked(lambda: store.check([_COUNT]))


def depart(store: Store, world: int) -> bool:
    """Wait for nobody there, and let nobody wait: for an agent that ends without the barrier.

    Args:
        world: Agents of the round.

    Returns:
        Whether somebody was waiting, and was told.
    """

    def act() -> bool:
        if not store.check([_COUNT]):
            return False
        if store.add(_COUNT, 1) == world:
            store.set(_COMPLETE, "")
        return True

    return _asked(act)


def _asked(question: Callable[[], bool]) -> bool:
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if not _READ[0] <= version <= _READ[1]:
        return False
    found: list[bool] = []
    asking = Thread(target=_ask, args=(question, found), name="evac-rdzv-finish", daemon=True)
    asking.start()
    asking.join(_LOOK_SECONDS)
    return found == [True]


def _ask(question: Callable[[], bool], found: list[bool]) -> None:
    with suppress(RuntimeError):
        found.append(question())

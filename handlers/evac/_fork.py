"""What fork does to clients: the child's copy is inert, the parent's goes on undisturbed.

A forked data-loader worker that kept the socket or a slot would keep a dead trainer looking
alive and the daemon's memory taken.
"""

import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from threading import Lock, local
from typing import Protocol
from weakref import WeakSet

# While an fd is in flight or a mapping not yet marked, a child would inherit it unmarked.
_guard = Lock()
_forking = local()
# A fork from a signal handler may come while this very thread is held up; it then goes ahead.
_PATIENCE = 1.0


class Forgets(Protocol):
    """Something that must not live on in a forked child."""

    def forget(self) -> None:
        """Let go of everything shared with the parent; take no lock, it may be held for ever."""
        ...


_all: "WeakSet[Forgets]" = WeakSet()


def watch(one: Forgets) -> None:
    """Call `forget` on *one* in every forked child."""
    _all.add(one)


@contextmanager
def held_off() -> Generator[None]:
    """No fork through `os.fork` happens inside."""
    with _guard:
        yield


def _before() -> None:
    _forking.holds = _guard.acquire(timeout=_PATIENCE)


def _after_in_parent() -> None:
    if _forking.holds:
        _guard.release()


def _after_in_child() -> None:
    global _guard
    _guard = Lock()
    for one in list(_all):
        # One that fails must not keep the next from being forgotten.
        with suppress(OSError):
            one.forget()


os.register_at_fork(
    before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child
)

"""What is under way when a program ends without a word: at its last line, by `sys.exit`, by an exception.

Python runs `atexit` after it has stopped its thread pools, and a commit that needs one fails then. What
`threading` itself calls when the main thread has ended comes before that, the latest first.
"""

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from weakref import WeakMethod


def at_exit(method: Callable[[], None]) -> None:
    """Call *method* when the main thread of this process has ended, if its object lives still.

    Never in a forked child: what it inherits is its parent's, and locked by threads that it has not.
    """
    process, held = os.getpid(), WeakMethod(method)

    def run() -> None:
        if os.getpid() == process and (alive := held()) is not None:
            alive()

    # Where the end has begun already, there is nothing left to wait for.
    with suppress(RuntimeError):
        threading._register_atexit(run)  # type: ignore[attr-defined] # since Python 3.9, and what concurrent.futures uses


def crashed() -> bool:
    """Whether an exception that nobody caught ends this program."""
    return getattr(sys, "last_value", None) is not None

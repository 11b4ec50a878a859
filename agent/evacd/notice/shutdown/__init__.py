"""The machine's own shutdown: logind's announcement, and a SIGTERM that means it.

On clouds that announce nothing else (Nebius, OCI, IBM, OpenStack) this is the notice; on the
others it is the last chance.
"""

import math

from evacd.clock import Clock
from evacd.notice import Source
from evacd.notice.shutdown.gather import signs
from evacd.notice.shutdown.logind import ShutdownSource
from evacd.notice.shutdown.sigterm import Signs, second_sign, sigterm_notice

__all__ = ["ShutdownSource", "Signs", "second_sign", "signs", "sigterm_notice", "sources"]


def sources(
    clock: Clock, *, address: str | None = None, most_seconds: float = math.inf
) -> tuple[Source, ...]:
    """The one source of this machine's shutdown.

    Args:
        address: A D-Bus address; None is the system bus.
        most_seconds: What the machine lasts at most once it shuts down.
    """
    return (ShutdownSource(clock, address=address, most_seconds=most_seconds),)

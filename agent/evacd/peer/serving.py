"""The server for as long as the daemon runs; a port that cannot be had is told and stops nothing."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import structlog

from evacd.clock import Clock
from evacd.peer.server import PeerServer, PeerSettings

log = structlog.get_logger()


@asynccontextmanager
async def serving(
    settings: PeerSettings | None,
    clock: Clock,
    *,
    leaving: Callable[[], bool],
    promised: Callable[[], int],
) -> AsyncIterator[Callable[[], dict[str, object] | None]]:
    """Keep other nodes' bytes while the context is open; see `PeerServer`.

    Args:
        settings: None where that is not wanted.

    Yields:
        What the status shows of it: None where it is not wanted; ``reason`` where it is not served.
    """
    if settings is None:
        yield lambda: None
        return
    server = PeerServer(settings, clock, leaving=leaving, promised=promised)
    try:
        server.open()
    except OSError as error:
        reason = error.strerror or str(error)
        log.error("peer.unserved", address=settings.host, port=settings.port, reason=reason)
        yield lambda: {"reason": reason}
        return
    try:
        yield server.shown
    finally:
        # It waits for its threads, each a fraction of a second at most.
        await asyncio.to_thread(server.close)

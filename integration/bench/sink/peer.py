"""A process that keeps what peers put there, as evacd does, beside an event loop that it times.

Prints its port. For each line on stdin it prints how late the loop came by since the line before: the 99th
percentile, in milliseconds.
"""

import asyncio
import logging
import sys
import time

import structlog

from evacd.clock import SystemClock
from evacd.peer import PeerServer, PeerSettings
from sink import HOST, MIB

TICK = 0.005


async def serve(budget: int, token: bytes) -> None:
    """Until stdin ends."""
    # Our stdout is spoken for.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    settings = PeerSettings(HOST, 0, token, budget, 3600.0, 16)
    server = PeerServer(settings, SystemClock(), leaving=lambda: False, promised=lambda: 0)
    server.open()
    print(server.port, flush=True)
    late: list[float] = []

    async def tick() -> None:
        while True:
            due = time.perf_counter() + TICK
            await asyncio.sleep(TICK)
            late.append(time.perf_counter() - due)

    async with asyncio.TaskGroup() as tasks:
        ticking = tasks.create_task(tick())
        while await asyncio.to_thread(sys.stdin.readline):
            late.sort()
            print(late[int(len(late) * 0.99)] * 1000 if late else 0.0, flush=True)
            late.clear()
        ticking.cancel()
    server.close()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]) + 64 * MIB, sys.argv[2].encode()))

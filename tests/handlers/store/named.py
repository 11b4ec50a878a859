"""A process that flushes when it is told to, and asks before each call of its store: see `driven.py`.

Standard input: ``mark nbytes`` to flush so much below that mark, or, as the answer to ``call``, ``go`` or ``cut``:
the latter makes it wait until it has noticed that its connections are no more. It prints ``call``, and at the end
of a flush a line of JSON.
"""

import asyncio
import json
import sys
import time

import psutil

from evac.store import Store, open_store
from tests.handlers.store.faulty import store_at
from tests.handlers.store.flushing import BODY, attempt
from tests.handlers.store.watched import Watched

CALL = "call"


def opened(kind: str, endpoint: str, mark: str) -> Store:
    """A store of that kind below *mark*."""
    if kind == "evac":
        return open_store(f"evac://{endpoint.removeprefix('http://')}/{mark}")
    return store_at(kind, endpoint, mark)


def say(line: str) -> None:
    """To whoever started this."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(kind: str, endpoint: str) -> None:
    """Until standard input ends."""
    port, stores = int(endpoint.rpartition(":")[2]), dict[str, Store]()

    def before(*_: str) -> None:
        say(CALL)
        if sys.stdin.readline().strip() == "cut":
            until_closed(port, noticed=kind in ("s3", "az"))

    async def serve() -> None:
        # One loop for all: connections belong to it.
        while line := sys.stdin.readline():
            mark, nbytes = line.split()
            store = stores.setdefault(mark, Watched(opened(kind, endpoint, mark), before))
            error = await attempt(store, body=BODY[: int(nbytes)])
            said = None if error is None else {"kind": type(error).__name__, "reason": error.reason}
            say(json.dumps(said))

    asyncio.run(serve())


def until_closed(port: int, *, noticed: bool) -> None:
    """Wait until no connection to *port* lives.

    Args:
        noticed: Until none is held, either: obstore's own threads see to that; others look when they use one.
    """
    for _ in range(3000):
        there = [
            one.status
            for one in psutil.Process().net_connections("tcp")
            if len(one.raddr)
            and one.raddr.port == port  # nobody is at the other end of what listens
        ]
        if not there or (not noticed and {*there} <= {psutil.CONN_CLOSE_WAIT}):
            return
        time.sleep(0.01)
    raise TimeoutError("a connection that was cut is still there")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A workload that is not root: stages one step more than it finds, says so, and waits for its end.

Started as root and then somebody else, because root's own Python may be nobody else's to read.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import crc32c  # noqa: F401 - by root, for `verify`

import evac
from evac.commit import claim_incarnation, newest_complete, verify
from evac.segment import PAGE, Header, SlotState
from evac.store import Store, open_store

NBYTES = 1 << 20


def become(uid: int) -> None:
    """Give up root for good."""
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)


async def resume(store: Store, prefix: str) -> tuple[int, int]:
    """The newest step that is whole, to the last checksum, and a number for this start."""
    newest = await newest_complete(store, prefix)
    if newest is not None and (problems := await verify(store, prefix, newest)):
        raise AssertionError(problems)
    number = await claim_incarnation(store, prefix, claim={"run": "test"})
    return newest.step if newest else 0, number


def plain(uid: int, socket: str, url: str) -> dict[str, Any]:
    """A workload without torch."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(resume(open_store(f"file://{folder}"), "warm/up"))
    become(uid)
    client = evac.connect("job", socket=socket)
    assert client.wait_connected(20.0), client.absence
    found, number = asyncio.run(resume(open_store(url), client.prefix))
    client.reserve(nbytes=PAGE + NBYTES, body="a.bin", incarnation=number)
    slot = client.acquire(60.0)
    assert slot is not None
    slot.begin(number)
    slot.memory[PAGE:] = bytes([number]) * NBYTES
    slot.complete(Header(SlotState.COMPLETE, number, found + 1, NBYTES))
    client.staged(slot, found + 1)
    globals()["_kept"] = client  # or it would hang up
    return {"found": found, "incarnation": number, "state": ""}


def torch(uid: int, socket: str, url: str) -> dict[str, Any]:
    """A training run."""
    from tests.handlers.torch.training import Run, wait_committed

    os.environ["EVAC_SOCKET"] = "/nowhere/evacd.sock"
    with tempfile.TemporaryDirectory() as folder:
        for step in (1, 2):
            # All that is imported late is imported now.
            run = Run()
            with run.saver(store=f"file://{folder}") as saver:
                saver.restore()
                run.train()
                saver.stage(step)
                wait_committed(f"file://{folder}", step)
    become(uid)
    os.environ["EVAC_SOCKET"] = socket
    run = Run()
    saver = run.saver(job="job")
    found = saver.restore() or 0
    before = run.digest()
    run.train()
    # On a busy machine an answer may come later than training waits for it.
    while not saver.stage(found + 1):
        time.sleep(0.01)
    globals()["_kept"] = saver
    return {"found": found, "before": before, "state": run.digest()}


def main() -> None:
    """Do it, tell, and wait."""
    kind, uid, socket, url = sys.argv[1:]
    told = {"plain": plain, "torch": torch}[kind](int(uid), socket, url)
    assert not os.access(Path(url.removeprefix("file://")), os.W_OK)
    print(json.dumps({**told, "uid": os.geteuid()}), flush=True)  # noqa: T201
    sys.stdin.readline()


if __name__ == "__main__":
    main()

"""A workload without torch for the daemon's tests: does what it is told on stdin, line by line.

Each line is a JSON object with "do"; each is answered by one line. Bodies are made from the
step, so that a test can tell which generation a file holds.
"""

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import Any

import evac
from evac import Client, SlotMemory
from evac.segment import PAGE, Header, SlotState, aligned


def body_of(rank: int, step: int, nbytes: int) -> bytes:
    """What rank stages at step: recognisable, and different in every page."""
    pattern = b"".join(
        f"rank {rank} step {step} page {page:>8}\n".encode().ljust(64, b".") for page in range(64)
    )
    return (pattern * (nbytes // len(pattern) + 1))[:nbytes]


def eat(fifo: str) -> None:
    """Take all memory that there is, once somebody opens the *fifo* to write."""
    with open(fifo) as told:
        told.read()
    taken = [b"x" * (1 << 26)]
    while True:
        taken.append(b"x" * (1 << 26))


class Worker:
    """One workload."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.nbytes: int = settings.pop("nbytes", 1 << 20)
        self.rank: int = settings.get("rank", 0)
        self.behave: str = settings.pop("behave", "save")
        self.file: str = settings.pop("file", "")
        self.metadata: bytes = settings.pop("metadata", "").encode()
        if hog := settings.pop("hog", ""):
            Thread(target=eat, args=(hog,), daemon=True).start()
        self.client: Client = evac.connect(**settings)
        self.slot: SlotMemory | None = None
        if settings.get("mode") == "callback":
            self.client.on_turn(self.turn)

    def turn(self, turn: "evac.TurnBudget") -> int:
        """A callback workload's own flush: well-behaved, failing, or hung."""
        if self.behave == "fail":
            raise OSError("the index is broken")
        if self.behave == "hang":
            while True:
                os.read(os.pipe()[0], 1)
        with open(self.file, "wb") as file:
            return file.write(b"x" * self.nbytes)

    def connect(self, seconds: float = 10.0) -> dict[str, Any]:
        """Wait for the daemon."""
        return {"connected": self.client.wait_connected(seconds), "prefix": self.client.prefix}

    def reserve(
        self, incarnation: int = 1, slots: int = 3, layout: str = "plain"
    ) -> dict[str, Any]:
        """Ask for slots."""
        nbytes = PAGE + aligned(self.nbytes) + PAGE
        self.client.reserve(
            nbytes=nbytes,
            body=f"part{self.rank}.bin",
            layout=layout,
            incarnation=incarnation,
            slots=slots,
        )
        self.incarnation = incarnation
        self._all_made()
        return {}

    def _all_made(self) -> None:
        """Whatever befalls the daemon next finds all slots there, as far as it lives that long."""
        with suppress(evac.NotConnected):
            while "filling" in [
                slot["state"]
                for one in self.client.status()["workloads"]
                if (one["unit"], one["rank"]) == (self.client.prefix, self.rank)
                for slot in one["slots"]
            ]:
                time.sleep(0.001)

    def begin(self, step: int) -> dict[str, Any]:
        """Acquire a slot and write half of the body: torn until `finish`."""
        self.slot = self.client.acquire(20.0)
        if self.slot is None:
            return {"refused": self.client.last_refusal}
        self.slot.begin(self.incarnation)
        body = body_of(self.rank, step, self.nbytes)
        half = len(body) // 2
        self.slot.memory[PAGE : PAGE + half] = body[:half]
        return {"slot": self.slot.number}

    def finish(self, step: int) -> dict[str, Any]:
        """Write the rest and stage."""
        slot = self.slot
        assert slot is not None
        body = body_of(self.rank, step, self.nbytes)
        slot.memory[PAGE : PAGE + len(body)] = body
        end = PAGE + aligned(len(body))
        slot.memory[end : end + len(self.metadata)] = self.metadata
        slot.complete(
            Header(
                SlotState.COMPLETE,
                self.incarnation,
                step,
                len(body),
                metadata_offset=end if self.metadata else 0,
                metadata_nbytes=len(self.metadata),
            )
        )
        self.client.staged(slot, step)
        return {}

    def stage(self, step: int) -> dict[str, Any]:
        """The whole of it."""
        begun = self.begin(step)
        return begun if "refused" in begun else self.finish(step)

    def corrupt(self) -> dict[str, Any]:
        """Scribble over what was staged last, as a stray pointer would."""
        assert self.slot is not None
        self.slot.memory[PAGE : PAGE + 4096] = b"\xff" * 4096
        return {}

    def adopt(self) -> dict[str, Any]:
        """What was left here: rank, step, and whether all bytes are right; given back at once."""
        found = []
        with self.client.adopt(10.0) as adoption:
            for one in adoption:
                right = body_of(one.rank, one.generation.step, one.header.body_nbytes)
                found.append([one.rank, one.generation.step, bytes(one.data) == right])
        return {"adopted": found}

    def state(self) -> dict[str, Any]:
        """What the client knows of itself."""
        return {"connection": self.client.connection, "refusals": self.client.refusals}

    def hang(self) -> dict[str, Any]:
        """Wait for somebody who never comes, as in a collective; never answers."""
        os.read(os.pipe()[0], 1)
        return {}

    def fork(self) -> dict[str, Any]:
        """A child that keeps all it inherits, and of which Python knows nothing; its pid."""
        child = ctypes.CDLL(None).fork()
        while child == 0:
            signal.pause()
        return {"child": child}

    def order(self) -> dict[str, Any]:
        """The running order, as this workload knows it."""
        order = self.client.order
        return {"order": order.id, "left": order.seconds_left()} if order else {"order": None}

    def leave(self) -> dict[str, Any]:
        """Finished."""
        self.client.leave()
        return {}


def main() -> None:
    """Serve stdin until it closes."""
    worker = Worker(json.loads(sys.argv[1]))
    for line in sys.stdin:
        request = json.loads(line)
        function: Callable[..., dict[str, Any]] = getattr(worker, request.pop("do"))
        try:
            answer = function(**request)
        except evac.EvacError as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()

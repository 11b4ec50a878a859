"""A workload as a unit of the machine: stages for ever, or takes three seconds for its turn.

What it prints goes to the journal, where a test reads in which order things happened.
"""

import sys
import time

import evac
from evac.segment import PAGE, Header, SlotState, aligned

NBYTES = 4 << 20
TURN_SECONDS = 3.0
RANKS, SLOTS = 65, 16


def staged() -> None:
    """A generation every 0.2 s, also after the daemon was restarted."""
    client = evac.connect(job="train")
    reserved, step = -1, 0
    while True:
        time.sleep(0.2)
        if not client.connected:
            continue
        try:
            if client.connection != reserved:
                client.reserve(
                    nbytes=PAGE + aligned(NBYTES) + PAGE,
                    body="part0.bin",
                    layout="plain",
                    incarnation=1,
                )
                reserved = client.connection
            if (slot := client.acquire(1.0)) is None:
                continue
            step += 1
            slot.begin(1)
            slot.memory[PAGE : PAGE + NBYTES] = bytes([step % 256]) * NBYTES
            slot.complete(Header(SlotState.COMPLETE, 1, step, NBYTES))
            client.staged(slot, step)
        except evac.EvacError as error:
            print(f"workload: {error}", flush=True)  # noqa: T201 - to the journal
            reserved = -1


def many() -> None:
    """All ranks of a node in one process, with more than a thousand slots; reserved once, and never again."""
    clients = [evac.connect(job="many", rank=rank, world=RANKS) for rank in range(RANKS)]
    for rank, client in enumerate(clients):
        assert client.wait_connected(60)
        client.reserve(
            nbytes=4 * PAGE, body=f"part{rank}.bin", layout="plain", incarnation=1, slots=SLOTS
        )
    step = 0
    while True:
        step += 1
        for client in clients:
            if (slot := client.acquire(0.5)) is None:
                continue
            slot.begin(1)
            slot.memory[PAGE : 2 * PAGE] = bytes([step % 256]) * PAGE
            slot.complete(Header(SlotState.COMPLETE, 1, step, PAGE))
            client.staged(slot, step)
        if any(client.connection != 1 or client.refusals for client in clients):
            print("workload: a slot was lost", flush=True)  # noqa: T201 - to the journal
        time.sleep(0.2)


def callback() -> None:
    """Saves by itself, slowly."""
    client = evac.connect(job="index", mode="callback", need_seconds=TURN_SECONDS + 1)

    @client.on_turn
    def save(_: "evac.TurnBudget") -> int:
        print("workload: turn begun", flush=True)  # noqa: T201 - to the journal
        time.sleep(TURN_SECONDS)
        print("workload: turn done", flush=True)  # noqa: T201 - to the journal
        return NBYTES

    while True:
        time.sleep(60)


if __name__ == "__main__":
    {"staged": staged, "many": many, "callback": callback}[sys.argv[1]]()

"""What a process may say of the memory that it has lent, given or got back, and what that costs others."""

import asyncio
import mmap
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import evac
import evac.aio
from evac._adoption import Adoption
from evac.segment import HEADER_BYTES, PAGE, Header, SlotState
from evac.wire import (
    MAX_PACKET,
    PROTOCOL,
    Accepted,
    Acquire,
    Adopt,
    Adopted,
    Granted,
    HandBack,
    Hello,
    Lent,
    Message,
    Refuse,
    Register,
    Registered,
    Reserve,
    Slot,
    Staged,
    decode,
    encode,
)
from tests.agent.daemon.nodes import LIMIT, Node, until

MIB = 1 << 20


class Line:
    """A process that says what it likes, from here."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(LIMIT)
        self._socket.connect(str(path))
        self._number = 0
        self.fds: dict[int, int] = {}
        self.ask(Hello(version=PROTOCOL, client="test"))

    def say(self, message: Message, fd: int | None = None) -> None:
        self._number += 1
        packet = encode(message, id=self._number)
        socket.send_fds(self._socket, [packet], [] if fd is None else [fd])

    def hear(self) -> tuple[Message, list[int]]:
        packet, fds, _, _ = socket.recv_fds(self._socket, MAX_PACKET + 1, 16)
        return decode(packet).message, fds

    def ask(self, message: Message, fd: int | None = None) -> Message:
        self.say(message, fd)
        return self.hear()[0]

    def aboard(self, rank: int = 0, world: int = 2, *, resume: bool = False) -> "Line":
        answer = self.ask(Register(job="job", rank=rank, world=world, resume=resume))
        assert isinstance(answer, Registered), answer
        return self

    def reserve(self, nbytes: int, slots: int = 3) -> "Line":
        self.say(Reserve(nbytes=nbytes + 2 * PAGE, slots=slots, body="a.bin", incarnation=1))
        while True:
            answer, fds = self.hear()
            assert isinstance(answer, Slot), answer
            self.fds[answer.slot] = fds[0]
            if answer.last:
                return self

    def stage(self, step: int, nbytes: int) -> None:
        granted = self.ask(Acquire())
        assert isinstance(granted, Granted), granted
        with mmap.mmap(self.fds[granted.slot], 0) as memory:
            header = Header(SlotState.COMPLETE, 1, step, nbytes).pack()
            memory[:HEADER_BYTES] = header
        assert self.ask(Staged(slot=granted.slot, step=step)) == Accepted()

    def close(self) -> None:
        self._socket.close()
        for fd in self.fds.values():
            os.close(fd)


@pytest.fixture
def lines(node: Node) -> Iterator[list[Line]]:
    node.start()
    made: list[Line] = []
    yield made
    for one in made:
        one.close()


def line(node: Node, lines: list[Line]) -> Line:
    lines.append(Line(node.socket))
    return lines[-1]


def loan(borrower: Line) -> tuple[list[Lent], Adopted]:
    lent: list[Lent] = []
    while True:
        answer, fds = borrower.hear()
        for fd in fds:
            os.close(fd)
        if isinstance(answer, Adopted):
            return lent, answer
        assert isinstance(answer, Lent), answer
        lent.append(answer)


def states(node: Node) -> list[str]:
    return [slot["state"] for one in node.status()["workloads"] for slot in one["slots"]]


def test_what_is_lent_stays_complete_whatever_its_owner_says_of_it(
    node: Node, lines: list[Line]
) -> None:
    owner = line(node, lines).aboard(0).reserve(64 * MIB)
    for step in (1, 2, 3):
        owner.stage(step, 64 * MIB)
    borrower = line(node, lines).aboard(1)
    borrower.say(Adopt())
    # Its checksums may still be awaited.
    again = line(node, lines).aboard(0, resume=True)
    for number, fd in owner.fds.items():
        handed = HandBack(slot=number, held=True, last=number == max(owner.fds))
        assert again.ask(handed, fd) == Accepted()

    lent, adopted = loan(borrower)

    assert len(lent) == adopted.slots == 3
    assert states(node) == ["complete"] * 3
    refused = again.ask(Acquire())
    assert isinstance(refused, Refuse)
    assert refused.reason.startswith("no free slot")
    # And the daemon is the same one as before.
    assert node.process is not None
    assert node.process.poll() is None


def test_two_at_a_time_may_read_a_slot_that_is_handed_back_while_it_is_staged(
    node: Node, lines: list[Line]
) -> None:
    owner = line(node, lines).aboard(0, 1).reserve(MIB, slots=1)
    granted = owner.ask(Acquire())
    assert isinstance(granted, Granted)
    with mmap.mmap(owner.fds[0], 0) as memory:
        memory[:HEADER_BYTES] = Header(SlotState.COMPLETE, 1, 1, MIB).pack()
    for _ in range(20):
        owner.say(Staged(slot=0, step=1))
        again = line(node, lines).aboard(0, 1, resume=True)
        assert again.ask(HandBack(slot=0, held=True, last=True), owner.fds[0]) == Accepted()
        again.fds[0] = os.dup(owner.fds[0])
        owner = again
    assert states(node) == ["complete"]


def stages_three(owner: Line, first: int) -> None:
    """Each of its slots once: none is lent any more."""
    for step in range(first, first + 3):
        until("a slot is free", lambda: isinstance(owner.ask(Acquire()), Granted))
        owner.stage(step, MIB)


def test_an_adoption_that_is_given_up_gives_back_what_it_was_lent(
    node: Node, lines: list[Line]
) -> None:
    owner = line(node, lines).aboard(0).reserve(MIB)
    stages_three(owner, 1)

    async def cancelled(turns: int) -> None:
        async with evac.aio.connect("job", rank=1, world=2, run="", socket=node.socket) as client:
            assert await client.wait_connected(LIMIT)
            adopting = asyncio.ensure_future(client.adopt())
            for _ in range(turns):
                await asyncio.sleep(0)
            adopting.cancel()
            (came,) = await asyncio.gather(adopting, return_exceptions=True)  # noqa: TID251 - it is cancelled
            if isinstance(came, Adoption):
                came.close()
            # While it is connected still.
            await asyncio.to_thread(stages_three, owner, 10 * turns + 10)

    for turns in range(1, 8):
        asyncio.run(cancelled(turns))
    client = evac.connect("job", rank=1, world=2, run="", socket=node.socket)
    assert client.wait_connected(LIMIT)
    with pytest.raises(evac.NotConnected):
        client.adopt(0.0)
    stages_three(owner, 1000)
    client.close()


def test_a_state_directory_that_cannot_be_used_keeps_no_daemon_from_running(
    node: Node, lines: list[Line]
) -> None:
    node.kill()
    state = node.home / "state"
    for file in state.iterdir():
        file.unlink()
    state.rmdir()
    state.touch()

    node.start()

    status = node.status()
    assert "state" in status["state_wrong"]
    assert status["journal"] == str(node.home / "run" / "incidents.sqlite")
    assert status["kept"]["remembers"]
    # And the next one goes on with it.
    worker = node.staged(1)
    node.kill()
    node.start()
    until("its slots are back", lambda: states(node).count("complete") == 1)
    assert worker.do("state")["refusals"] == 0


def test_nobody_fills_the_log_by_borrowing_and_handing_back(node: Node, lines: list[Line]) -> None:
    owner = line(node, lines).aboard(0, 1).reserve(MIB, slots=1)
    owner.stage(1, MIB)
    for _ in range(40):
        owner.say(Adopt())
        loan(owner)
    for _ in range(40):
        again = Line(node.socket).aboard(0, 1, resume=True)
        assert again.ask(HandBack(slot=0, held=False, last=True), owner.fds[0]) == Accepted()
        again.close()
    text = node.log.read_text()
    assert 0 < text.count("memory.lent") < 20
    assert 0 < text.count("memory.handed_back") < 20

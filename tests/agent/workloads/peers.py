"""Raw peers for the board's tests: they speak `evac.wire` over real sockets."""

import array
import asyncio
import contextlib
import mmap
import os
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from evac.segment import PAGE, Header, SlotState, aligned
from evac.wire import (
    Accepted,
    Acquire,
    Cancel,
    Drain,
    Drill,
    Granted,
    Hello,
    Message,
    Packet,
    Register,
    Registered,
    Reserve,
    Staged,
    Welcome,
    decode,
    encode,
)
from evac.wire import Slot as SlotMessage
from evacd.clock import SystemClock
from evacd.workloads import Board, BoardSettings, Happening, Keeper
from evacd.workloads.places import Prepare

# Generous: nothing here waits for it unless something is broken.
LIMIT = 60.0
MIB = 1024 * 1024
M = TypeVar("M", bound=Message)


def settings(folder: Path, **changes: Any) -> BoardSettings:
    plain = BoardSettings(
        workload_path=folder / "run" / "evacd.sock",
        admin_path=folder / "run" / "admin.sock",
        workload_mode=0o666,
        admin_group="",
        memory_bytes=256 * MIB,
        user_bytes=1 << 62,
        slots=3,
        orphan_seconds=600.0,
        max_priority=1000,
        allow_users=(),
        node="node-1",
        boot="boot-1",
        version="0.1.0",
        stores=("file:///store",),
        # A busy machine is no reason to drop anybody, where that is not what is tested.
        hello_seconds=120.0,
        last_words_seconds=120.0,
    )
    return replace(plain, **changes)


@dataclass
class Running:
    """A served board and what it said."""

    board: Board
    settings: BoardSettings
    happenings: list[Happening] = field(default_factory=list)
    administered: list[Message] = field(default_factory=list)

    def heard(self, kind: type[Happening] | tuple[type[Happening], ...]) -> list[Happening]:
        return [one for one in self.happenings if isinstance(one, kind)]

    async def until(self, true: Callable[[], object]) -> None:
        """Wait until something is so."""
        async with asyncio.timeout(LIMIT):
            while not true():  # noqa: ASYNC110 - most of what is waited for has no event
                await asyncio.sleep(0.005)

    def snapshot(self) -> Any:
        return self.board.snapshot()

    def slots(self, index: int = 0) -> list[Mapping[str, Any]]:
        slots: list[Mapping[str, Any]] = self.snapshot()["workloads"][index]["slots"]
        return slots

    def used(self) -> int:
        return int(self.snapshot()["memory"]["used"])


@contextlib.asynccontextmanager
async def serving(
    chosen: BoardSettings, *, prepare: Prepare | None = None, keeper: Keeper | None = None
) -> AsyncGenerator[Running, None]:
    """A board that serves for as long as the context is open."""
    happenings: list[Happening] = []
    administered: list[Message] = []

    def administer(message: Drain | Cancel | Drill) -> Message:
        administered.append(message)
        return Accepted()

    board = Board(
        chosen,
        clock=SystemClock(),
        happened=happenings.append,
        status=lambda: board.snapshot() | {"node": chosen.node},
        admin=administer,
        prepare=prepare,
        keeper=keeper,
    )
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(board.serve())
        async with asyncio.timeout(LIMIT):
            await board.ready.wait()
        try:
            yield Running(board, chosen, happenings, administered=administered)
        finally:
            task.cancel()


class Peer:
    """One connection that says exactly what it is told to."""

    def __init__(self, path: Path) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.setblocking(False)
        self.sock.connect(str(path))
        self.slots: dict[int, mmap.mmap] = {}
        self.fds: dict[int, int] = {}
        self.unasked: list[Message] = []
        self._id = 0

    async def _ready(self, *, write: bool = False) -> None:
        loop = asyncio.get_running_loop()
        ready = loop.create_future()
        add, remove = (
            (loop.add_writer, loop.remove_writer)
            if write
            else (loop.add_reader, loop.remove_reader)
        )

        def now() -> None:
            if not ready.done():
                ready.set_result(None)

        add(self.sock, now)
        try:
            async with asyncio.timeout(LIMIT):
                await ready
        finally:
            remove(self.sock)

    async def send(self, packet: bytes) -> None:
        while True:
            try:
                self.sock.send(packet, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                await self._ready(write=True)
            else:
                return

    async def receive(self) -> tuple[Packet, int | None] | None:
        """The next packet and its fd; None where the daemon has closed."""
        while True:
            try:
                raw, rights, _, _ = self.sock.recvmsg(1 << 17, socket.CMSG_SPACE(4))
            except BlockingIOError:
                await self._ready()
                continue
            except ConnectionResetError:
                return None
            if not raw:
                return None
            fds = array.array("i", rights[0][2]) if rights else None
            return decode(raw), fds[0] if fds else None

    async def ask(self, message: Message) -> Message:
        """Say it, and wait for its own answer."""
        packet, fd = await self.ask_fd(message)
        assert fd is None
        return packet

    async def ask_fd(self, message: Message) -> tuple[Message, int | None]:
        self._id += 1
        await self.send(encode(message, id=self._id))
        return await self.answer(self._id)

    async def answer(self, number: int) -> tuple[Message, int | None]:
        while True:
            came = await self.receive()
            assert came is not None, "the daemon closed the connection"
            if came[0].re == number:
                return came[0].message, came[1]
            self.unasked.append(came[0].message)

    async def expect(self, kind: type[M]) -> M:
        """The next message of one kind that nobody asked for."""
        while True:
            for index, message in enumerate(self.unasked):
                if isinstance(message, kind):
                    del self.unasked[index]
                    return message
            came = await self.receive()
            assert came is not None, "the daemon closed the connection"
            self.unasked.append(came[0].message)

    async def last_words(self) -> list[Message]:
        """Everything until the daemon closes."""
        words = []
        while (came := await self.receive()) is not None:
            words.append(came[0].message)
        return words

    # --- the usual course ---------------------------------------------------------------

    async def hello(self) -> "Peer":
        assert isinstance(await self.ask(Hello(version=1, client="test")), Welcome)
        return self

    async def register(self, job: str = "train", rank: int = 0, world: int = 1, **more: Any) -> Any:
        await self.hello()
        answer = await self.ask(Register(job=job, rank=rank, world=world, **more))
        assert isinstance(answer, Registered), answer
        return answer

    async def reserve(
        self, nbytes: int = 64 * 1024, *, slots: int = 3, incarnation: int = 0, **more: Any
    ) -> Message:
        """Reserve, and map what comes; the last answer."""
        self._id += 1
        more.setdefault("body", "__0_0.distcp")
        message = Reserve(nbytes=nbytes, slots=slots, incarnation=incarnation, **more)
        await self.send(encode(message, id=self._id))
        while True:
            answer, fd = await self.answer(self._id)
            if not isinstance(answer, SlotMessage):
                return answer
            assert fd is not None
            self.fds[answer.slot] = fd
            self.slots[answer.slot] = mmap.mmap(fd, answer.nbytes)
            if answer.last:
                return answer

    async def acquire(self) -> int:
        answer = await self.ask(Acquire())
        assert isinstance(answer, Granted), answer
        return answer.slot

    async def stage(self, step: int, body: bytes = b"", *, incarnation: int = 0) -> Message:
        """Acquire, write, and say so; the answer."""
        slot = await self.acquire()
        write(self.slots[slot], step, body or bytes([step % 251]) * 5000, incarnation=incarnation)
        return await self.ask(Staged(slot=slot, step=step))

    def close(self) -> None:
        self.sock.close()
        for mapped in self.slots.values():
            mapped.close()
        for fd in self.fds.values():
            os.close(fd)

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def write(
    slot: mmap.mmap,
    step: int,
    body: bytes,
    *,
    incarnation: int = 0,
    descriptor: bytes = b'{"items": [{"name": "w", "offset": 0, "nbytes": 4}]}',
    metadata: bytes = b"meta",
) -> None:
    """Stage by the book."""
    tail = PAGE + aligned(len(body))
    slot[PAGE : PAGE + len(body)] = body
    slot[tail : tail + len(descriptor)] = descriptor
    slot[tail + PAGE : tail + PAGE + len(metadata)] = metadata
    header = Header(
        SlotState.COMPLETE, incarnation, step, len(body), tail, len(descriptor), tail + PAGE,
        len(metadata),
    ).pack()  # fmt: skip
    slot[: len(header)] = header


class Process:
    """A workload as a real process of its own (worker.py), told what to do by lines."""

    def __init__(self, path: Path) -> None:
        self.running = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("worker.py")), str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self.pid = self.running.pid

    async def line(self) -> str:
        """The next line that it prints."""
        assert self.running.stdout is not None
        async with asyncio.timeout(LIMIT):
            return (await asyncio.to_thread(self.running.stdout.readline)).strip()

    async def do(self, *words: object) -> str:
        """Carry out one command; what it prints."""
        self.tell(*words)
        return await self.line()

    def tell(self, *words: object) -> None:
        assert self.running.stdin is not None
        self.running.stdin.write(" ".join(map(str, words)) + "\n")
        self.running.stdin.flush()

    async def aboard(
        self, job: str = "train", rank: int = 0, world: int = 1, *, incarnation: int = 0
    ) -> "Process":
        """Registered, with three slots of 1 MiB."""
        await self.line()
        assert (await self.do("register", job, rank, world, "staged")).startswith("Registered")
        assert (await self.do("reserve", MIB, incarnation)).startswith("Slot")
        return self

    async def stage(self, step: int, nbytes: int = 5000, *, incarnation: int = 0) -> None:
        assert await self.do("stage", step, nbytes, incarnation) == "Accepted()"

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: object) -> None:
        self.running.kill()
        self.running.wait()
        for pipe in (self.running.stdin, self.running.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

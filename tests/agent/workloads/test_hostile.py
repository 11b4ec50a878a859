"""Peers that do wrong, each beside a well-behaved one that must not notice."""

import array
import asyncio
import contextlib
import ctypes
import os
import resource
import socket
from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from evac.generation import Generation
from evac.segment import PAGE, Header, SlotState
from evac.wire import Accepted, Acquire, AskStatus, Cancel, Hello, Message, Refuse, Staged, encode
from evacd.facts import Confidence, Order
from evacd.workloads import Dropped
from tests.agent.workloads.peers import MIB, Peer, Process, Running, serving, settings, write
from tests.open_files import open_files

FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE = 1, 2


@contextlib.asynccontextmanager
async def beside(folder: Path, **changes: Any) -> AsyncGenerator[tuple[Running, Peer], None]:
    """A board with one honest workload, which is checked to be untouched at the end."""
    async with serving(settings(folder, **changes)) as running:
        with Peer(running.settings.workload_path) as honest:
            await honest.register(job="honest")
            await honest.reserve()
            assert await honest.stage(1) == Accepted()
            yield running, honest
            assert await honest.stage(2) == Accepted()
            unit = next(u for u in running.board.units() if u.name.endswith("/honest"))
            with running.board.hold(unit.name, Generation(0, 2)) as (part,):
                assert bytes(part.data) == bytes([2]) * 5000


async def dropped(running: Running, peer: Peer) -> str:
    """Why the peer was dropped, as it was told."""
    words = [word for word in await peer.last_words() if isinstance(word, Refuse)]
    assert words, "nothing was said"
    assert words[-1].fatal
    assert any(isinstance(h, Dropped) and h.reason for h in running.happenings)
    return words[-1].reason


@contextlib.contextmanager
def null() -> Generator[int, None, None]:
    """An fd to send."""
    fd = os.open(os.devnull, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


def fds() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        (os.urandom(512), "not JSON"),
        (b"GET / HTTP/1.1\r\n\r\n", "not JSON"),
        (b"[" * 60_000, "not JSON"),
        (b"[1, 2]", "not a JSON object"),
        (b'{"type": "frobnicate"}', "unknown type"),
        (b'{"type": 7}', "unknown type"),
        (b'{"type": "reserve", "nbytes": -1, "body": "a.bin"}', "reserve.nbytes"),
        (b'{"type": "reserve", "nbytes": 8192, "body": "../../etc/passwd"}', "reserve.body"),
        (b'{"type": "reserve", "nbytes": 8192, "body": "a/b.bin"}', "reserve.body"),
        (b'{"type": "register", "job": "a/b", "rank": 0, "world": 1}', "register.job"),
        (b'{"type": "register", "job": "..", "rank": 0, "world": 1}', "register.job"),
        (b'{"type": "staged", "slot": 0, "step": -1}', "staged.step"),
        (b'{"type": "hello", "version": 1}', "hello was said already"),
        (b'{"type": "welcome", "version": 1}', "said by the daemon alone"),
        (b'{"type": "acquire", "id": 0}', "positive integer"),
        (b" " * 70_000, "more than 65536 bytes"),
    ],
)
async def test_what_is_not_the_protocol_is_told_and_dropped(
    tmp_path: Path, packet: bytes, reason: str
) -> None:
    async with beside(tmp_path) as (running, _):
        with Peer(running.settings.workload_path) as peer:
            await peer.hello()
            await peer.send(packet)
            assert reason in await dropped(running, peer)


async def test_a_packet_of_10_mb_is_dropped(tmp_path: Path) -> None:
    async with beside(tmp_path) as (running, _):
        with Peer(running.settings.workload_path) as peer:
            # SO_SNDBUFFORCE (33), as a hostile root would; else the kernel refuses by itself.
            with contextlib.suppress(PermissionError):
                peer.sock.setsockopt(socket.SOL_SOCKET, 33, 64 * MIB)
            await peer.hello()
            try:
                await peer.send(b"x" * 10 * MIB)
            except OSError:
                return
            assert "more than 65536 bytes" in await dropped(running, peer)


@pytest.mark.parametrize("count", [1, 200, 253])
async def test_fds_are_refused_and_never_kept(tmp_path: Path, count: int) -> None:
    async with beside(tmp_path) as (running, _):
        with Peer(running.settings.workload_path) as peer, null() as fd:
            await peer.hello()
            before = open_files()
            rights = array.array("i", [fd] * count)
            peer.sock.sendmsg(
                [encode(Acquire(), id=9)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
            )
            assert "fds" in await dropped(running, peer)
            # The daemon's end of the connection is gone, and nothing has stayed.
            await running.until(lambda: open_files() < before)


async def test_300_fds_over_several_packets_are_refused_too(tmp_path: Path) -> None:
    async with beside(tmp_path) as (running, _):
        before = open_files()
        with Peer(running.settings.workload_path) as peer, null() as fd:
            for count in (100, 200):
                rights = array.array("i", [fd] * count)
                peer.sock.sendmsg(
                    [encode(Hello(1))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
                )
            assert "fds" in await dropped(running, peer)
        await running.until(lambda: open_files() <= before)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Acquire(), "acquire before hello"),
        (Staged(0, 1), "staged before hello"),
    ],
)
async def test_nothing_is_heard_before_hello(tmp_path: Path, message: Message, reason: str) -> None:
    async with beside(tmp_path) as (running, _):
        with Peer(running.settings.workload_path) as peer:
            await peer.send(encode(message))
            assert await dropped(running, peer) == reason


async def test_words_out_of_turn_are_refused_and_harmless(tmp_path: Path) -> None:
    async with beside(tmp_path) as (running, _):
        with Peer(running.settings.workload_path) as peer:
            await peer.hello()
            for message in (Acquire(), Staged(0, 1)):
                assert isinstance(await peer.ask(message), Refuse)
        with Peer(running.settings.workload_path) as peer:
            await peer.register()
            for message in (Acquire(), Staged(99, 1)):
                answer = await peer.ask(message)
                assert isinstance(answer, Refuse)
                assert not answer.fatal


async def test_another_process_cannot_take_a_living_rank(tmp_path: Path) -> None:
    async with beside(tmp_path) as (running, _):
        with Process(running.settings.workload_path) as thief:
            await thief.line()
            answer = await thief.do("register", "honest", 0, 1, "staged")
            assert f"rank 0 of job honest is already registered by pid {os.getpid()}" in answer


# --- silence ----------------------------------------------------------------------------------


async def test_who_never_says_hello_is_dropped(tmp_path: Path) -> None:
    async with beside(tmp_path, hello_seconds=0.2) as (running, _):
        with Peer(running.settings.workload_path) as peer:
            assert await dropped(running, peer) == "no hello within 0.2 s"


async def test_who_does_not_read_is_dropped_and_the_others_hear_everything(tmp_path: Path) -> None:
    async with beside(tmp_path) as (running, honest):
        with Peer(running.settings.workload_path) as deaf:
            await deaf.register(job="deaf")
            heard = 0
            for number in range(10_000):
                now = asyncio.get_running_loop().time()
                running.board.give(
                    Order(f"o-{number}", now, Confidence.CERTAIN, "gcp", "preempted", now)
                )
                while True:
                    try:
                        honest.sock.recv(65536)
                    except BlockingIOError:
                        break
                    heard += 1
            assert heard == 10_000
            (one,) = running.heard(Dropped)
            assert isinstance(one, Dropped)
            assert "does not read" in one.reason
            # Only its connection is gone: the process lives, and so does its place.
            assert any(w["job"] == "deaf" and w["alive"] for w in running.snapshot()["workloads"])


async def test_who_asks_and_asks_and_never_reads_cannot_hoard_fds(tmp_path: Path) -> None:
    async with beside(tmp_path) as (running, _):
        before = fds()
        with Peer(running.settings.workload_path) as deaf:
            await deaf.hello()
            with contextlib.suppress(ConnectionError):
                for number in range(3000):
                    await deaf.send(encode(AskStatus(), id=number + 1))
            await running.until(lambda: running.heard(Dropped))
        await running.until(lambda: fds() <= before)


async def test_a_thousand_idle_connections_leave_room_for_a_workload(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip("needs 4096 fds")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    async with beside(tmp_path, max_strangers=50) as (running, _):
        before = fds()
        with contextlib.ExitStack() as stack:
            operator = await stack.enter_context(Peer(running.settings.admin_path)).hello()
            for _ in range(1000):
                stack.enter_context(Peer(running.settings.workload_path))
                await asyncio.sleep(0)
            newcomer = stack.enter_context(Peer(running.settings.workload_path))
            await newcomer.register(job="newcomer")
            # Nor are those pushed out who came through the other door.
            assert await operator.ask(Cancel()) == Accepted()
            await newcomer.reserve()
            assert await newcomer.stage(1) == Accepted()
            assert len(running.heard(Dropped)) >= 950
            # Ours, and at most 50 of the daemon's, once its threads have closed all others.
            await running.until(lambda: fds() <= before + 1002 + 50 + 20)
        await running.until(lambda: fds() <= before + 20)


# --- memory -----------------------------------------------------------------------------------


HEADERS: dict[str, tuple[Callable[[int], bytes], str]] = {
    "nothing": (lambda size: bytes(PAGE), "magic"),
    "noise": (lambda size: b"\xff" * PAGE, "magic"),
    "not complete": (lambda size: Header(SlotState.WRITING, 0, 1, 100).pack(), "WRITING"),
    "another step": (lambda size: Header(SlotState.COMPLETE, 0, 2, 100).pack(), "step 2"),
    "another incarnation": (lambda size: Header(SlotState.COMPLETE, 9, 1, 100).pack(), "incarnation 9"),
    "no body": (lambda size: Header(SlotState.COMPLETE, 0, 1, 0).pack(), "empty"),
    "body beyond": (lambda size: Header(SlotState.COMPLETE, 0, 1, size).pack(), "leaves a slot"),
    "body huge": (lambda size: Header(SlotState.COMPLETE, 0, 1, 2**64 - 1).pack(), "leaves a slot"),
    "descriptor beyond": (
        lambda size: Header(SlotState.COMPLETE, 0, 1, 100, size - 10, 4096).pack(),
        "descriptor at",
    ),
    "descriptor huge": (
        lambda size: Header(SlotState.COMPLETE, 0, 1, 100, PAGE, 2**63).pack(),
        "descriptor at",
    ),
    "descriptor too large": (
        lambda size: Header(SlotState.COMPLETE, 0, 1, 100, PAGE, 65 * MIB).pack(),
        "at most 67108864",
    ),
    "descriptor in the header": (
        lambda size: Header(SlotState.COMPLETE, 0, 1, 100, 0, 10).pack(),
        "descriptor at 0",
    ),
    "descriptor of zeros": (
        lambda size: Header(SlotState.COMPLETE, 0, 1, 100, 8 * PAGE, 100).pack(),
        "descriptor is not",
    ),
    "metadata too large": (
        lambda size: Header(SlotState.COMPLETE, 0, 1, 100, 0, 0, PAGE, 65 * MIB).pack(),
        "metadata is",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", HEADERS)
async def test_a_header_that_lies_is_refused(tmp_path: Path, what: str) -> None:
    make, reason = HEADERS[what]
    async with beside(tmp_path) as (running, _):
        with Peer(running.settings.workload_path) as peer:
            await peer.register()
            await peer.reserve(66 * MIB, slots=1)
            slot = await peer.acquire()
            header = make(66 * MIB)
            peer.slots[slot][: len(header)] = header
            answer = await peer.ask(Staged(slot, 1))
            assert isinstance(answer, Refuse)
            assert reason in answer.reason
            # It may mend its ways in the same slot.
            assert await peer.acquire() == slot
            assert await peer.stage(1) == Accepted()


async def test_a_slot_that_was_not_granted_cannot_be_staged(tmp_path: Path) -> None:
    async with beside(tmp_path) as (running, _):
        with Peer(running.settings.workload_path) as peer:
            await peer.register()
            await peer.reserve()
            write(peer.slots[1], 1, b"x" * 100)
            answer = await peer.ask(Staged(1, 1))
            assert isinstance(answer, Refuse)
            assert "was not acquired" in answer.reason


async def test_memory_that_is_rewritten_or_punched_is_not_what_was_summed(tmp_path: Path) -> None:
    body = b"\x07" * (5 * MIB)
    async with beside(tmp_path) as (running, _):
        with Peer(running.settings.workload_path) as peer:
            prefix = (await peer.register()).prefix
            await peer.reserve(6 * MIB)
            await peer.stage(1, body)
            await running.until(lambda: running.slots(1)[0]["summed"] == 2)
            _punch(peer.fds[0], PAGE, MIB)
            peer.slots[0][PAGE + 4 * MIB : PAGE + 4 * MIB + 5] = b"later"
            peer.slots[0][:8] = b"NOTEVACS"

            with running.board.hold(prefix, Generation(0, 1)) as (part,):
                found = tuple(crc32c(part.data[at : at + 4 * MIB]) for at in (0, 4 * MIB))
                told = await part.checksums()
                assert told == tuple(crc32c(body[at : at + 4 * MIB]) for at in (0, 4 * MIB))
                assert found[0] != told[0]
                assert found[1] != told[1]


def _punch(fd: int, offset: int, nbytes: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    off_t = ctypes.c_long
    mode = FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
    assert libc.fallocate(fd, mode, off_t(offset), off_t(nbytes)) == 0


async def test_a_client_that_goes_while_its_memory_is_made_leaves_nothing(tmp_path: Path) -> None:
    async with beside(tmp_path, memory_bytes=1024 * MIB) as (running, _):
        before, used = fds(), running.used()
        for _ in range(5):
            with Peer(running.settings.workload_path) as peer:
                await peer.register()
                await peer.send(
                    b'{"type":"reserve","nbytes":134217728,"slots":3,"body":"a.bin","id":99}'
                )
        with Peer(running.settings.workload_path) as peer:
            await peer.register()
            await peer.reserve(MIB)
        await running.until(lambda: running.used() == used + 3 * MIB)
        await running.until(lambda: fds() <= before + 3 * 2 + 1)


async def test_a_second_reserve_while_the_first_is_made_answers_both(tmp_path: Path) -> None:
    async with beside(tmp_path, memory_bytes=1024 * MIB) as (running, _):
        with Peer(running.settings.workload_path) as peer:
            await peer.register()
            await peer.send(
                b'{"type":"reserve","nbytes":134217728,"slots":3,"body":"a.bin","id":99}'
            )
            await peer.reserve(MIB, slots=2)
            assert sum(s["nbytes"] for s in running.slots(1)) == 2 * MIB
            assert await peer.stage(1) == Accepted()

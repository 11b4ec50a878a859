import asyncio
import grp
import json
import os
import pwd
import socket
import stat
from pathlib import Path

import pytest
from crc32c import crc32c

from evac._memory import check_sealed
from evac.errors import GenerationError
from evac.generation import Generation
from evac.store import Owner
from evac.wire import (
    Accepted,
    Acquire,
    Advice,
    AskStatus,
    Cancel,
    Done,
    Drain,
    Granted,
    Hello,
    Leave,
    OrderGiven,
    Refuse,
    Register,
    Registered,
    Release,
    Reserve,
    StandDown,
    Status,
    Turn,
    Welcome,
    encode,
)
from evac.wire import Slot as SlotMessage
from evacd.clock import SystemClock
from evacd.errors import AlreadyRunning, StateError
from evacd.facts import Confidence, Notice, Order
from evacd.workloads import Board, BoardSettings, Joined, Left, StagedOne, TurnResult, UserLimits
from tests.agent.workloads.peers import MIB, Peer, serving, settings


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def unit() -> str:
    return f"{pwd.getpwuid(os.getuid()).pw_name}/train"


async def _serve(chosen: BoardSettings) -> None:
    async with asyncio.timeout(30):
        await Board(
            chosen,
            clock=SystemClock(),
            happened=lambda happening: None,
            status=dict,
            admin=lambda message: Accepted(),
        ).serve()


def order(seconds: float, *, amendments: int = 0) -> Order:
    now = asyncio.get_running_loop().time()
    return Order("o-1", now + seconds, Confidence.CERTAIN, "gcp", "preempted", now, amendments=amendments)  # fmt: skip


async def test_a_workload_stages_and_a_flush_reads_the_same_bytes(folder: Path, unit: str) -> None:
    body = os.urandom(9 * MIB + 17)
    async with serving(settings(folder)) as running:
        with Peer(running.settings.workload_path) as peer:
            answer = await peer.register(run="run-1")
            assert answer.prefix == unit
            assert answer.stores == ("file:///store",)
            last = await peer.reserve(10 * MIB, layout="abc")
            assert isinstance(last, SlotMessage)
            assert sorted(peer.slots) == [0, 1, 2]
            assert await peer.stage(7, body) == Accepted()

            assert running.heard(StagedOne) == [StagedOne(unit, 0, Generation(0, 7))]
            (facts,) = running.board.units()
            assert (facts.name, facts.lanes) == (unit, ("file:///store",))
            assert [(c.generation, c.nbytes) for c in facts.candidates] == [
                (Generation(0, 7), len(body))
            ]
            with running.board.hold(unit, Generation(0, 7)) as (part,):
                assert bytes(part.data) == body
                assert part.data.readonly
                assert (part.rank, part.world, part.run, part.layout) == (0, 1, "run-1", "abc")
                assert (part.body, part.prefix, part.job) == (
                    "__0_0.distcp",
                    unit,
                    "train",
                )
                assert part.owner == Owner(os.getuid(), os.getgid())
                assert part.items == ({"name": "w", "offset": 0, "nbytes": 4},)
                assert part.metadata == b"meta"
                assert await part.checksums() == tuple(
                    crc32c(body[at : at + 4 * MIB]) for at in range(0, len(body), 4 * MIB)
                )


async def test_checksums_are_taken_in_the_background(folder: Path) -> None:
    async with serving(settings(folder)) as running:
        with Peer(running.settings.workload_path) as peer:
            await peer.register()
            await peer.reserve(9 * MIB)
            await peer.stage(1, bytes(8 * MIB + 1))

            await running.until(lambda: running.slots()[0]["summed"] == 3)


async def test_a_stage_is_never_blocked_and_the_grant_repeats(folder: Path, unit: str) -> None:
    async with serving(settings(folder)) as running:
        with Peer(running.settings.workload_path) as peer:
            await peer.register()
            await peer.reserve(slots=1)
            slot = await peer.acquire()
            assert await peer.acquire() == slot
            await peer.send(b'{"type":"release","slot":0}')
            assert await peer.stage(1) == Accepted()
            refusal = await peer.ask(Acquire())
            assert isinstance(refusal, Refuse)
            assert refusal.reason.startswith("no free slot")

            running.board.mark_durable(unit, Generation(0, 1), "s3://a")
            assert isinstance(await peer.ask(Acquire()), Granted)


async def test_a_held_generation_outlives_its_workload(folder: Path, unit: str) -> None:
    async with serving(settings(folder)) as running:
        with Peer(running.settings.workload_path) as peer:
            await peer.register()
            await peer.reserve()
            await peer.stage(1, b"precious" * 1000)
            with running.board.hold(unit, Generation(0, 1)) as (part,):
                assert await peer.ask(Leave()) == Accepted()
                assert running.board.units() == ()
                assert bytes(part.data) == b"precious" * 1000
                assert running.used() > 0
            assert running.used() == 0
            assert running.heard(Left) == [Left(unit, 0)]
            with pytest.raises(GenerationError), running.board.hold(unit, Generation(0, 1)):
                pass


async def test_the_memory_is_sealed_and_private(folder: Path) -> None:
    async with serving(settings(folder)) as running:
        with Peer(running.settings.workload_path) as peer:
            await peer.register()
            await peer.reserve()
            for size in (0, 10 * MIB):
                with pytest.raises(PermissionError):
                    os.ftruncate(peer.fds[0], size)
            assert stat.S_IMODE(os.fstat(peer.fds[0]).st_mode) == 0o600


async def test_a_second_reserve_replaces_the_first(folder: Path, unit: str) -> None:
    async with serving(settings(folder)) as running:
        with Peer(running.settings.workload_path) as peer:
            await peer.register()
            await peer.reserve(MIB, slots=3)
            await peer.stage(1)
            await peer.reserve(2 * MIB, slots=2)

            assert running.used() == MIB + 4 * MIB
            assert running.board.units()[0].candidates[0].generation.step == 1
            await peer.stage(2)
            assert running.used() == 4 * MIB


async def test_a_reserve_beyond_the_budget_is_refused_with_the_numbers(folder: Path) -> None:
    async with serving(settings(folder, memory_bytes=4 * MIB)) as running:
        with (
            Peer(running.settings.workload_path) as peer,
            Peer(running.settings.workload_path) as two,
        ):
            await peer.register()
            await peer.reserve(3 * MIB)
            assert len(peer.slots) == 1
            await two.register(job="other")
            refusal = await two.reserve(3 * MIB)
            assert isinstance(refusal, Refuse)
            assert "budget of this node is 4 MiB, of which 3 MiB are in use" in refusal.reason


async def test_a_reserve_beyond_the_user_s_share_is_refused_with_the_numbers(
    tmp_path: Path,
) -> None:
    chosen = settings(tmp_path, user_bytes=8 * MIB)
    async with serving(chosen) as running:
        with Peer(chosen.workload_path) as one, Peer(chosen.workload_path) as other:
            await one.register()
            await other.register("another")
            await one.reserve(3 * MIB)
            assert len(one.slots) == 2

            refusal = await other.reserve(3 * MIB)

            assert isinstance(refusal, Refuse)
            assert "3 MiB does not fit: your user's share of this node is 8 MiB" in refusal.reason
            assert "6 MiB are in use" in refusal.reason
            assert running.used() == 6 * MIB
            await one.ask(Leave())
            await other.reserve(3 * MIB)
            assert len(other.slots) == 2


async def test_a_user_s_own_limits_count_at_the_socket(tmp_path: Path) -> None:
    me = UserLimits(max_priority=10, max_bytes=4 * MIB, prefix="team/me")
    chosen = settings(tmp_path, users={str(os.getuid()): me})
    async with serving(chosen):
        with Peer(chosen.workload_path) as peer:
            await peer.hello()
            refusal = await peer.ask(Register("train", 0, 1, priority=11))
            assert isinstance(refusal, Refuse)
            assert "priority 11 is above 10" in refusal.reason

            registered = await peer.ask(Register("train", 0, 1, priority=10))

            assert isinstance(registered, Registered)
            assert registered.prefix == "team/me/train"
            await peer.reserve(3 * MIB)
            assert len(peer.slots) == 1


async def test_memory_that_the_system_does_not_have_is_refused(folder: Path) -> None:
    async with serving(settings(folder, memory_bytes=2**60)) as running:
        with Peer(running.settings.workload_path) as peer:
            await peer.register()
            # 64 TiB each: more than this machine has.
            refusal = await peer.reserve(2**46, slots=4)
            assert isinstance(refusal, Refuse)
            assert "no memory" in refusal.reason
            assert running.used() == 0


# --- what everybody is told ---------------------------------------------------------------


async def test_everybody_is_told_and_whoever_comes_later(folder: Path) -> None:
    async with serving(settings(folder)) as running:
        with (
            Peer(running.settings.workload_path) as early,
            Peer(running.settings.workload_path) as late,
        ):
            await early.register()
            assert running.board.give(order(30)) == 1
            assert running.board.give(order(20, amendments=1)) == 1
            first, second = await early.expect(OrderGiven), await early.expect(OrderGiven)
            assert 25 < first.seconds_left <= 30
            assert not first.amended
            assert 15 < second.seconds_left <= 20
            assert second.amended

            await late.register(job="late")
            told = await late.expect(OrderGiven)
            assert (told.order, told.confidence, told.source) == ("o-1", "certain", "gcp")
            assert 10 < told.seconds_left <= 20

            assert running.board.stand_down(order(0), "cancelled") == 2
            assert await late.expect(StandDown) == StandDown("o-1", "cancelled")
            with Peer(running.settings.workload_path) as after:
                await after.register(job="after")
                await after.ask(Acquire())
                assert after.unasked == []


async def test_an_order_whose_time_is_over_says_zero(folder: Path) -> None:
    async with serving(settings(folder)) as running:
        with Peer(running.settings.workload_path) as peer:
            await peer.register()
            running.board.give(order(-5))
            assert (await peer.expect(OrderGiven)).seconds_left == 0


async def test_an_advisory_notice_is_passed_on(folder: Path) -> None:
    async with serving(settings(folder)) as running:
        with Peer(running.settings.workload_path) as peer:
            await peer.register()
            notice = Notice("aws", "rebalance", "id", Confidence.ADVISORY, None, 0.0)
            assert running.board.advise(notice) == 1
            assert await peer.expect(Advice) == Advice("aws", "rebalance")


# --- turns --------------------------------------------------------------------------------


async def test_a_turn_ends_when_all_have_answered(folder: Path, unit: str) -> None:
    async with serving(settings(folder)) as running:
        with (
            Peer(running.settings.workload_path) as one,
            Peer(running.settings.workload_path) as two,
        ):
            await one.register(mode="callback", rank=0, world=2, need_seconds=5.0)
            await two.register(mode="callback", rank=1, world=2, need_seconds=1.0)
            assert running.board.units()[0].turn_seconds == 5.0
            async with asyncio.TaskGroup() as tasks:
                result = tasks.create_task(running.board.turn(unit, seconds=60, order="o-1"))
                for peer in (one, two):
                    turn = await peer.expect(Turn)
                    assert (turn.seconds, turn.order) == (60, "o-1")
                    await peer.ask(Acquire())  # refused, and disturbs nothing
                    done = Done(turn=turn.turn, ok=True, nbytes=100)
                    await peer.send(encode(done))
            assert result.result() == TurnResult(ok=True, nbytes=200, reason="")


async def test_a_turn_that_fails_or_gets_no_answer_says_whose(folder: Path, unit: str) -> None:
    async with serving(settings(folder)) as running:
        with (
            Peer(running.settings.workload_path) as one,
            Peer(running.settings.workload_path) as two,
        ):
            await one.register(mode="callback", rank=0, world=2, need_seconds=0.5)
            await two.register(mode="callback", rank=1, world=2, need_seconds=0.5)
            async with asyncio.TaskGroup() as tasks:
                result = tasks.create_task(running.board.turn(unit, seconds=0.5, order="o-1"))
                turn = await one.expect(Turn)
                await one.send(encode(Done(turn=turn.turn, ok=False, reason="disk full")))
            assert result.result().reason == "rank 0: disk full; rank 1: no answer within 0.5 s"
            assert not (await running.board.turn("root/nobody", seconds=1, order="o-1")).ok


async def test_of_less_time_hears_only_whom_it_concerns(folder: Path, unit: str) -> None:
    async with serving(settings(folder)) as running:
        with (
            Peer(running.settings.workload_path) as one,
            Peer(running.settings.workload_path) as two,
        ):
            await one.register(mode="callback", need_seconds=60.0)
            await two.register(job="other", mode="callback", need_seconds=60.0)
            board = running.board
            async with asyncio.TaskGroup() as tasks:
                for name in (unit, f"{unit.rpartition('/')[0]}/other"):
                    tasks.create_task(board.turn(name, seconds=600, order="o-1"))
                turns = [await peer.expect(Turn) for peer in (one, two)]

                # Neither more time than its own slice nor the same once more is any news.
                for amendments in range(2):
                    board.give(order(900, amendments=amendments))
                board.hurry(order(0), unit)
                board.hurry(order(300))
                last = [await peer.expect(Turn) for peer in (one, two)]

                assert last[0] == Turn(turns[0].turn, 0.0, "o-1")
                assert last[1].turn == turns[1].turn
                assert 0 < last[1].seconds <= 300
                for peer, turn in zip((one, two), turns, strict=True):
                    await peer.send(encode(Done(turn=turn.turn, ok=True)))
                    await peer.ask(Acquire())
                    assert not [word for word in peer.unasked if isinstance(word, Turn)]


async def test_an_answer_to_anothers_turn_counts_for_nothing(folder: Path, unit: str) -> None:
    async with serving(settings(folder)) as running:
        with (
            Peer(running.settings.workload_path) as one,
            Peer(running.settings.workload_path) as two,
        ):
            await one.register(mode="callback", need_seconds=60.0)
            await two.register(job="liar", mode="callback", need_seconds=60.0)
            async with asyncio.TaskGroup() as tasks:
                result = tasks.create_task(running.board.turn(unit, seconds=60, order="o-1"))
                turn = await one.expect(Turn)
                await two.send(encode(Done(turn=turn.turn, ok=True, nbytes=1)))
                await two.ask(Acquire())
                assert not result.done()
                await one.ask(Leave())
            assert result.result().reason == "rank 0: left"


# --- doors ----------------------------------------------------------------------------------


async def test_draining_is_unknown_at_the_workloads_door(folder: Path) -> None:
    async with serving(settings(folder)) as running:
        with Peer(running.settings.workload_path) as peer:
            await peer.hello()
            for message in (Drain(30.0), Cancel()):
                refusal = await peer.ask(message)
                assert isinstance(refusal, Refuse)
                assert "unknown on this socket" in refusal.reason
            assert running.administered == []


async def test_an_operator_drains_at_the_admin_door_and_takes_no_part(folder: Path) -> None:
    async with serving(settings(folder)) as running:
        with Peer(running.settings.admin_path) as admin:
            await admin.hello()
            assert await admin.ask(Drain(30.0, "rack move")) == Accepted()
            assert await admin.ask(Cancel()) == Accepted()
            assert running.administered == [Drain(30.0, "rack move"), Cancel()]
            for message in (Register("train", 0, 1), Reserve(4096, "a.bin"), Release(0)):
                refusal = await admin.ask(message)
                assert isinstance(refusal, Refuse)
                assert "unknown on the admin socket" in refusal.reason


@pytest.mark.parametrize("door", ["workload_path", "admin_path"])
async def test_status_comes_through_both_doors_as_a_sealed_memfd(folder: Path, door: str) -> None:
    async with serving(settings(folder)) as running:
        with (
            Peer(running.settings.workload_path) as worker,
            Peer(getattr(running.settings, door)) as peer,
        ):
            await worker.register(priority=7)
            await worker.reserve()
            await worker.stage(3)
            await peer.hello()
            answer, fd = await peer.ask_fd(AskStatus())
            assert isinstance(answer, Status)
            assert fd is not None
            try:
                document = json.loads(os.pread(fd, answer.nbytes, 0))
                check_sealed(fd, answer.nbytes)
                with pytest.raises(OSError, match="Bad file descriptor"):
                    os.pwrite(fd, b"x", 0)
            finally:
                os.close(fd)
            assert document["node"] == "node-1"
            (one,) = document["workloads"]
            assert (one["rank"], one["priority"], one["mode"], one["alive"]) == (
                0,
                7,
                "staged",
                True,
            )
            assert one["pid"] == os.getpid()
            assert one["slots"][0]["state"] == "complete"
            assert one["slots"][0]["step"] == 3
            assert document["memory"]["budget"] == 256 * MIB


async def test_a_newer_client_is_answered_in_this_daemons_version(folder: Path) -> None:
    async with serving(settings(folder)) as running:
        with Peer(running.settings.workload_path) as peer:
            answer = await peer.ask(Hello(version=9))
            assert answer == Welcome(1, "0.1.0", "node-1", "boot-1")


async def test_policy_is_enforced_at_registration(folder: Path) -> None:
    async with serving(settings(folder, max_priority=10)) as running:
        with Peer(running.settings.workload_path) as peer:
            await peer.hello()
            refusal = await peer.ask(Register("train", 0, 1, priority=11))
            assert isinstance(refusal, Refuse)
            assert "priority 11 is above 10" in refusal.reason
    async with serving(settings(folder, allow_users=("nobody-else",))) as running:
        with Peer(running.settings.workload_path) as peer:
            await peer.hello()
            refusal = await peer.ask(Register("train", 0, 1))
            assert isinstance(refusal, Refuse)
            assert "allow_users" in refusal.reason


async def test_the_same_process_reconnects_and_finds_its_generation(
    folder: Path, unit: str
) -> None:
    async with serving(settings(folder)) as running:
        with Peer(running.settings.workload_path) as peer:
            await peer.register()
            await peer.reserve()
            await peer.stage(5, b"five" * 100)
        with Peer(running.settings.workload_path) as again:
            await again.register()
            assert len(running.heard(Joined)) == 2
            with running.board.hold(unit, Generation(0, 5)) as (part,):
                assert bytes(part.data) == b"five" * 100
            with Peer(running.settings.workload_path) as third:
                await third.register()
                words = await again.last_words()
                assert any(
                    isinstance(w, Refuse) and "another connection" in w.reason for w in words
                )
                await third.reserve()
                assert await third.stage(6) == Accepted()


# --- files -----------------------------------------------------------------------------------


async def test_the_sockets_have_their_modes_and_go_at_the_end(folder: Path) -> None:
    chosen = settings(folder, workload_mode=0o622)
    async with serving(chosen):
        assert stat.S_IMODE(chosen.workload_path.stat().st_mode) == 0o622
        assert stat.S_IMODE(chosen.admin_path.stat().st_mode) == 0o600
    assert not chosen.workload_path.exists()
    assert not chosen.admin_path.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give a socket to any group")
async def test_an_admin_group_may_use_the_admin_socket(folder: Path) -> None:
    group = grp.getgrall()[-1]
    chosen = settings(folder, admin_group=group.gr_name)
    async with serving(chosen):
        found = chosen.admin_path.stat()
        assert (stat.S_IMODE(found.st_mode), found.st_gid) == (0o660, group.gr_gid)


async def test_a_second_daemon_says_so_and_leaves_the_first_alone(folder: Path) -> None:
    async with serving(settings(folder)) as running:
        with pytest.raises(AlreadyRunning):
            await _serve(running.settings)
        with Peer(running.settings.workload_path) as peer:
            await peer.register()


async def test_a_socket_that_nobody_serves_is_replaced(folder: Path) -> None:
    chosen = settings(folder)
    chosen.workload_path.parent.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(chosen.workload_path))
    async with serving(chosen) as running:
        with Peer(running.settings.workload_path) as peer:
            await peer.register()


async def test_a_live_socket_without_a_lock_is_another_daemon(folder: Path) -> None:
    chosen = settings(folder)
    chosen.workload_path.parent.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        other.bind(str(chosen.workload_path))
        other.listen()
        with pytest.raises(AlreadyRunning):
            await _serve(chosen)


async def test_what_is_no_socket_is_not_removed(folder: Path) -> None:
    chosen = settings(folder)
    chosen.workload_path.parent.mkdir()
    chosen.workload_path.write_text("mine")
    with pytest.raises(StateError, match="not a socket"):
        await _serve(chosen)
    assert chosen.workload_path.read_text() == "mine"


@pytest.mark.parametrize("where", ["file/evacd.sock", "a" * 120 + "/evacd.sock"])
async def test_a_path_that_cannot_be_is_a_clear_error(folder: Path, where: str) -> None:
    (folder / "file").write_text("")
    with pytest.raises(StateError):
        await _serve(settings(folder, workload_path=folder / where))


async def test_an_unknown_admin_group_is_a_clear_error(folder: Path) -> None:
    with pytest.raises(StateError, match="no such group"):
        await _serve(settings(folder, admin_group="no-such-group-here"))

"""Where a job's owner may write is there before the job hears that it is on board."""

import asyncio
import os
from pathlib import Path

from structlog.testing import capture_logs

from evac.store import Owner, open_store
from evac.wire import Register, Registered
from evacd.workloads import prepare_in
from evacd.workloads.peer import peer_of
from tests.agent.workloads.peers import Peer, serving, settings

ME = Owner(os.geteuid(), os.getegid())


class Held:
    """Makes a place when it is let; counts how often it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Owner]] = []
        self.go = asyncio.Event()
        self.error: Exception | None = None

    async def prepare(self, prefix: str, owner: Owner) -> None:
        self.asked.append((prefix, owner))
        await self.go.wait()
        if self.error is not None:
            raise self.error


async def test_nobody_is_registered_before_the_place_is_there(tmp_path: Path) -> None:
    held = Held()
    async with serving(settings(tmp_path), prepare=held.prepare) as running:
        path = running.settings.workload_path
        with Peer(path) as one, Peer(path) as two:
            async with asyncio.TaskGroup() as tasks:
                both = [
                    tasks.create_task(peer.register(rank=rank, world=2))
                    for rank, peer in enumerate((one, two))
                ]
                await running.until(lambda: held.asked)
                assert running.board.units() == ()
                assert not any(task.done() for task in both)
                held.go.set()
            prefix = peer_prefix(one)
            assert [task.result().prefix for task in both] == [prefix, prefix]
            # One of them asked, and the other waited with it or found it gone.
            assert set(held.asked) == {(prefix, ME)}


def peer_prefix(peer: Peer) -> str:
    return f"{peer_of(peer.sock).user}/train"


async def test_a_place_that_fails_keeps_nobody_off_board(tmp_path: Path) -> None:
    held = Held()
    held.error = RuntimeError("a mistake")
    held.go.set()
    with capture_logs() as logs:
        async with serving(settings(tmp_path), prepare=held.prepare) as running:
            with Peer(running.settings.workload_path) as peer:
                await peer.register()
    assert [one["event"] for one in logs if one["log_level"] == "error"] == ["place.failed"]


async def test_a_store_that_hangs_keeps_nobody_off_board_and_is_told(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with serving(settings(tmp_path), prepare=Held().prepare) as running:
            with Peer(running.settings.workload_path) as peer:
                await peer.register()
    assert "place.late" in [one["event"] for one in logs]


async def test_who_may_not_register_has_no_place_made(tmp_path: Path) -> None:
    held = Held()
    async with serving(settings(tmp_path), prepare=held.prepare) as running:
        with Peer(running.settings.workload_path) as peer:
            await peer.hello()
            answer = await peer.ask(Register(job="train", rank=0, world=1, priority=9999))
    assert not isinstance(answer, Registered)
    assert held.asked == []


async def test_a_store_that_refuses_does_not_cost_the_next_its_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    bad, good = f"file://{tmp_path}/file", f"file://{tmp_path}/good"
    prepare = prepare_in([bad, good], lambda url, owner: open_store(url, owner=owner))

    with capture_logs() as logs:
        await prepare("me/job", ME)

    assert (tmp_path / "good" / "me" / "job").is_dir()
    assert [(one["event"], one["store"]) for one in logs] == [("place.failed", bad)]

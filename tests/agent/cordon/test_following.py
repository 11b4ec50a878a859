"""A cordon that follows the flush: told of its end, and asked what an earlier daemon left."""

import asyncio
from dataclasses import replace

from evacd.facts import Order
from tests.agent.cordon.test_gate import ONE, TWO, Scheduler, at_rest


class Follower(Scheduler):
    """Counts what it is told, and may take for ever over it."""

    def __init__(self, *, left: str | None = None, ends: bool = True) -> None:
        super().__init__()
        self.left = left
        self.ends = ends
        self.emptied_began = asyncio.Event()
        self.look_began = asyncio.Event()
        self.looks = 0

    async def amended(self, order: Order, *, seconds_left: float) -> str | None:
        assert not self.busy
        self.done.append((f"amended {order.amendments}", order.id))
        return None

    async def emptied(
        self, order: Order, *, kept: int, lost: int, seconds_left: float
    ) -> str | None:
        assert not self.busy
        self.emptied_began.set()
        if not self.ends:
            await asyncio.Event().wait()
        self.done.append((f"emptied {kept}/{lost}", order.id))
        return "a pod stays" if lost else None

    async def left_over(self) -> str | None:
        assert not self.busy
        self.looks += 1
        self.look_began.set()
        if not self.ends:
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        return self.left


async def test_it_is_told_after_the_close_and_once_for_each_outcome() -> None:
    follower = Follower()
    async with at_rest(follower) as scene:
        scene.gate.close(ONE)
        scene.gate.emptied(ONE, kept=1, lost=0)
        scene.gate.emptied(ONE, kept=1, lost=0)
    async with at_rest(follower) as again:
        again.gate.emptied(ONE, kept=1, lost=1)

    assert [what for what, _ in follower.done] == ["close", "emptied 1/0", "emptied 1/1"]
    assert again.told == [("one", "cordon.failed")]


async def test_an_amendment_is_told_after_the_close_and_before_the_end() -> None:
    follower = Follower()
    async with at_rest(follower) as scene:
        scene.gate.close(ONE)
        scene.gate.emptied(ONE, kept=1, lost=0)
        scene.gate.amend(replace(ONE, amendments=1))
        scene.gate.amend(replace(ONE, amendments=2))

    assert [what for what, _ in follower.done] == ["close", "amended 2", "emptied 1/0"]


async def test_a_cancel_ends_what_follows_and_opens() -> None:
    follower = Follower(ends=False)
    async with at_rest(follower) as scene:
        scene.gate.close(ONE)
        scene.gate.emptied(ONE, kept=1, lost=0)
        await follower.emptied_began.wait()
        scene.gate.reopen(ONE, reason="cancelled")

    assert not follower.closed
    assert [what for what, _ in follower.done] == ["close", "reopen"]


async def test_a_cancel_before_it_is_told_leaves_nothing_to_tell() -> None:
    follower = Follower()
    async with at_rest(follower) as scene:
        scene.gate.close(ONE)
        scene.gate.emptied(ONE, kept=1, lost=0)
        scene.gate.reopen(ONE, reason="cancelled")

    assert not [what for what, _ in follower.done if what.startswith("emptied")]


async def test_what_an_earlier_daemon_left_is_found() -> None:
    follower, found = Follower(left="boot-1"), list[str]()
    async with at_rest(follower) as scene:
        scene.gate.inherit(found.append)

    assert found == ["boot-1"]


async def test_nothing_left_is_nothing_found() -> None:
    follower, found = Follower(), list[str]()
    async with at_rest(follower) as scene:
        scene.gate.inherit(found.append)

    assert (follower.looks, found) == (1, [])


async def test_an_order_goes_before_what_was_left() -> None:
    follower, found = Follower(left="boot-1"), list[str]()
    async with at_rest(follower) as scene:
        scene.gate.inherit(found.append)
        scene.gate.close(TWO)

    assert (follower.looks, found) == (0, [])
    assert follower.closed


async def test_an_order_ends_a_look_that_does_not_end() -> None:
    follower, found = Follower(ends=False), list[str]()
    async with at_rest(follower) as scene:
        scene.gate.inherit(found.append)
        await follower.look_began.wait()
        scene.gate.close(ONE)

    assert follower.closed
    assert found == []


async def test_a_stop_ends_a_look_that_does_not_end() -> None:
    follower = Follower(ends=False)
    async with at_rest(follower) as scene:
        scene.gate.inherit(lambda boot: None)
        await follower.look_began.wait()
        scene.gate.look_no_more()

    assert follower.looks == 1


async def test_one_that_does_not_follow_is_told_nothing() -> None:
    plain = Scheduler()
    async with at_rest(plain) as scene:
        scene.gate.emptied(ONE, kept=1, lost=0)
        scene.gate.inherit(lambda boot: None)

    assert plain.done == []

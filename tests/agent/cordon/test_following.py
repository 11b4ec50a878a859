"""A cordon that follows the flush: told of its end, and asked what an earlier daemon left."""

import asyncio
from dataclasses import replace

from evacd.cordon import Unanswered
from evacd.facts import Order
from tests.agent.cordon.test_gate import ONE, TWO, Scheduler, at_rest


class Follower(Scheduler):
    """Counts what it is told, and may take for ever over it; its first tries may have no answer."""

    def __init__(self, *, left: str | None = None, ends: bool = True, silent: int = 0) -> None:
        super().__init__()
        self.left = left
        self.ends = ends
        self.silent = silent
        self.silent_on_amendments = 0
        self.deadlines: list[float] = []
        self.tried = asyncio.Event()
        self.answered = asyncio.Event()
        self.emptied_began = asyncio.Event()
        self.look_began = asyncio.Event()
        self.looks = 0

    async def _set(self, closed: bool, order: Order) -> str | None:
        self.wrong = Unanswered("no answer") if self.silent > 0 else None
        self.silent -= 1
        self.deadlines.append(order.deadline)
        wrong = await super()._set(closed, order)
        (self.answered if wrong is None else self.tried).set()
        return wrong

    async def amended(self, order: Order, *, seconds_left: float) -> str | None:
        assert not self.busy
        self.done.append((f"amended {order.amendments}", order.id))
        self.silent_on_amendments -= 1
        return Unanswered("no answer") if self.silent_on_amendments >= 0 else None

    async def emptied(
        self, order: Order, *, kept: int, lost: int, seconds_left: float
    ) -> str | None:
        assert not self.busy
        self.emptied_began.set()
        if not self.ends:
            await asyncio.Event().wait()
        self.done.append((f"emptied {kept}/{lost}", f"{order.id} by {order.deadline:g}"))
        return "a pod stays" if lost else None

    async def left_over(self) -> str | None:
        assert not self.busy
        self.looks += 1
        self.look_began.set()
        if not self.ends:
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        return self.left


async def turns() -> None:
    """What is due by now is done."""
    for _ in range(50):
        await asyncio.sleep(0)


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
        scene.gate.amend(replace(ONE, deadline=1005.0, amendments=2))

    assert [what for what, _ in follower.done] == ["close", "amended 2", "emptied 1/0"]
    # By the deadline that holds by then.
    assert follower.done[-1] == ("emptied 1/0", "one by 1005")


async def test_an_amendment_does_not_wait_for_what_the_old_deadline_left_time_for() -> None:
    """Pods that a budget holds are asked for until the deadline: of the order as it is by then."""
    follower = Follower(ends=False)
    sooner = replace(ONE, deadline=1005.0, amendments=1)
    async with at_rest(follower) as scene:
        scene.gate.close(ONE)
        scene.gate.emptied(ONE, kept=1, lost=0)
        await follower.emptied_began.wait()
        follower.ends = True
        scene.gate.amend(sooner)
        scene.gate.emptied(sooner, kept=1, lost=0)

    assert follower.done[1:] == [("amended 1", "one"), ("emptied 1/0", "one by 1005")]


async def test_another_outcome_does_not_wait_for_the_one_before() -> None:
    follower = Follower(ends=False)
    async with at_rest(follower) as scene:
        scene.gate.close(ONE)
        scene.gate.emptied(ONE, kept=1, lost=0)
        await follower.emptied_began.wait()
        follower.ends = True
        scene.gate.emptied(ONE, kept=2, lost=0)

    assert [what for what, _ in follower.done] == ["close", "emptied 2/0"]


async def test_a_disk_that_takes_for_ever_does_not_keep_the_node_open() -> None:
    """The node itself remembers that it was closed: it need not be on the disk before."""
    follower = Follower()

    async def noted() -> None:
        await follower.answered.wait()

    async with asyncio.timeout(20), at_rest(follower, noted=noted) as scene:
        scene.gate.close(ONE)

    assert scene.told == [("one", "cordon.closed")]


async def test_what_had_no_answer_is_tried_until_it_has_and_told_once() -> None:
    follower = Follower(silent=3)
    async with at_rest(follower, again_seconds=0.001) as scene:
        scene.gate.close(ONE)
        await follower.answered.wait()
    assert scene.told == [("one", "cordon.failed"), ("one", "cordon.closed")]

    follower.silent = 2
    follower.answered.clear()
    async with at_rest(follower, again_seconds=0.001) as scene:
        scene.gate.closed = True
        scene.gate.reopen(ONE, reason="cancelled")
        await follower.answered.wait()
    assert scene.told == [("one", "cordon.failed"), ("one", "cordon.reopened")]
    assert not scene.gate.closed


async def test_what_is_refused_is_not_tried_again() -> None:
    class Refusing(Follower):
        """Another try cannot help."""

        async def _set(self, closed: bool, order: Order) -> str | None:
            await super()._set(closed, order)
            return "forbidden"

    follower = Refusing()
    async with at_rest(follower, again_seconds=0.0) as scene:
        scene.gate.close(ONE)
        await follower.answered.wait()
        await turns()

    assert follower.done == [("close", "one")]
    assert scene.told == [("one", "cordon.failed")]


async def test_a_wish_takes_the_place_of_another_try() -> None:
    follower = Follower(silent=1)
    async with at_rest(follower, again_seconds=3600.0) as scene:
        scene.gate.close(ONE)
        await follower.tried.wait()
        scene.gate.reopen(ONE, reason="cancelled")
        await follower.answered.wait()

    assert follower.done == [("close", "one"), ("reopen", "one")]


async def test_nothing_follows_a_close_before_that_has_an_answer() -> None:
    """A pod that is evicted from a node that is still open may land there again."""
    follower = Follower(silent=3)
    async with at_rest(follower, again_seconds=0.001) as scene:
        scene.gate.close(ONE)
        scene.gate.emptied(ONE, kept=1, lost=0)
        await follower.emptied_began.wait()

    assert [what for what, _ in follower.done] == ["close"] * 4 + ["emptied 1/0"]


async def test_what_follows_has_the_close_tried_at_once_and_is_held_where_that_fails() -> None:
    follower = Follower(silent=2)
    async with at_rest(follower, again_seconds=3600.0) as scene:
        scene.gate.close(ONE)
        await follower.tried.wait()
        await turns()
        scene.gate.emptied(ONE, kept=1, lost=0)
        await turns()
        assert [what for what, _ in follower.done] == ["close", "close"]
        scene.gate.emptied(ONE, kept=2, lost=0)
        await follower.emptied_began.wait()

    assert [what for what, _ in follower.done] == ["close"] * 3 + ["emptied 2/0"]
    assert scene.told == [("one", "cordon.failed"), ("one", "cordon.closed")]


async def test_a_close_that_is_given_up_at_the_end_holds_what_follows() -> None:
    follower = Follower(silent=5)
    async with at_rest(follower, again_seconds=0.0) as scene:
        scene.gate.close(ONE)
        scene.gate.emptied(ONE, kept=1, lost=0)
        await follower.began.wait()
        scene.gate.end_soon()

    assert follower.done == [("close", "one")]


async def test_what_is_tried_again_has_the_newest_deadline() -> None:
    follower = Follower(silent=2)
    sooner = replace(ONE, deadline=1005.0, amendments=1)
    async with at_rest(follower, again_seconds=3600.0) as scene:
        scene.gate.close(ONE)
        await follower.began.wait()
        scene.gate.amend(sooner)  # while the first try runs
        await follower.tried.wait()
        await turns()
        soonest = replace(sooner, deadline=1001.0, amendments=2)
        scene.gate.amend(soonest)  # while nothing runs
        await turns()
        scene.gate.emptied(soonest, kept=1, lost=0)
        await follower.emptied_began.wait()

    assert follower.deadlines == [1030.0, 1001.0, 1001.0]
    assert [what for what, _ in follower.done] == ["close"] * 3 + ["amended 2", "emptied 1/0"]


async def test_another_order_is_closed_with_its_own_deadline() -> None:
    follower = Follower()
    async with at_rest(follower) as scene:
        scene.gate.close(ONE)
        scene.gate.amend(replace(ONE, deadline=1005.0, amendments=1))
        scene.gate.reopen(ONE, reason="cancelled")
        scene.gate.close(TWO)

    assert follower.deadlines == [TWO.deadline]


async def test_an_amendment_that_had_no_answer_is_told_again() -> None:
    follower = Follower(ends=False)
    follower.silent_on_amendments = 2
    sooner = replace(ONE, deadline=1005.0, amendments=1)
    async with at_rest(follower, again_seconds=0.001) as scene:
        scene.gate.close(ONE)
        await follower.answered.wait()
        scene.gate.amend(sooner)
        scene.gate.emptied(sooner, kept=1, lost=0)
        async with asyncio.timeout(20):
            while follower.silent_on_amendments >= 0:  # noqa: ASYNC110 - nothing else tells
                await asyncio.sleep(0.001)
        follower.ends = True
        scene.gate.emptied(sooner, kept=2, lost=0)

    # What is told of the flush does not keep it waiting.
    assert [what for what, _ in follower.done] == ["close"] + ["amended 1"] * 3 + ["emptied 2/0"]
    assert scene.told == [("one", "cordon.closed"), ("one", "cordon.failed")]


async def test_an_amendment_takes_the_place_of_the_one_before() -> None:
    follower = Follower()
    follower.silent_on_amendments = 1
    async with at_rest(follower, again_seconds=3600.0) as scene:
        scene.gate.close(ONE)
        scene.gate.amend(replace(ONE, deadline=1020.0, amendments=1))
        while follower.silent_on_amendments:  # noqa: ASYNC110 - nothing else tells
            await asyncio.sleep(0)
        await turns()
        scene.gate.amend(replace(ONE, deadline=1005.0, amendments=2))

    assert [what for what, _ in follower.done] == ["close", "amended 1", "amended 2"]


async def test_after_the_end_nothing_is_tried_again() -> None:
    follower = Follower(silent=5)
    async with at_rest(follower, again_seconds=0.0) as scene:
        scene.gate.close(ONE)
        await follower.began.wait()
        scene.gate.end_soon()
        await follower.tried.wait()
        await turns()

    assert follower.done == [("close", "one")]


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
        scene.gate.end_soon()

    assert follower.looks == 1


async def test_one_that_does_not_follow_is_told_nothing() -> None:
    plain = Scheduler()
    async with at_rest(plain) as scene:
        scene.gate.emptied(ONE, kept=1, lost=0)
        scene.gate.inherit(lambda boot: None)

    assert plain.done == []

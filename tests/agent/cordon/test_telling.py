"""One that only tells: nothing waits for it. And what each of them shows of how it stands."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.agent.cordon.test_following import Follower, turns
from tests.agent.cordon.test_gate import ONE, at_rest


class Teller(Follower):
    """One that keeps no work off, and hears of those that do."""

    closes = False

    async def heard(self, order: str, event: str, data: Mapping[str, Any]) -> str | None:
        assert not self.busy
        self.done.append((f"heard {event}", order))
        return None


async def test_nothing_waits_for_one_that_only_tells() -> None:
    teller = Teller(silent=2)
    sooner = replace(ONE, deadline=1005.0, amendments=1)
    async with at_rest(teller, again_seconds=0.001) as scene:
        scene.gate.close(ONE)
        await teller.tried.wait()
        scene.gate.amend(sooner)
        scene.gate.emptied(sooner, kept=1, lost=0)
        scene.gate.heard("one", "cordon.failed", {"name": "another"})
        await teller.answered.wait()

    told = [what for what, _ in teller.done]
    # What is heard stays in order with what is told, and the close is told again all the same.
    assert told.count("close") == 3
    assert {"heard cordon.failed", "amended 1", "emptied 1/0"} < set(told)
    assert scene.told == [("one", "cordon.failed"), ("one", "cordon.told")]


async def test_an_amendment_without_an_answer_takes_no_other_try_of_the_close_away() -> None:
    teller = Teller(silent=2)
    teller.silent_on_amendments = 1
    async with at_rest(teller, again_seconds=0.001) as scene:
        scene.gate.close(ONE)
        await teller.tried.wait()
        scene.gate.amend(replace(ONE, deadline=1005.0, amendments=1))
        await teller.answered.wait()

    assert [what for what, _ in teller.done].count("close") == 3


async def test_one_that_does_not_tell_hears_nothing() -> None:
    follower = Follower()
    async with at_rest(follower) as scene:
        scene.gate.heard("one", "cordon.failed", {"name": "another"})

    assert follower.done == []


async def test_it_shows_what_is_wished_and_what_keeps_it_from_being_so() -> None:
    follower = Follower(silent=1)
    async with at_rest(follower, again_seconds=3600.0) as scene:
        shown = {"name": "scheduler", "closes": True, "tells": False}
        shown |= {"wished": "open", "done": True}
        assert scene.gate.shown() == {**shown, "again": False, "reason": ""}
        scene.gate.close(ONE)
        await follower.tried.wait()
        await turns()
        shown |= {"wished": "closed", "done": False}
        assert scene.gate.shown() == {**shown, "again": True, "reason": "no answer"}
        scene.gate.emptied(ONE, kept=1, lost=1)
        await follower.answered.wait()
        await turns()
        shown |= {"done": True}
        assert scene.gate.shown() == {**shown, "again": False, "reason": "a pod stays"}
        scene.gate.reopen(ONE, reason="cancelled")
        await turns()
        shown |= {"wished": "open"}
        assert scene.gate.shown() == {**shown, "again": False, "reason": ""}


async def test_a_reopen_of_what_is_not_known_to_be_closed_does_not_end_the_look() -> None:
    """A record of before names one cordon, and the node's own object another one, too."""
    follower, found = Follower(left="boot-1"), list[str]()
    async with at_rest(follower) as scene:
        scene.gate.inherit(found.append)
        scene.gate.reopen(ONE, reason="the node has booted again")

    assert found == ["boot-1"]


async def test_what_follows_the_flush_does_not_keep_a_daemon_from_its_end_until_the_deadline() -> (
    None
):
    follower = Follower(ends=False)
    async with asyncio.timeout(60), at_rest(follower, end_seconds=0.01) as scene:
        scene.gate.close(ONE)
        scene.gate.emptied(ONE, kept=1, lost=0)
        await follower.emptied_began.wait()
        scene.gate.end_soon()

    assert scene.told == [("one", "cordon.closed"), ("one", "cordon.failed")]
    assert scene.gate.shown()["reason"] == "not ended: evacd stops before the deadline"


async def test_at_the_end_a_silent_server_is_not_told_one_thing_after_the_other() -> None:
    teller = Teller(silent=1)
    async with at_rest(teller, again_seconds=3600.0) as scene:
        scene.gate.close(ONE)
        scene.gate.amend(replace(ONE, deadline=1005.0, amendments=1))
        scene.gate.heard("one", "cordon.failed", {"name": "another"})
        await teller.began.wait()
        scene.gate.end_soon()

    assert teller.done == [("close", "one")]

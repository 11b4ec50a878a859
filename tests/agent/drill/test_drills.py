"""Drills with real memory and a real store: real bytes move, and a real order goes first."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from evac import incident
from evac.commit import State, survey
from evac.store.local import LocalStore
from evac.wire import Drill
from evacd.drill import Drills
from evacd.facts import Kept
from evacd.plan.rate import Rate
from evacd.plan.risk import Risk, risk
from evacd.report.journal import Journal
from tests.agent.quiet.memory import CLOCK, MIB, Node


@dataclass
class Scene:
    node: Node
    drills: Drills
    journal: Path

    def shown(self) -> dict[str, Any]:
        shown = self.drills.shown()
        assert shown is not None
        return dict(shown)

    async def drilled(self, **message: Any) -> dict[str, Any]:
        assert self.drills.begin(Drill(**message)) == ""
        await self.node.until(lambda: not self.drills.running)
        return self.shown()

    async def states(self, unit: str) -> dict[int, State]:
        found = await survey(LocalStore(str(self.node.folder)), unit)
        return {one.generation.step: one.state for one in found}


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    """A node on which nothing trickles, unless a test lets it."""
    folder = tmp_path / "store"
    folder.mkdir()
    async with AsyncExitStack() as stack:
        ends = stack.enter_context(ExitStack())
        node = Node(folder, ends, cap=MIB / 2, interval=0.0)
        journal = Journal(tmp_path / "incidents.sqlite", CLOCK)
        stack.callback(journal.stop)
        tasks = await stack.enter_async_context(asyncio.TaskGroup())

        def look(window: float) -> Risk:
            return risk(
                node.way.units(), window_seconds=window,
                rates={lane: rate.bytes_per_second for lane, rate in node.flush.rates.items()},
                reserve=0.5, commit_seconds=0.0, now=CLOCK.monotonic(),
            )  # fmt: skip

        drills = Drills(
            node.way, node.flush, journal, CLOCK,
            risk=look, window=lambda: 30.0, reserve=0.5, node="node-1",
            boot="boot-1", prefix="test", beside=tasks, over=lambda: None,
        )  # fmt: skip
        driver = tasks.create_task(node.flush.drive(node.lane))
        yield Scene(node, drills, tmp_path / "incidents.sqlite")
        driver.cancel()
        drills.give_way()


async def test_without_flush_it_only_plans(scene: Scene) -> None:
    scene.node.aboard.stage("a/job", 5, MIB)

    shown = await scene.drilled()

    assert shown["lost"] == []
    assert shown["units"][0]["drilled_margin_seconds"] is None
    assert await scene.states("a/job") == {}


async def test_with_flush_the_newest_generations_become_durable(scene: Scene) -> None:
    scene.node.aboard.stage("a/job", 4, MIB)
    scene.node.aboard.stage("a/job", 5, MIB)
    scene.node.aboard.stage("b/job", 7, MIB)

    shown = await scene.drilled(flush=True)

    assert shown["lost"] == []
    assert [one["step"] for one in shown["units"]] == [5, 7]
    assert all(one["drilled_margin_seconds"] > 0 for one in shown["units"])
    assert await scene.states("a/job") == {5: State.COMPLETE}
    assert await scene.states("b/job") == {7: State.COMPLETE}
    assert scene.node.flush.order is None
    assert scene.node.flush.outcomes == {}


async def test_what_is_staged_meanwhile_is_left_to_the_next_one(scene: Scene) -> None:
    scene.node.aboard.stage("a/job", 5, 16 * MIB)
    assert scene.drills.begin(Drill(flush=True)) == ""
    await scene.node.until(lambda: scene.node.flushed)
    scene.node.aboard.stage("a/job", 6, MIB)
    scene.node.aboard.stage("c/late", 1, MIB)
    await scene.node.until(lambda: not scene.drills.running)

    assert scene.node.flushed == [("a/job", 5)]
    assert [one["unit"] for one in scene.shown()["units"]] == ["a/job"]


async def test_what_a_drill_has_left_there_is_predicted_to_take_no_time(scene: Scene) -> None:
    """Another node's part is missing, so it is not durable; of ours no byte moves again."""
    scene.node.aboard.world = 2
    scene.node.aboard.stage("a/job", 5, 16 * MIB)
    await scene.drilled(flush=True)
    assert scene.node.aboard.units()[0].durable is None
    scene.node.flush.rates[scene.node.lane] = Rate(MIB / 100, measured=True)

    shown = await scene.drilled(seconds=20.0)

    assert shown["lost"] == []
    assert shown["predicted_margin_seconds"] > 19.0


async def test_who_would_be_lost_is_named_with_the_reason(scene: Scene) -> None:
    scene.node.aboard.stage("a/job", 5, MIB)
    scene.node.flush.rates[scene.node.lane] = type(scene.node.flush.rates[scene.node.lane])(1000.0)

    shown = await scene.drilled(seconds=10.0)

    assert shown["lost"] == ["a/job"]
    assert shown["predicted_margin_seconds"] < 0


async def test_it_is_journaled_as_an_incident_of_kind_drill(scene: Scene) -> None:
    scene.node.aboard.stage("a/job", 5, MIB)

    shown = await scene.drilled(flush=True)

    await scene.node.until(lambda: incident.load(scene.journal)[-1].ended is not None)
    found = incident.load(scene.journal)[-1]
    assert (found.id, found.source, found.kind) == (shown["id"], "operator", "drill")
    names = [event.name for event in found.events]
    assert names[0] == "drill.started"
    assert names[-1] == "report.written"
    assert incident.summary(found).whole


async def test_the_flush_learns_the_rate_from_it(scene: Scene) -> None:
    scene.node.aboard.stage("a/job", 5, 16 * MIB)

    await scene.drilled(flush=True)

    assert scene.node.flush.rates[scene.node.lane].measured


async def test_a_real_order_makes_it_give_way_and_saves_everything(scene: Scene) -> None:
    scene.node.aboard.stage("a/job", 5, 256 * MIB)
    scene.node.aboard.stage("b/job", 7, 16 * MIB)
    assert scene.drills.begin(Drill(flush=True)) == ""
    await scene.node.until(lambda: scene.node.flushed)

    scene.node.flush.evacuate(scene.node.order())
    await scene.node.until(scene.node.flush.settled.is_set)
    await scene.node.until(lambda: not scene.drills.running)

    assert all(isinstance(one, Kept) for one in scene.node.flush.outcomes.values())
    assert set(scene.node.flush.outcomes) == {"a/job", "b/job"}
    assert scene.shown()["reason"] == "it gave way to a real flush"


async def test_what_trickles_already_becomes_the_drills_own_step(scene: Scene) -> None:
    async with asyncio.TaskGroup() as tasks:
        trickle = tasks.create_task(scene.node.trickle.run())
        scene.node.aboard.stage("a/job", 5, 64 * MIB)
        await scene.node.until(lambda: scene.node.heard("trickle.started"))

        shown = await scene.drilled(flush=True)

        assert shown["lost"] == []
        assert scene.node.flushed == []
        assert await scene.states("a/job") == {5: State.COMPLETE}
        trickle.cancel()


async def test_one_at_a_time_and_none_under_an_order(scene: Scene) -> None:
    scene.node.aboard.stage("a/job", 5, 64 * MIB)
    assert scene.drills.begin(Drill(flush=True)) == ""
    assert scene.drills.begin(Drill()) == "a drill is running"
    await scene.node.until(lambda: not scene.drills.running)

    scene.node.flush.evacuate(scene.node.order())
    assert scene.drills.begin(Drill()) == "an evacuation is running"


async def test_a_store_that_refuses_is_a_loss_with_its_reason(scene: Scene) -> None:
    scene.node.aboard.stage("a/job", 5, MIB)
    scene.node.folder.rmdir()
    scene.node.folder.write_text("no folder")

    shown = await scene.drilled(flush=True)

    assert shown["lost"] == ["a/job"]
    assert shown["units"][0]["reason"]

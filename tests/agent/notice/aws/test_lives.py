"""Random lives of a node: whatever happens and fails, the order is what stands announced."""

import random

import pytest

from evacd.facts import Cancelled, Noticed, Order, Probe, Quiet, Unknown
from evacd.notice import Source
from evacd.notice.simulate.faults import parse
from evacd.order import Machine
from tests.agent.notice.aws.scene import Scene
from tests.agent.notice.hearing import watching

# What each action adds to what stands, by the key that it changes.
BEGINS = {
    "preempt": "spot",
    "stop": "spot",
    "hibernate": "spot",
    "retire": "maintenance",
    "instance-stop": "maintenance",
    "asg-terminate": "asg",
    "rebalance": "",
    "expire-tokens": "",
}
ENDS = {
    "complete": {"maintenance"},
    "cancel": {"maintenance"},
    "asg-in-service": {"asg"},
    "clear": {"spot", "maintenance", "asg"},
}
FAULTS = ("status=401", "status=403", "status=429", "status=503", "html", "empty", "reset")


async def told_once(source: Source) -> list[Probe]:
    """Watch it for an answer; a watch is cut off anywhere in its next question."""
    async with watching(source) as hearing:
        await hearing.until(Quiet | Noticed | Cancelled | Unknown)  # type: ignore[arg-type]  # any
    return hearing.told


@pytest.mark.parametrize("seed", range(12))
async def test_an_order_runs_exactly_while_something_certain_stands(
    scene: Scene, seed: int
) -> None:
    chance = random.Random(seed)
    sources = list(scene.sources(ttl_seconds=300).values())
    machine = Machine(iter(map(str, range(1000))).__next__)
    stands: set[str] = set()
    before: Order | None = None
    for _ in range(60):
        scene.pass_time(chance.choice([0.2, 1.0, 1.0, 200.0]))
        scene.clock.ahead = chance.choice([0.0, 0.0, -600.0, 600.0])
        action = chance.choice([*BEGINS, *BEGINS, *ENDS, "none", "none", "none"])
        if action != "none":
            scene.ec2.actions[action]()
        stands = (stands | {BEGINS.get(action, "")}) - ENDS.get(action, set()) - {""}
        broken = chance.random() < 0.4
        if broken:
            scene.faults.add(parse(chance.choice(FAULTS)))
        cancelled = False
        for source in chance.sample(sources, k=len(sources)):
            for probe in await told_once(source):
                cancelled |= isinstance(probe, Cancelled)
                machine.feed(probe, now=scene.clock.now)
        scene.faults.clear()

        order = machine.order
        if broken:
            assert order == before
        else:
            assert (order is not None) == bool(stands)
        if order and before and order.id == before.id and not cancelled:
            assert order.deadline <= before.deadline
        before = order

"""A listener with scripted sources, and a node that holds each order to the promise."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from secrets import token_hex
from types import MappingProxyType

from evacd.clock import SystemClock
from evacd.config import load
from evacd.facts import Cancelled, Noticed, Order, Probe
from evacd.listening import Ears, Listener
from evacd.listening.attend import Again
from evacd.order import Amended, Given, Machine, StoodDown
from tests.agent.listening.scripted import Count, Scripted
from tests.agent.notice.hearing import LIMIT

NOWHERE = Path("/nonexistent")
ALONE = {"notice.cloud": "none", "shutdown.watch": "off", "node.watch": "off"}


@dataclass
class Node:
    """What a daemon does with what it hears, as far as orders go; it checks them all."""

    machine: Machine = field(default_factory=lambda: Machine(partial(token_hex, 4)))
    order: Order | None = None
    orders: list[Order] = field(default_factory=list)
    heard: list[Probe] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def hear(self, probe: Probe) -> None:
        self.heard.append(probe)
        for transition in self.machine.feed(probe, now=SystemClock().monotonic()):
            match transition:
                case Given(order):
                    assert self.order is None, "a second order while one runs"
                    self.order = order
                    self.orders.append(order)
                case Amended(order):
                    assert self.order is not None
                    assert order.id == self.order.id
                    if not isinstance(probe, Cancelled):
                        assert order.deadline <= self.order.deadline, "more time without a cancel"
                    self.order = order
                case StoodDown():
                    assert isinstance(probe, Cancelled)
                    self.order = None
        self.news.set()

    async def until_heard(self, source: str, kind: type[Probe]) -> None:
        async with asyncio.timeout(LIMIT):
            while not any(
                isinstance(each, kind) and _source(each) == source for each in self.heard
            ):
                self.news.clear()
                await self.news.wait()


def _source(probe: Probe) -> str:
    return probe.notice.source if isinstance(probe, Noticed) else probe.source


@dataclass
class Scene:
    node: Node
    ears: Ears
    listener: Listener
    counts: Count


@asynccontextmanager
async def listening(
    extra: Iterable[Scripted] = (),
    given: Mapping[str, object] = MappingProxyType(ALONE),
    *,
    find_again_seconds: float = 0.01,
    dmi: Path = NOWHERE,
) -> AsyncIterator[Scene]:
    node, counts = Node(), Count()
    ears = Ears(node.hear, SystemClock(), counts)
    listener = Listener(
        load(None, {}, given),
        ears,
        SystemClock(),
        dmi=dmi,
        extra=extra,
        again=Again(first=0.0, most=0.0),
        find_again_seconds=find_again_seconds,
    )
    async with listener, asyncio.TaskGroup() as tasks:
        running = tasks.create_task(listener.run())
        yield Scene(node, ears, listener, counts)
        running.cancel()

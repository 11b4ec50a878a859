"""What each lane does beside the flush: its rate is learnt, generations trickle there, it is kept tidy."""

import asyncio
from asyncio import TaskGroup
from collections.abc import Callable, Mapping
from typing import NoReturn

import structlog

from evac.errors import StoreError
from evac.store import Store
from evac.store.location import is_of_job
from evacd.calm import Calm
from evacd.clock import Clock
from evacd.flush import Flush
from evacd.flush.measure import measure
from evacd.flush.proof import Proof
from evacd.flush.tidy import tidy
from evacd.plan.rate import SLOWEST_COMMIT_SECONDS

log = structlog.get_logger()

# Seconds between two tries of a store that has taken nothing yet.
_PROVE_SECONDS = 15.0
# Seconds between two looks whether an order has settled.
_LOOK_SECONDS = 1.0
# What a killed writer left is taken for abandoned only after a while, so the start comes too soon
# for what was cut off just before it.
_TIDY_SOON_SECONDS = 600.0
_TIDY_SECONDS = 24 * 3600.0


class Lanes:
    """All of one node.

    Args:
        named: Whether any job has said where its nodes keep bytes for each other.
        node: Whose probes are ours.
    """

    def __init__(
        self,
        stores: Mapping[str, Store],
        flush: Flush,
        calm: Calm | None,
        proof: Proof,
        *,
        named: Callable[[], bool],
        node: str,
        clock: Clock,
    ) -> None:
        self._stores = stores
        self._flush = flush
        self._calm = calm
        self._proof = proof
        self._named = named
        self._node = node
        self._clock = clock

    async def work(self, lane: str) -> None:
        """Until cancelled. The rate first: what may trickle is a share of it."""
        while is_of_job(lane):
            if self._named():
                break
            await asyncio.sleep(_PROVE_SECONDS)  # nobody has said yet where it leads
        await self._learn(lane)
        async with TaskGroup() as tasks:
            tasks.create_task(self._prove(lane))
            tasks.create_task(self._keep_tidy(lane))
            if self._calm is not None:
                tasks.create_task(self._calm.trickle(lane))

    async def _prove(self, lane: str) -> None:
        """Until it has taken bytes: who waits for this node to be ready stages none before."""
        while not self._flush.rates[lane].measured:
            await asyncio.sleep(_PROVE_SECONDS)
            if not self._flush.rates[lane].measured and not self._leaves():
                await self._learn(lane)

    async def _learn(self, lane: str) -> None:
        """Learn the lane's rate, and that it takes bytes at all."""
        found = await measure(
            self._stores[lane],
            clock=self._clock,
            node=self._node,
            stop=self._leaves,
            wide=not lane.startswith("file:"),
        )
        if found is None:
            return
        if isinstance(found, StoreError):
            if self._proof.failed(lane, found.reason):
                log.warning("lane.unmeasured", store=lane, reason=found.reason)
            return
        self._proof.worked(lane)
        rate = self._flush.rates[lane].observed(found.nbytes, found.seconds)
        self._flush.rates[lane] = rate
        self._flush.commits[lane] = min(found.commit_seconds, SLOWEST_COMMIT_SECONDS)
        log.info("lane.measured", store=lane, bytes_per_second=round(rate.bytes_per_second))

    async def _keep_tidy(self, lane: str) -> NoReturn:
        """End what a killed predecessor left there; once more soon, and then once a day."""
        pause = _TIDY_SOON_SECONDS
        while True:
            while True:
                if not self._busy():
                    break
                await asyncio.sleep(_LOOK_SECONDS)  # an order runs, and has something to move
            await self._tidy(lane)
            await asyncio.sleep(pause)
            pause = _TIDY_SECONDS

    async def _tidy(self, lane: str) -> None:
        tidied = await tidy(self._stores[lane], node=self._node, stop=self._busy)
        if tidied.removed or tidied.finished or tidied.reason:
            log.info(
                "store.tidied",
                store=lane,
                removed=tidied.removed,
                finished=[f"{prefix} {generation}" for prefix, generation in tidied.finished],
                reason=tidied.reason,
            )

    def _busy(self) -> bool:
        """An order moves what there is to save."""
        return self._leaves() and not self._flush.settled.is_set()

    def _leaves(self) -> bool:
        """The link is wanted for something better."""
        return self._flush.order is not None

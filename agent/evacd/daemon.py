"""Builds the parts and lets them run: one task each, and one way to stop."""

import asyncio
import gc
import signal
import socket
import sys
from asyncio import Task, TaskGroup
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from importlib.metadata import version
from typing import Any, NoReturn

import aiohttp
import structlog

from evac.errors import EvacError
from evac.wire import Accepted, Cancel, Drain, Drill, Message, Ordered, Refuse
from evacd.calm import Calm
from evacd.clock import Clock, SystemClock
from evacd.config import Config, without_secrets
from evacd.evacuation import Evacuation
from evacd.flush.proof import Proof
from evacd.lanes import Lanes
from evacd.listening import Ears, Listener
from evacd.opening import open_peer, open_targets, other_peers
from evacd.operator import Operator
from evacd.own_before import own_orders_of
from evacd.parts import (
    State,
    boot_id,
    make_board,
    make_calm,
    make_evacuation,
    make_keeper,
    open_state,
)
from evacd.peer import serving as serving_peers
from evacd.rendezvous.configured import read_secrets
from evacd.report.metrics import CONTENT_TYPE, Metrics
from evacd.report.page import Serving, serving
from evacd.report.service import Service
from evacd.report.standing_file import StandingFile
from evacd.report.systemd import READY, STOPPING, notify, status
from evacd.report.vitals import Pulse, Vitals, healthy, ready
from evacd.shown import status_of
from evacd.workloads import Happening

log = structlog.get_logger()

_TICK_SECONDS = 0.5
_LET_GO_SECONDS = 0.2
_STANDING = "standing.json"


def run(config: Config) -> int:
    """Run the daemon until it is told to stop; returns the exit code.

    Raises:
        ConfigError: A setting names what cannot be used here; nothing was started.
    """
    daemon = Daemon(config, SystemClock())
    try:
        asyncio.run(daemon.run())
    except* EvacError as group:
        for error in _leaves(group):
            print(f"evacd: {error}", file=sys.stderr)  # noqa: T201 - for whoever started it
        sys.exit(1)
    return 0


class Daemon:
    """One node's evacd."""

    def __init__(self, config: Config, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._node = config.state.node or socket.gethostname()
        self._boot = boot_id()
        self._stop = asyncio.Event()
        self._impatient = asyncio.Event()
        self._signal: signal.Signals | None = None
        self._for_ever: list[Task[Any]] = []
        self._pulse: Pulse | None = None
        self._operator = Operator()
        self._state: State | None = None
        self._evacuation: Evacuation | None = None
        self._calm: Calm | None = None
        self._listener: Listener | None = None
        self._ears: Ears | None = None
        self._served = Serving()
        self._metrics = Metrics(self._status)
        peers = other_peers(config, self._node, lambda key: self._board.peers(key))
        self._stores = open_targets(config, peers)
        self._proof = Proof(())
        self._secrets = read_secrets(config)
        self._peer = open_peer(config)
        self._kept_for_others: Callable[[], dict[str, object] | None] = lambda: None
        self._keeper = make_keeper(config, boot=self._boot)
        self._board = make_board(
            config,
            clock,
            keeper=self._keeper,
            happened=self._happened,
            status=self._status,
            admin=self._administer,
            save=self._save_own,
            written=self._written,
            node=self._node,
            boot=self._boot,
        )

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT; an order that runs is finished first.

        Raises:
            AlreadyRunning: Another daemon has the socket.
            ConfigError: A URL is none.
            StateError: A directory that it needs cannot be used.
        """
        config = self._config
        self._state = state = open_state(config, self._clock)
        journal = state.journal
        standing = StandingFile(state.directory / _STANDING, self._clock)
        try:
            async with (
                aiohttp.ClientSession(trust_env=False) as outside,
                TaskGroup() as beside,
            ):
                self._evacuation = evacuation = make_evacuation(
                    config, self._board, journal, standing, self._clock, outside, beside,
                    node=self._node, boot=self._boot, secrets=self._secrets,
                    count=self._count,
                )  # fmt: skip
                self._proof = Proof(self._evacuation.flush.rates)
                self._calm = make_calm(
                    config, self._evacuation, self._board, journal, self._clock, beside,
                    cloud=lambda: self._listener.found.cloud if self._listener else "",
                    dead=lambda: self._proof.dead,
                    node=self._node, boot=self._boot, count=self._count,
                )  # fmt: skip
                self._ears = Ears(self._evacuation.hear, self._clock, self._metrics)
                listener = Listener(
                    config, self._ears, self._clock,
                    boot=self._boot, over=self._evacuation.leaving.over,
                )  # fmt: skip
                keeping = serving_peers(
                    self._peer, self._clock,
                    leaving=lambda: evacuation.goes,
                    promised=lambda: self._board.unclaimed,
                )  # fmt: skip
                async with (
                    listener as self._listener, self._page(), keeping as self._kept_for_others,
                ):  # fmt: skip
                    await self._serve(self._evacuation, listener, self._ears)
        finally:
            standing.stop()
            journal.stop()
            self._keeper.stop()

    async def _serve(self, evacuation: Evacuation, listener: Listener, ears: Ears) -> None:
        loop = asyncio.get_running_loop()
        async with TaskGroup() as tasks:
            self._keep(tasks.create_task(self._board.serve(), name="sockets"))
            await self._board.ready.wait()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._told_to_stop, number)
            self._resume(evacuation, ears)
            self._keep(tasks.create_task(self._tick(evacuation, listener, ears), name="tick"))
            evacuation.tick()
            lanes = Lanes(
                self._stores, evacuation.flush, self._calm, self._proof,
                named=lambda: bool(self._board.peers("")), node=self._node, clock=self._clock,
            )  # fmt: skip
            learning = []
            for lane in evacuation.flush.rates:
                self._keep(tasks.create_task(evacuation.flush.drive(lane), name="flush"))
                learning.append(tasks.create_task(lanes.work(lane)))
            self._keep(tasks.create_task(listener.run(), name="sources"))
            self._keep(tasks.create_task(self._let_go(evacuation, listener), name="let go"))
            log.info(
                "daemon.started",
                node=self._node,
                stores=list(evacuation.flush.rates),
                socket=str(self._config.sockets.workload),
            )
            # All that is loaded by now stays: to look through it again and again, for what nobody needs any
            # more, would hold the loop for 40 ms each time, in the middle of a flush as well.
            gc.collect()
            gc.freeze()
            notify(f"{READY}\n{status('listening')}")
            await self._stop.wait()
            if self._signal is signal.SIGTERM:
                await self._ask_why(listener, ears)
            notify(STOPPING)
            if self._calm is not None:
                self._calm.stop()
            # A stop is no reason to drop what an order is still moving.
            await self._settled(evacuation)
            evacuation.leaving.stop()
            await listener.let_go(all_saved=False)
            for task in (*self._for_ever, *learning):
                task.cancel()
        log.info("daemon.stopped")

    def _keep(self, task: Task[Any]) -> None:
        """One that runs until the daemon stops it."""
        self._for_ever.append(task)

    def _resume(self, evacuation: Evacuation, ears: Ears) -> None:
        """What an earlier daemon did, or was asked to do, still stands; go on with it."""
        if (drain := evacuation.leaving.resume()) is not None:
            now, deadline = self._clock.monotonic(), drain.deadline
            log.warning("drain.resumed", id=drain.id, seconds_left=round(deadline - now, 3))
            ears.hear(self._operator.resume(drain.id, drain.reason, deadline=deadline, now=now))
        if self._state is not None:
            evacuation.own.resume(own_orders_of(self._state.file, boot=self._boot))

    async def _ask_why(self, listener: Listener, ears: Ears) -> None:
        """A SIGTERM alone is no notice, a restart looks the same: look for a second sign."""
        shutdown = self._config.shutdown
        if shutdown.watch == "off":
            return
        # Its D-Bus client costs an import that only a machine with a bus needs.
        try:
            from evacd.notice.shutdown import second_sign, signs, sigterm_notice
        except ModuleNotFoundError as error:
            log.warning(
                "daemon.told_to_stop",
                reason=f"SIGTERM; no sign of a shutdown can be seen: {error.name} is not installed",
                cure="pip install 'evac[agent]'",
            )
            return

        seen = await signs(
            self._clock,
            run=shutdown.run_dir,
            address=shutdown.bus_address or None,
            node_shutting_down=lambda: listener.node_shutting_down,
        )
        if (sign := second_sign(seen)) is None:
            log.info("daemon.told_to_stop", reason="SIGTERM, and no sign of a shutdown")
            return
        budget = shutdown.budget_seconds
        now = self._clock.monotonic()
        ears.infer(sigterm_notice(sign, now=now, budget_seconds=budget))

    async def _let_go(self, evacuation: Evacuation, listener: Listener) -> NoReturn:
        """What waits for this daemon, a shutdown say, waits no longer than the flush takes."""
        while True:
            await asyncio.sleep(_LET_GO_SECONDS)
            if evacuation.at_rest:
                saved = evacuation.flush.order is not None and evacuation.all_kept
                await listener.let_go(all_saved=saved)

    # --- pages ---------------------------------------------------------------------------

    @asynccontextmanager
    async def _page(self) -> AsyncIterator[None]:
        http = self._config.http
        if not http.enabled:
            yield
            return
        async with serving(
            http.address,
            http.port,
            metrics=self._metrics.text,
            content_type=CONTENT_TYPE,
            healthy=lambda: healthy(self._vitals(), now=self._clock.monotonic()),
            ready=lambda: ready(self._vitals(), deaf_limit=http.degraded_seconds),
        ) as self._served:
            yield

    def _vitals(self) -> Vitals:
        ears = self._ears
        return Vitals(
            pulse=self._pulse,
            dead=tuple(task.get_name() for task in self._for_ever if task.done()),
            deaf=ears.deaf() if ears else (),
            sockets=self._board.ready.is_set(),
            waiting=self._listener.waiting if self._listener else "still starting",
            stores={without_secrets(lane): why for lane, why in self._proof.missing.items()},
            state=self._state.wrong if self._state else "",
        )

    # --- loops ---------------------------------------------------------------------------

    async def _tick(self, evacuation: Evacuation, listener: Listener, ears: Ears) -> NoReturn:
        service = Service()
        pause = service.pause(_TICK_SECONDS)
        while True:
            due = self._clock.monotonic() + pause
            await asyncio.sleep(pause)
            now = self._clock.monotonic()
            self._pulse = Pulse(now, late=max(0.0, now - due))
            evacuation.tick()
            if self._calm is not None:
                self._calm.tick()
            leaving = evacuation.leaving
            if leaving.overdue or (leaving.holds and listener.complete and ears.calm):
                leaving.let_go()
            service.beat(
                dead=[task.get_name() for task in self._for_ever if task.done()],
                stuck=listener.stuck(),
                stopping=self._stop.is_set(),
                busy=not evacuation.at_rest,
            )

    def _told_to_stop(self, number: int) -> None:
        if self._stop.is_set():
            log.warning("daemon.killed", signal=signal.Signals(number).name)
            self._impatient.set()
        self._signal = self._signal or signal.Signals(number)
        self._stop.set()

    async def _settled(self, evacuation: Evacuation) -> None:
        """Until an order has run its course, or somebody asks to stop a second time."""
        async with TaskGroup() as tasks:
            waits = [
                tasks.create_task(evacuation.settle()),
                tasks.create_task(self._impatient.wait()),
            ]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for task in waits:
                task.cancel()

    def _count(self, name: str, data: Mapping[str, Any]) -> None:
        self._metrics.happened(name, data)
        if self._proof.happened(name, data):
            log.warning("lane.takes_nothing", store=data["store"], reason=data["reason"])

    # --- what the board asks -------------------------------------------------------------

    def _happened(self, happening: Happening) -> None:
        if self._evacuation is not None:
            self._evacuation.happened(happening)
        if self._calm is not None:
            self._calm.wake()

    def _administer(self, message: Drain | Cancel | Drill) -> Message:
        if self._ears is None or self._evacuation is None or self._calm is None:
            return Refuse("the daemon is still starting")
        leaving = self._evacuation.leaving
        if isinstance(message, Drill):
            return self._calm.drill(message)
        if isinstance(message, Drain):
            drain = self._operator.drain(message, now=self._clock.monotonic())
            self._ears.hear(drain)
            leaving.drained(drain.notice)
            return Accepted()
        if (cancelled := self._operator.cancel(message)) is None:
            return Refuse("no drain by an operator is running")
        leaving.undrained()
        self._ears.hear(cancelled)
        return Accepted()

    def _save_own(self, unit: str, seconds: float, uid: int) -> Message:
        if self._evacuation is None:
            return Refuse("the daemon is still starting")
        order = self._evacuation.own.ask(unit, seconds, uid=uid)
        return Refuse(order) if isinstance(order, str) else Ordered(order.id, unit)

    async def _written(self) -> None:
        if self._evacuation is not None:
            await self._evacuation.written()

    def _status(self) -> Mapping[str, object]:
        status: dict[str, Any] = {
            "node": self._node,
            "boot": self._boot,
            "version": version("evac"),
            "targets": list(self._config.store.targets),
            "journal": str(self._state.file) if self._state else "",
            "state_wrong": self._state.wrong if self._state else "",
            "http": asdict(self._served),
        }
        if self._evacuation is not None:
            status |= status_of(self._evacuation, now=self._clock.monotonic())
        if self._calm is not None:
            status |= self._calm.shown()
        if self._listener is not None and self._ears is not None:
            status["cloud"] = asdict(self._listener.found)
            status["sources"] = self._ears.shown()
        if (peer := self._kept_for_others()) is not None:
            status["peer"] = peer
        return status | self._board.snapshot()


def _leaves(group: BaseExceptionGroup[EvacError]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error

"""The one place that knows every implementation: builds the parts and lets them run."""

import asyncio
import signal
import socket
import sys
from asyncio import Task, TaskGroup
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from importlib.metadata import version
from itertools import count
from pathlib import Path
from secrets import token_hex
from typing import Any, NoReturn

import aiohttp
import psutil
import structlog

from evac.errors import EvacError, StoreError
from evac.store import Owner, Store, open_store
from evac.wire import Accepted, Cancel, Drain, Message, Refuse
from evacd.clock import Clock, SystemClock
from evacd.config import Config
from evacd.cordon import Cordon
from evacd.cordon.command import CommandCordon
from evacd.errors import StateError
from evacd.evacuation import Evacuation, status_of
from evacd.facts import Cancelled, Confidence, Notice, Noticed
from evacd.flush.measure import measure
from evacd.flush.save import Saver
from evacd.flush.tidy import tidy
from evacd.notice import Source
from evacd.notice.gcp import GcpSource, gcp_client
from evacd.notice.metadata import open_session
from evacd.order import Machine
from evacd.rendezvous import Announcer
from evacd.rendezvous.webhook import WebhookAnnouncer
from evacd.report.journal import Journal
from evacd.report.systemd import READY, STOPPING, notify, status
from evacd.workloads import Board, BoardSettings, Happening

log = structlog.get_logger()

# A manifest, its fsync and its directory's: 5-30 ms on a busy local disk.
_COMMIT_SECONDS = 0.05
_TICK_SECONDS = 0.5
_OPERATOR = "operator"


def run(config: Config) -> int:
    """Run the daemon until it is told to stop; returns the exit code."""
    try:
        asyncio.run(Daemon(config, SystemClock()).run())
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
        self._boot = _boot_id()
        self._stop = asyncio.Event()
        self._impatient = asyncio.Event()
        self._drains = count(1)
        self._drain: str | None = None
        self._evacuation: Evacuation | None = None
        self._board = self._make_board()

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT; an order that runs is finished first.

        Raises:
            AlreadyRunning: Another daemon has the socket.
            StateError: A directory that it needs cannot be used.
        """
        directory = _make_state_directory(self._config.state.dir)
        journal = Journal(directory / "incidents.sqlite", self._clock)
        try:
            async with (
                open_session() as metadata,
                aiohttp.ClientSession(trust_env=False) as outside,
                TaskGroup() as beside,
            ):
                self._evacuation = self._make_evacuation(journal, outside, beside)
                await self._serve(self._evacuation, self._sources(metadata))
        finally:
            journal.stop()

    async def _serve(self, evacuation: Evacuation, sources: tuple[Source, ...]) -> None:
        loop = asyncio.get_running_loop()
        async with TaskGroup() as tasks:
            serving = tasks.create_task(self._board.serve())
            await self._board.ready.wait()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._told_to_stop, number)
            for_ever: list[Task[Any]] = [serving, tasks.create_task(self._tick(evacuation))]
            evacuation.tick()
            for lane in evacuation.flush.rates:
                for_ever.append(tasks.create_task(evacuation.flush.drive(lane)))
                for_ever.append(tasks.create_task(self._learn(evacuation, lane)))
            for source in sources:
                tell = partial(evacuation.hear, source.name)
                for_ever.append(tasks.create_task(source.watch(tell)))
            log.info(
                "daemon.started",
                node=self._node,
                stores=list(evacuation.flush.rates),
                sources=[source.name for source in sources],
                socket=str(self._config.sockets.workload),
            )
            notify(f"{READY}\n{status('listening')}")
            await self._stop.wait()
            notify(STOPPING)
            # A stop is no reason to drop what an order is still moving.
            await self._settled(evacuation)
            for task in for_ever:
                task.cancel()
        log.info("daemon.stopped")

    # --- parts ---------------------------------------------------------------------------

    def _make_board(self) -> Board:
        config = self._config
        settings = BoardSettings(
            workload_path=config.sockets.workload,
            admin_path=config.sockets.admin,
            workload_mode=config.sockets.workload_mode,
            admin_group=config.sockets.admin_group,
            memory_bytes=config.memory.budget.resolve(psutil.virtual_memory().available),
            slots=config.memory.slots,
            orphan_seconds=config.memory.orphan_seconds,
            max_priority=config.policy.max_priority,
            allow_users=config.policy.allow_users,
            node=self._node,
            boot=self._boot,
            version=version("evac"),
            stores=config.store.targets,
            lane=config.store.targets[0],
        )
        return Board(
            settings,
            clock=self._clock,
            happened=self._happened,
            status=self._status,
            admin=self._administer,
        )

    def _make_evacuation(
        self, journal: Journal, outside: aiohttp.ClientSession, beside: TaskGroup
    ) -> Evacuation:
        config = self._config
        numbers = count(1)
        prefix = token_hex(4)
        return Evacuation(
            machine=Machine(lambda: f"{prefix}-{next(numbers)}"),
            board=self._board,
            saver=Saver(config.store.targets, cache(_open_store), node=self._node),
            keep=config.store.keep,
            lanes=config.store.targets[:1],
            assumed=config.plan.assumed_bytes_per_second,
            reserve=config.plan.commit_reserve_seconds,
            commit_seconds=_COMMIT_SECONDS,
            cordons=self._cordons(),
            announcers=self._announcers(outside),
            journal=journal,
            clock=self._clock,
            node=self._node,
            boot=self._boot,
            beside=beside,
        )

    def _sources(self, session: aiohttp.ClientSession) -> tuple[Source, ...]:
        notice = self._config.notice
        if notice.cloud == "none":
            return ()
        client = gcp_client(session, notice.metadata_url, where="notice.metadata_url")
        return (
            GcpSource(
                client, self._clock, window_seconds=notice.gcp_window_seconds, boot=self._boot
            ),
        )

    def _cordons(self) -> tuple[Cordon, ...]:
        cordon = self._config.cordon
        if not cordon.command:
            return ()
        return (
            CommandCordon(
                cordon.command,
                cordon.undo_command,
                timeout_seconds=cordon.timeout_seconds,
                node=self._node,
            ),
        )

    def _announcers(self, session: aiohttp.ClientSession) -> tuple[Announcer, ...]:
        departure = self._config.departure
        if not departure.webhook_url:
            return ()
        secret = departure.secret_file.read_bytes().strip() if departure.secret_file else None
        return (
            WebhookAnnouncer(
                departure.webhook_url,
                session,
                timeout_seconds=departure.timeout_seconds,
                clock=self._clock,
                secret=secret,
            ),
        )

    # --- loops ---------------------------------------------------------------------------

    async def _tick(self, evacuation: Evacuation) -> NoReturn:
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            evacuation.tick()

    async def _learn(self, evacuation: Evacuation, lane: str) -> None:
        """Learn the lane's rate; before that, end what a killed predecessor left there."""
        store = open_store(lane)
        tidied = await tidy(store, node=self._node)
        if tidied.removed or tidied.finished or tidied.reason:
            log.info(
                "store.tidied",
                store=lane,
                removed=tidied.removed,
                finished=[f"{prefix} {generation}" for prefix, generation in tidied.finished],
                reason=tidied.reason,
            )
        found = await measure(
            store,
            clock=self._clock,
            node=self._node,
            stop=lambda: evacuation.flush.order is not None,
        )
        if found is None:
            return
        if isinstance(found, StoreError):
            log.warning("lane.unmeasured", store=lane, reason=found.reason)
            return
        nbytes, seconds = found
        rate = evacuation.flush.rates[lane].observed(nbytes, seconds)
        evacuation.flush.rates[lane] = rate
        log.info("lane.measured", store=lane, bytes_per_second=round(rate.bytes_per_second))

    def _told_to_stop(self, number: int) -> None:
        if self._stop.is_set():
            log.warning("daemon.killed", signal=signal.Signals(number).name)
            self._impatient.set()
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

    # --- what the board asks -------------------------------------------------------------

    def _happened(self, happening: Happening) -> None:
        if self._evacuation is not None:
            self._evacuation.happened(happening)

    def _administer(self, message: Drain | Cancel) -> Message:
        if self._evacuation is None:
            return Refuse("the daemon is still starting")
        if isinstance(message, Cancel):
            if self._drain is None:
                return Refuse("no drain by an operator is running")
            drain, self._drain = self._drain, None
            self._evacuation.hear(_OPERATOR, Cancelled(_OPERATOR, drain, "cancelled by operator"))
            return Accepted()
        if self._drain is None:
            self._drain = f"{_OPERATOR}:{next(self._drains)}"
        now = self._clock.monotonic()
        notice = Notice(
            source=_OPERATOR,
            kind="drain",
            id=self._drain,
            confidence=Confidence.CERTAIN,
            deadline=now + message.seconds,
            seen=now,
            detail=message.reason,
        )
        self._evacuation.hear(_OPERATOR, Noticed(notice))
        return Accepted()

    def _status(self) -> Mapping[str, object]:
        status: dict[str, Any] = {
            "node": self._node,
            "boot": self._boot,
            "version": version("evac"),
            "targets": list(self._config.store.targets),
        }
        if self._evacuation is not None:
            status |= status_of(self._evacuation, now=self._clock.monotonic())
        return status | self._board.snapshot()


@contextmanager
def _refusal(path: Path) -> Generator[None, None, None]:
    try:
        yield
    except OSError as error:
        raise StateError(str(path), error.strerror or type(error).__name__) from error


def _make_state_directory(path: Path) -> Path:
    with _refusal(path):
        path.mkdir(mode=0o755, parents=True, exist_ok=True)
    return path


def _boot_id() -> str:
    """The kernel's own name for this boot; a node that reboots is another node."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _open_store(url: str, owner: Owner) -> Store:
    return open_store(url, owner=owner)


def _leaves(group: BaseExceptionGroup[EvacError]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error

"""The one place that knows every implementation of a seam: from settings to the parts.

Notice sources are made in `evacd.listening`, when it is known which of them apply.
"""

import os
from asyncio import TaskGroup
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import count as numbers
from pathlib import Path
from secrets import token_hex
from typing import Any

import aiohttp
import psutil
import structlog

from evac.generation import Generation
from evac.store import Owner, Store, is_durable, open_store
from evac.wire import Cancel, Drain, Drill, Message
from evacd.calm import Calm, tell
from evacd.clock import Clock
from evacd.config import Config, UserPolicy
from evacd.cordon import Cordon
from evacd.cordon.command import CommandCordon
from evacd.cordon.configured import kubernetes
from evacd.drill import Drills
from evacd.errors import StateError
from evacd.evacuation import Evacuation
from evacd.flush.save import Saver
from evacd.leaving import Leaving
from evacd.metering import metered
from evacd.opening import open_target, other_peers
from evacd.order import Machine
from evacd.quiet import Seen, Trickle
from evacd.readiness import Readiness
from evacd.rendezvous.configured import Secrets, announcers
from evacd.rendezvous.jobstore import JobStoreAnnouncer
from evacd.report.fdstore import fd_store, given
from evacd.report.journal import Journal
from evacd.report.standing_file import StandingFile
from evacd.workloads import Board, BoardSettings, Happening, Keeper, UserLimits, prepare_in
from evacd.workloads.memory import lies_in_memory

log = structlog.get_logger()

_SLOTS = "slots.table"
_JOURNAL = "incidents.sqlite"
# A manifest, its fsync and its directory's: 5-30 ms on a busy local disk.
_COMMIT_SECONDS = 0.05
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html:
# "a warning two minutes before"; read 2026-11.
_AWS_SPOT_SECONDS = 120.0
# Where no cloud is heard: the shortest that two of three clouds give.
_SOME_SECONDS = 30.0


def make_board(
    config: Config,
    clock: Clock,
    *,
    happened: Callable[[Happening], None],
    status: Callable[[], Mapping[str, object]],
    admin: Callable[[Drain | Cancel | Drill], Message],
    save: Callable[[str, float, int], Message],
    written: Callable[[], Awaitable[None]],
    keeper: Keeper,
    node: str,
    boot: str,
) -> Board:
    """Who is on board, and the sockets by which they come."""
    policy = config.policy
    # A restart makes the budget no smaller: what is kept over it is taken, and ours.
    available = psutil.virtual_memory().available + keeper.nbytes
    budget = config.memory.budget.resolve(available)
    settings = BoardSettings(
        workload_path=config.sockets.workload,
        admin_path=config.sockets.admin,
        workload_mode=config.sockets.workload_mode,
        admin_group=config.sockets.admin_group,
        memory_bytes=budget,
        user_bytes=policy.max_bytes_per_user.resolve(budget),
        slots=config.memory.slots,
        orphan_seconds=config.memory.orphan_seconds,
        spill=config.memory.spill,
        max_priority=policy.max_priority,
        allow_users=policy.allow_users,
        users={user.name: _limits(user, budget) for user in policy.users},
        pods=policy.pods_dir,
        allow_namespaces=policy.allow_namespaces,
        namespaces={
            each.name: UserLimits(each.max_priority, prefix=each.prefix)
            for each in policy.namespaces
        },
        node=node,
        boot=boot,
        version=version("evac"),
        stores=config.store.targets,
    )
    return Board(
        settings,
        clock=clock,
        happened=happened,
        status=status,
        admin=admin,
        save=save,
        written=written,
        prepare=prepare_in(config.store.targets, _open_store),
        keeper=keeper,
    )


def make_keeper(config: Config, *, boot: str) -> Keeper:
    """What a restart does not lose. To be made before anything that opens files."""
    kept = given()
    # It is of this boot, and written on the loop: a disk that hangs, or is frozen for a snapshot, would hold up
    # everything. So it lies in memory, as the sockets do; where they do not, or were used once, see `Keeper`.
    state, run = (one / _SLOTS for one in (config.state.dir, config.sockets.workload.parent))
    memory = lies_in_memory(run.parent)
    paths = (run, state) if run.exists() or memory else (state, run)
    former = state if memory and not run.exists() else None
    keeper = Keeper(*paths, boot=boot, fds=fd_store(), given=kept, former=former)
    keeper.open()
    return keeper


def _limits(user: UserPolicy, budget: int) -> UserLimits:
    nbytes = user.max_bytes.resolve(budget) if user.max_bytes else None
    return UserLimits(user.max_priority, nbytes, user.prefix)


def make_evacuation(
    config: Config,
    board: Board,
    journal: Journal,
    standing: StandingFile,
    clock: Clock,
    outside: aiohttp.ClientSession,
    beside: TaskGroup,
    *,
    node: str,
    boot: str,
    secrets: Secrets,
    count: Callable[[str, Mapping[str, Any]], None],
) -> Evacuation:
    """From the order to the report; see `Evacuation` for the arguments.

    Args:
        standing: Keeps over a restart what the leaving did.
        secrets: What departures go with.
    """
    number = numbers(1)
    prefix = token_hex(4)
    told = tuple(
        announcers(
            config,
            board.rendezvous,
            outside,
            clock,
            secrets,
            lambda one: evacuation.agreement.heard(one),
        )
    )
    leaving = Leaving(
        cordons=_cordons(config, outside, clock, node, boot),
        announcers=told,
        journal=journal,
        file=standing,
        clock=clock,
        node=node,
        boot=boot,
        beside=beside,
        count=count,
    )
    evacuation = Evacuation(
        machine=Machine(
            lambda: leaving.order_before or f"{prefix}-{next(number)}",
            advise_again=config.notice.advise_again_seconds,
        ),
        board=board,
        saver=Saver(
            metered(
                partial(open_target, peers=other_peers(config, node, board.peers)), count, clock
            ),
            node=node,
        ),
        keep=config.store.keep,
        lanes=config.store.targets,
        assumed=config.plan.assumed_bytes_per_second,
        reserve=config.plan.commit_reserve_seconds,
        commit_seconds=_COMMIT_SECONDS,
        leaving=leaving,
        journal=journal,
        clock=clock,
        node=node,
        boot=boot,
        beside=beside,
        count=count,
        new_id=lambda: f"{prefix}-w{next(number)}",
        looks=[each.look for each in told if isinstance(each, JobStoreAnnouncer)],
    )
    return evacuation


def make_calm(
    config: Config,
    evacuation: Evacuation,
    board: Board,
    journal: Journal,
    clock: Clock,
    beside: TaskGroup,
    *,
    cloud: Callable[[], str],
    dead: Callable[[], Mapping[str, str]],
    node: str,
    boot: str,
    count: Callable[[str, Mapping[str, Any]], None],
) -> Calm:
    """What goes on while no order runs.

    Args:
        dead: Lanes of which it is known that they take nothing, and why.
        cloud: Which one this is, as far as is known; "" for none.
        count: Told each event, by its name.
    """
    flush, reserve = evacuation.flush, config.plan.commit_reserve_seconds

    def window() -> float:
        return window_of(config, cloud())

    def told(name: str, data: Mapping[str, Any]) -> None:
        if name == "trickle.finished" and data["durable"]:
            generation = Generation(**data["generation"])
            flush.known.note(data["unit"], generation, data["store"], data["generation_nbytes"])
        count(name, data)
        tell(name, data)

    readiness = Readiness(evacuation, clock, window=window, reserve=reserve, dead=dead)
    drills = Drills(
        evacuation.way,
        flush,
        journal,
        clock,
        risk=readiness.risk,
        window=window,
        reserve=reserve,
        node=node,
        boot=boot,
        prefix=token_hex(4),
        beside=beside,
        over=lambda: None,
    )

    def learned(lane: str, seen: Seen) -> None:
        rate = flush.rates[lane]
        tell = rate.at_least if seen.least else rate.observed
        flush.rates[lane] = tell(seen.nbytes, seen.seconds)

    opened = metered(_open_store, count, clock)
    durable = [lane for lane in flush.rates if is_durable(lane)]
    trickles = {
        lane: Trickle(
            durable,
            board,
            evacuation.way,
            open_store=opened,
            saver=evacuation.saver.through,
            cap=partial(_cap, config, evacuation),
            learned=learned,
            interval=config.quiet.min_interval_seconds,
            keep=config.store.keep,
            quiet=lambda: flush.order is None and flush.settled.is_set() and not drills.running,
            clock=clock,
            told=told,
        )
        for lane in durable[:1]
        if config.quiet.enabled
    }
    return Calm(readiness, drills, trickles)


def window_of(config: Config, cloud: str) -> float:
    """Seconds from a notice to the end of this machine: as set, or as its cloud gives."""
    if config.plan.window_seconds:
        return config.plan.window_seconds
    match cloud:
        case "aws":
            return _AWS_SPOT_SECONDS
        case "gcp":
            return config.gcp.window_seconds
        case "azure":
            return config.azure.preempt_assume_seconds
        case _:
            return _SOME_SECONDS


def _cap(config: Config, evacuation: Evacuation, lane: str) -> float:
    rate = evacuation.flush.rates[lane].bytes_per_second
    return max(float(config.quiet.bytes_per_second.resolve(int(rate))), 1.0)


def _cordons(
    config: Config, session: aiohttp.ClientSession, clock: Clock, node: str, boot: str
) -> tuple[Cordon, ...]:
    cordon, found = config.cordon, list[Cordon]()
    if (of_node := kubernetes(config, session, clock, boot=boot, environ=os.environ)) is not None:
        # What closes goes before what only tells of it.
        found += [of_node.cordon, of_node.telling]
    if cordon.command:
        found.append(
            CommandCordon(
                cordon.command,
                cordon.undo_command,
                timeout_seconds=cordon.timeout_seconds,
                node=node,
            )
        )
    return tuple(found)


@dataclass(frozen=True)
class State:
    """Where things are written down.

    Attributes:
        wrong: Why that is not the directory that was set; "" where it is.
    """

    directory: Path
    journal: Journal
    wrong: str = ""

    @property
    def file(self) -> Path:
        """The journal's."""
        return self.directory / _JOURNAL


def open_state(config: Config, clock: Clock) -> State:
    """The state directory, or the sockets' where it is full or read-only: saving goes before telling.

    Raises:
        StateError: Neither can be used.
    """
    state, run = config.state.dir, config.sockets.workload.parent
    try:
        return State(state, _journal_in(state, clock))
    except StateError as error:
        log.error("state.unusable", reason=str(error), instead=str(run))
        return State(run, _journal_in(run, clock), str(error))


def _journal_in(directory: Path, clock: Clock) -> Journal:
    with _refusal(directory):
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    return Journal(directory / _JOURNAL, clock)


def boot_id() -> str:
    """The kernel's own name for this boot; a node that reboots is another node."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _open_store(url: str, owner: Owner) -> Store:
    return open_store(url, owner=owner)


@contextmanager
def _refusal(path: Path) -> Generator[None, None, None]:
    try:
        yield
    except OSError as error:
        raise StateError(str(path), error.strerror or type(error).__name__) from error

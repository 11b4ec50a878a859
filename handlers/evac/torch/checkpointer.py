"""The checkpointer of a torch training loop: stage cheaply, survive the machine, resume."""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType

import torch

from evac._clock import monotonic
from evac._settings import read_settings
from evac.client import Client, connect
from evac.store import open_store
from evac.torch.choice import choice
from evac.torch.complaints import Complaints
from evac.torch.daemon_slots import DaemonSlots
from evac.torch.identity import Identity, claim
from evac.torch.own_slots import OwnSlots
from evac.torch.rank_state import RankObjects, Stateful
from evac.torch.restore import Restore
from evac.torch.slots import Slots
from evac.torch.stager import Stager
from evac.torch.state import TrainingState
from evac.torch.world import World

log = logging.getLogger("evac")

# The daemon answers within milliseconds; without one, this is paid once.
_CONNECT_SECONDS = 1.0
# The other ranks may hang in a collective by then, and the launcher waits for this one.
_CRASH_SECONDS = 10.0


@dataclass(frozen=True)
class Stats:
    """What the checkpointer did so far.

    Attributes:
        staged: Generations staged.
        skipped: Due stages that staged nothing: no slot free, a state that changed its shape...
        failed: Stages and, without a daemon, commits that an error ended.
        last_stall_seconds: How long the last stage kept training waiting.
        last_reason: Why the last skipped or failed one was.
    """

    staged: int = 0
    skipped: int = 0
    failed: int = 0
    last_stall_seconds: float = 0.0
    last_reason: str = ""


class Checkpointer:
    """Stages model, optimizer, LR schedule, data loader, step and random numbers.

    Made on every rank alike, after `init_process_group` where there is one. ::

        with evac.torch.Checkpointer(model=model, optimizer=optimizer, loader=loader) as saver:
            step = saver.restore() or 0
            for step in range(step + 1, steps + 1):
                train_one_step()
                saver.step(step)

    With a daemon, what is staged outlives this process. Without one, it is committed to
    *store* from a thread of this process. The optimizer's state must exist before the first
    stage, so stage after a step, not before.

    Args:
        extra: More objects with ``state_dict`` and ``load_state_dict``: a GradScaler, a sampler...
        every: `step` stages each so many steps.
        job: Its name, which a restart must repeat; see `evac.connect`.
        priority: Higher is saved first; see `evac.connect`.
        store: URL to commit to and restore from where no daemon is; else ``EVAC_STORE``.
        client: To use in place of an own connection; it leaves when this closes.
        slots: How many generations of this rank to keep in memory.

    Raises:
        ValueError: An argument or a variable is wrong.
        ConfigError: The model is wrapped in a way that this version does not know.
    """

    def __init__(
        self,
        *,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: Stateful | None = None,
        loader: Stateful | None = None,
        extra: Mapping[str, Stateful] | None = None,
        every: int = 1,
        job: str | None = None,
        priority: int | None = None,
        store: str | None = None,
        client: Client | None = None,
        slots: int = 3,
    ) -> None:
        if every < 1:
            raise ValueError(f"every: expected at least 1, got {every}")
        self._every = every
        self._slot_count = slots
        self._store = store or os.environ.get("EVAC_STORE") or None
        if self._store:
            open_store(self._store)  # a wrong URL is told now, not at the first stage
        self._world = World()
        world = self._world
        settings = read_settings(
            os.environ, job=job, rank=world.rank, world=world.size, priority=priority
        )
        register = settings.register
        self._identity = Identity(register.job, register.run, world.rank, world.size)
        self._state = TrainingState(model, optimizer)
        self._objects = RankObjects(scheduler, loader, dict(extra or {}))
        self._client = client or connect(job, rank=world.rank, world=world.size, priority=priority)
        # Where nobody listens, waiting would only hold up the start.
        self._waited = client is None and not os.path.exists(settings.socket)
        self._complaints = Complaints()
        self._slots: Slots | None = None
        self._own: OwnSlots | None = None
        self._above = 0
        self._stager = Stager(world, self._state, self._objects, self._identity, self._claim)
        self._stats = Stats()
        self._closed = False
        self._warn_of_missing()

    @property
    def stats(self) -> Stats:
        """A snapshot."""
        now = self._stats
        return Stats(
            now.staged,
            now.skipped,
            now.failed + self._complaints.failed,
            now.last_stall_seconds,
            now.last_reason,
        )

    def step(self, n: int) -> bool:
        """Stage step *n* if it is due: call at the end of every step, on every rank.

        Returns:
            Whether it was staged. Never raises; what went wrong is logged once and counted.
        """
        return n % self._every == 0 and self.stage(n)

    def stage(self, n: int) -> bool:
        """Stage step *n* now; see `step`."""
        started = monotonic()
        try:
            skipped = self._stager.stage(self._where(), n)
        except Exception as error:  # noqa: BLE001 - training goes on whatever this is; it is logged with its trace
            self._complaints.fail(
                f"stage:{type(error).__name__}", f"step {n} is not staged: {error!r}"
            )
            self._note(n, started, failed=f"{error!r}")
            return False
        if skipped is None:
            self._note(n, started)
            return True
        self._complaints.warn(skipped.kind, f"step {n} is not staged: {skipped.reason}")
        self._note(n, started, skipped=skipped.reason)
        return False

    def restore(self) -> int | None:
        """Go back to the newest whole generation; call before the first step, on every rank.

        Returns:
            Its step; None where this job has never saved anything.

        Raises:
            GenerationError: There was a whole generation and none is usable now, or files of
                somebody else lie in its place: starting over would bury them. Or the
                generation does not fit this model.
        """
        self._await_daemon()
        connected = self._client.connected
        stores = self._client.stores if connected else ()
        if not stores and self._store:
            stores = (self._store,)
        prefix = self._client.prefix if connected else self._identity.own_prefix
        restored = Restore(self._world, self._state, self._objects, stores, prefix).run()
        if restored is None:
            return None
        self._above = restored.incarnation
        return restored.step

    def close(self) -> None:
        """Training has finished: commit what is under way, then free everything on the node."""
        if self._closed:
            return
        self._closed = True
        if self._own is not None:
            self._own.close()
        self._client.leave()

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        elif not self._closed:
            # A crash is not the end of the job: what was staged stays with the daemon.
            self._closed = True
            if self._own is not None:
                self._own.close(_CRASH_SECONDS)
            self._client.close()

    def _where(self) -> Slots | None:
        self._await_daemon()
        if isinstance(self._slots, DaemonSlots):
            return self._slots
        if self._client.connected:
            if self._own is not None:
                log.info("a daemon has appeared: staging with it from now on")
                self._own.retire()
            self._slots = DaemonSlots(self._client, slots=self._slot_count)
        elif self._slots is None and self._store:
            self._slots = self._own = OwnSlots(
                self._store,
                self._identity.own_prefix,
                self._identity,
                lambda incarnation: choice(self._world, incarnation),
                self._complaints,
                slots=self._slot_count,
            )
        return self._slots

    def _await_daemon(self) -> None:
        if not self._waited:
            self._waited = True
            self._client.wait_connected(_CONNECT_SECONDS)

    def _claim(self, slots: Slots) -> int:
        return claim(slots.stores, slots.prefix, self._identity, above=self._above)

    def _note(self, n: int, started: float, *, skipped: str = "", failed: str = "") -> None:
        before = self._stats
        self._stats = Stats(
            before.staged + (not skipped and not failed),
            before.skipped + bool(skipped),
            0,
            monotonic() - started,
            f"step {n}: {skipped or failed}" if skipped or failed else before.last_reason,
        )

    def _warn_of_missing(self) -> None:
        missing = []
        if self._objects.loader is None:
            missing.append("no data-loader state: a resume would replay data")
        if self._objects.scheduler is None:
            missing.append("no LR schedule")
        if missing and self._world.rank == 0:
            log.warning("checkpoints hold %s", "; ".join(missing))

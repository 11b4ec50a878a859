"""The checkpointer of a torch training loop: stage cheaply, survive the machine, resume."""

import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any

import torch

from evac._clock import Monotonic, monotonic
from evac._settings import Settings, read_settings
from evac.client import Client
from evac.errors import GenerationError
from evac.store import open_store
from evac.torch import generators as own_generators
from evac.torch import loader_start, rank_state, worker_state
from evac.torch.accumulation import Accumulation
from evac.torch.choice import choice
from evac.torch.complaints import Complaints
from evac.torch.freshness import Freshness
from evac.torch.identity import Identity, claim
from evac.torch.introduction import Introduction
from evac.torch.lacking import ScalerWatch
from evac.torch.local_memory import adopted
from evac.torch.optimizers import Optimizers, split
from evac.torch.origins import Origins
from evac.torch.own_slots import CRASH_SECONDS, OwnSlots
from evac.torch.pace import Pace
from evac.torch.progress import Progress
from evac.torch.rank_state import RankObjects, Stateful
from evac.torch.restore import Restore
from evac.torch.rhythm import Due, Rhythm
from evac.torch.slots import Slots
from evac.torch.stager import HALF, QUIET, Stager
from evac.torch.state import TrainingState
from evac.torch.stats import Stats, after, with_pace
from evac.torch.switch import Switch
from evac.torch.world import World

log = logging.getLogger("evac")

# The daemon answers within milliseconds; without one, this is paid once.
_CONNECT_SECONDS = 1.0


class Checkpointer:
    """Stages model, optimizer, LR schedule, data loader, step and random numbers.

    Made on every rank alike, after `init_process_group` where there is one. ::

        with evac.torch.Checkpointer(model=model, optimizer=optimizer, loader=loader) as saver:
            step = saver.restore() or 0
            for step in range(step + 1, steps + 1):
                train_one_step()
                saver.step(step)

    With a daemon, what is staged outlives this process, and the daemon saves it when the node
    goes or the process ends, however it ends. Without one, it is committed to *store* from a
    thread of this process. Who has both goes over to the store when the daemon stays away, and
    back when it is back; a generation becomes whole only where all ranks do the same, so that
    while a job's nodes differ nothing new is saved. The optimizer's state must exist before the first
    stage, so stage after a step, not before.

    Args:
        loader: torchdata's `StatefulDataLoader` goes on to the bit as it stands, and torch's own as
            `evac.torch.Resumable`: with what their workers draw, and what a start after a restore
            draws is given back. A loader of another kind is to draw nothing when it starts; else a
            warning names it. In a world of another size it is dealt anew where its sampler is a
            `DistributedSampler`, and else starts at its epoch's begin; a warning says how many
            samples come again.
        elastic_loader: Its state is the place of the job, and not of a rank: loaded as it is in a world
            of any size, rank 0's where a rank had none.
        extra: More objects with ``state_dict`` and ``load_state_dict``: a GradScaler, another loader...
        generators: Random-number generators of one's own (numpy's, torch's) by name; the global
            ones of Python, numpy, torch and each CUDA device are kept anyway.
        every: `step` stages each so many steps; by default as often as costs least, from what is
            measured (`evac.interval`).
        stall_share: Most of the time that stages may keep training waiting, a part of 1.
        reclaim_every: Mean seconds between two reclaims of any of the job's machines; else the
            job's own history tells, which starts at 6 h.
        restart_seconds: From a reclaim until training goes on; else the history tells.
        job: Its name, which a restart must repeat; see `evac.connect`.
        priority: Higher is saved first; see `evac.connect`.
        store: URL to commit to and restore from where no daemon is; else ``EVAC_STORE``.
        client: To use in place of an own connection; it is closed when this closes.
        slots: How many generations of this rank to keep in memory.
        patience: Seconds to wait for a daemon that was lost before *store* is used instead.
        clock: Monotonic seconds; for tests.

    Raises:
        ValueError: An argument or a variable is wrong.
        ConfigError: The model is wrapped in a way that this version does not know.
    """

    def __init__(
        self,
        *,
        model: torch.nn.Module,
        optimizer: Optimizers,
        scheduler: Stateful | None = None,
        loader: Stateful | None = None,
        extra: Mapping[str, Stateful] | None = None,
        generators: Mapping[str, Any] | None = None,
        elastic_loader: bool = False,
        every: int | None = None,
        stall_share: float = 0.01,
        reclaim_every: float | None = None,
        restart_seconds: float | None = None,
        job: str | None = None,
        priority: int | None = None,
        store: str | None = None,
        client: Client | None = None,
        slots: int = 3,
        patience: float = 30.0,
        clock: Monotonic = monotonic,
    ) -> None:
        if not patience >= 0:
            raise ValueError(f"patience: expected seconds, 0 or more, got {patience}")
        self._store = store or os.environ.get("EVAC_STORE") or None
        if self._store:
            open_store(self._store)  # a wrong URL is told now, not at the first stage
        self._world = world = World()
        settings = read_settings(
            os.environ, job=job, rank=world.rank, world=world.size, priority=priority
        )
        register = settings.register
        self._identity = Identity(register.job, register.run, world.rank, world.size)
        first, others, extra = split(optimizer, extra)
        self._state = TrainingState(model, first, others)
        self._pace = pace = Pace(
            every=every,
            share=stall_share,
            between=reclaim_every,
            restart=restart_seconds,
            rank=world.rank,
        )
        own_generators.check(generators or {})
        given = {"scheduler": scheduler, "loader": loader, **extra}
        rank_state.check({key: one for key, one in given.items() if one is not None})
        worker_state.keep(loader, *extra.values())
        self._progress = Progress(loader)
        self._objects = RankObjects(
            scheduler,
            loader,
            extra,
            pace,
            dict(generators or {}),
            elastic_loader,
            model,
            progress=self._progress,
        )
        self._scaler = ScalerWatch(first, self._objects)
        self._accumulation = Accumulation(model, first, *others)
        unfinished = self._accumulation.unfinished
        self._rhythm = Rhythm(pace, world, unfinished, job=register.job)
        self._client = client or _connect(settings)
        # Where nobody listens, waiting would only hold up the start.
        self._waited = client is None and not os.path.exists(settings.socket)
        self._complaints = Complaints()
        self._slots = slots
        make_own = self._make_own if self._store else None
        self._switch = Switch(
            self._client, make_own, pace.interval, slots=slots, patience=patience, clock=clock
        )
        self._above = 0
        self._freshness = Freshness(first)
        self._stager = Stager(
            world,
            self._state,
            self._objects,
            self._identity,
            self._claim,
            self._freshness,
            unfinished,
        )
        self._stats = Stats()
        self._origins = Origins({})
        self._closed = False
        self._introduction = Introduction(self._client, self._store, self._objects, world)
        self._rhythm.follow(self._client)

    @property
    def stats(self) -> Stats:
        """A snapshot."""
        found = replace(
            self._stats,
            failed=self._stats.failed + self._complaints.failed,
            unchanged=self._freshness.unchanged,
        )
        return with_pace(found, self._pace, now=monotonic())

    @property
    def origins(self) -> Origins:
        """Where all ranks together have read what was restored; empty where nothing was."""
        return self._origins

    @property
    def progress(self) -> Progress:
        """Its ``epoch`` and ``samples``, as `step` was told or as restored: where to go on."""
        return self._progress

    def step(self, n: int, *, epoch: int | None = None, samples: int | None = None) -> bool:
        """Stage step *n* if it is due: call at the end of every step, on every rank.

        Due is what the interval says, and once more when a notice comes. While gradients are
        accumulated for a step of the optimizer it waits for that.

        Args:
            epoch: That the loop is in, from 0, to be kept.
            samples: That all ranks have taken so far, likewise.

        Returns:
            Whether it was staged. Never raises; what went wrong is logged once and counted.
        """
        return self._at_end(n, self._rhythm.passed, epoch, samples)

    def stage(self, n: int, *, epoch: int | None = None, samples: int | None = None) -> bool:
        """Stage step *n* now, due or not: on every rank, as `step`.

        In the middle of an accumulated step it is refused, and made up for by the next `step`.
        """
        return self._at_end(n, self._rhythm.asked, epoch, samples)

    def _at_end(
        self, n: int, ended: Callable[..., Due], epoch: int | None, samples: int | None
    ) -> bool:
        """Step *n* has *ended*: do what is due."""
        with self._complaints.counting(f"step {n}"):  # and on: the others may go into a collective
            self._count(epoch, samples)
        try:
            due = ended(n, planned=self._stager.planned)
            if due.plan:
                self._plan_anew(n)
        except Exception as error:  # noqa: BLE001 - training goes on whatever this is; it is logged with its trace
            self._complaints.fail(f"step:{type(error).__name__}", f"step {n}: {error!r}")
            return False
        if due.unfinished:
            self._complaints.warn(HALF, f"step {n} is not staged: {due.unfinished}")
        return due.stage and self._stage(n)

    def _count(self, epoch: int | None, samples: int | None) -> None:
        if remark := self._progress.tell(epoch=epoch, samples=samples):
            self._complaints.warn("epoch", remark)
        if remark := self._scaler.forgotten():
            self._complaints.warn("scaler", remark)

    def _stage(self, n: int) -> bool:
        started = monotonic()
        try:
            self._await_daemon()
            self._introduction.say()
            skipped = self._stager.stage(self._switch.where(), n)
        except Exception as error:  # noqa: BLE001 - training goes on whatever this is; it is logged with its trace
            self._complaints.fail(
                f"stage:{type(error).__name__}", f"step {n} is not staged: {error!r}"
            )
            self._note(n, started, failed=f"{error!r}")
            return False
        if self._stager.outgrown:
            self._rhythm.ask_plan()
        if skipped is None:
            self._note(n, started)
            if self._stager.remark:
                self._complaints.warn("unchanged", f"step {n}: {self._stager.remark}")
            if remark := self._rhythm.staged(monotonic() - started, prepared=self._stager.prepared):
                self._complaints.warn("consumer", remark)
            return True
        if skipped.kind == HALF:
            self._rhythm.owe()
        if skipped.kind not in QUIET:
            self._complaints.warn(skipped.kind, f"step {n} is not staged: {skipped.reason}")
        self._note(n, started, skipped=skipped.reason)
        return False

    def _plan_anew(self, n: int) -> None:
        skipped = self._stager.plan_anew(self._switch.where(), n)
        if skipped is not None and skipped.kind not in QUIET:
            self._complaints.warn(skipped.kind, f"no new layout at step {n}: {skipped.reason}")

    def restore(self, *, allow_weights_only: bool = False) -> int | None:
        """Go back to the newest whole generation; call before the first step, on every rank.

        Whole is what all nodes' memory, peers and stores have together; see `origins`.

        Args:
            allow_weights_only: Take weights that were saved without the rest, where they are newer
                than all that is whole: the step is theirs, all but the model starts afresh.

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
        if self._store and self._store not in stores:
            # Where there is a daemon now there may have been none for a while.
            stores = (*stores, self._store)
        prefix = self._client.prefix if connected else self._identity.own_prefix
        memory = adopted(self._client)
        restore = Restore(
            self._world,
            self._state,
            self._objects,
            stores,
            prefix,
            memory,
            weights=allow_weights_only,
        )
        try:
            restored = restore.run()
        finally:
            memory.close()
            self._introduction.say(restore.remark)
        if restored is None:
            return None
        self._above = restored.incarnation
        self._origins = restore.origins
        loader_start.resumed(self._objects.loaders.values(), self._state.model)
        return restored.step

    def close(self, *, discard: bool = False) -> None:
        """Training has finished: commit what is under way, and hang up.

        What was staged with a daemon stays there until this process ends; then the daemon saves
        what is not safe yet. A program that ends without it commits what is under way, too, unless
        it is killed.

        Args:
            discard: Have the daemon free it instead, and save nothing of it.
        """
        self._end(None, discard=discard)

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end(None if kind is None else CRASH_SECONDS)

    def _end(self, patience: float | None, *, discard: bool = False) -> None:
        if self._closed:
            return
        self._closed = True
        self._rhythm.close()
        self._freshness.close()
        self._accumulation.close()
        self._scaler.close()
        self._stager.close()
        self._switch.close(patience)
        if discard:
            self._client.leave()
        else:
            self._client.close()

    def _make_own(self) -> OwnSlots:
        assert self._store
        return OwnSlots(
            self._store,
            self._client.prefix or self._identity.own_prefix,
            self._identity,
            lambda incarnation: choice(self._world, incarnation),
            self._complaints,
            slots=self._slots,
        )

    def _await_daemon(self) -> None:
        if not self._waited:
            self._waited = True
            self._client.wait_connected(_CONNECT_SECONDS)

    def _claim(self, slots: Slots) -> int:
        above = self._above
        if self._store and self._store not in slots.stores:
            # Where the daemon stays away it is used as well: the number must be new there, too.
            with suppress(GenerationError):
                above = claim((self._store,), slots.prefix, self._identity, above=above) - 1
        return claim(slots.stores, slots.prefix, self._identity, above=above)

    def _note(self, n: int, started: float, *, skipped: str = "", failed: str = "") -> None:
        took = monotonic() - started
        self._stats = after(self._stats, n, took, skipped=skipped, failed=failed)


def _connect(settings: Settings) -> Client:
    # Quiet: what a missing daemon means depends on the store, and is said here.
    client = Client(settings, quiet=True)
    client.start()
    return client

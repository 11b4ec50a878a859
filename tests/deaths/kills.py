"""Lives of daemons that are killed at one boundary each, and what has to hold after every one.

A life: the daemon starts with what the one before it left, its order goes on, the workload is back on
board (or a new one takes the dead one's rank), adopts what its job left, checks every bit of it, and
stages two steps, which are flushed, committed and thinned out. Somewhere on that way it dies.
"""

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evac.generation import Generation
from tests.agent.daemon.nodes import until
from tests.deaths.machine import Machine, Worker
from tests.deaths.nursery import Child, Nursery

FLAGS = ("--store-keep", "2")
STAGES = 2
SLOTS = 3
# What has to be struck at every boundary; the others are struck as well, as far as there is time.
PHASES = (
    *("stage", "flush", "pending", "manifest", "metadata", "marker"),
    *("retention", "adoption", "return"),
)


@dataclass(frozen=True)
class Aim:
    """Where a daemon is to die: at the *nth* time that it passes a boundary."""

    label: str
    nth: int


@dataclass
class Struck:
    """What came of the aims.

    Attributes:
        kills: By label: daemons that died right there.
        missed: Lives that ended without passing their boundary so often; then they are killed too.
    """

    kills: Counter[str] = field(default_factory=Counter)
    missed: int = 0


class Chain:
    """One machine's daemons, one after the other.

    Args:
        both: The workload dies with each daemon, and another one takes its rank.
        stores: The daemons have an fd store; else the workload hands its memory back.
    """

    def __init__(self, nursery: Nursery, home: Path, *, both: bool, stores: bool) -> None:
        self.machine = Machine(nursery, home, *FLAGS, stores=stores)
        self._both = both
        self._step = 0
        self._incarnation = 1
        self._safe: Generation | None = None
        self._report = home / "boundaries"
        self.machine.start()
        self._worker = self._board()
        self.machine.drain(3600.0)
        assert self._worker.do("stage", step=self._next()) == {}
        until("it is safe", lambda: self.machine.saved(1))
        assert self._worker.do("stage", step=self._next()) == {}
        until("it is safe", lambda: self.machine.saved(2))
        self.machine.kill()
        self._worker.alone()

    def boundaries(self) -> list[Aim]:
        """All that a whole life passes, those that come often behind."""
        self._live(self.machine.begin(report=str(self._report)))
        passed = Counter(self._report.read_text().splitlines())
        self._report.unlink()
        aims = [Aim(label, nth) for label, times in passed.items() for nth in range(times)]
        return sorted(aims, key=lambda aim: (aim.nth, not aim.label.startswith(PHASES), aim.label))

    def strike(self, aims: Sequence[Aim]) -> Struck:
        """One life for each."""
        struck = Struck()
        for aim in aims:
            child = self.machine.begin(report=str(self._report), label=aim.label, nth=aim.nth)
            self._live(child)
            if self._report.exists() and self._report.read_text():
                struck.kills[aim.label] += 1
            else:
                struck.missed += 1
            self._report.unlink(missing_ok=True)
            self.machine.reap()
        return struck

    def end(self) -> None:
        """One more life, that nobody cuts short: everything is there, and nothing is left over."""
        machine = self.machine
        bare = [one for one in self._generations() if not any(one.iterdir())]
        for one in (*bare, *(machine.store / name for name in machine.asides())):
            os.utime(one, (0, 0))
        machine.start()
        worker = self._worker_of_life()
        assert worker.do("connect")["connected"]
        until("the newest is safe", lambda: self.machine.saved(self._step))
        until("nothing lies aside", lambda: not machine.asides())
        until("no folder is left behind", lambda: not any(one.exists() for one in bare))
        # What nobody thinned out, whoever completes the next one does.
        if self._both:
            self._incarnation += 1
            assert worker.do("reserve", incarnation=self._incarnation) == {}
        assert worker.do("stage", step=self._next()) == {}
        until("the last is safe", lambda: self.machine.saved(self._step))
        until("old ones are gone", lambda: self._manifests() <= 2)
        assert len(machine.complete()["root/job"]) == 2
        assert self._worker.do("leave") == {}
        until("all memory is free", lambda: not machine.status()["memory"]["used"])
        until("the fd store is empty", lambda: not machine.manager.names())

    def close(self) -> None:
        """All gone."""
        self.machine.close()

    # --- the inside ----------------------------------------------------------------------

    def _next(self) -> int:
        self._step += 1
        return self._step

    def _board(self) -> Worker:
        return self.machine.worker().ready()

    def _worker_of_life(self) -> Worker:
        if self._both:
            self._worker.close()
            self.machine.workers.remove(self._worker)
            self._worker = self.machine.worker()
        return self._worker

    def _live(self, daemon: Child) -> None:
        """Until it is dead, by whatever hand."""
        worker = self._worker_of_life()
        try:
            self._say(worker, daemon)
        finally:
            daemon.kill()
            daemon.wait()
            if self._both:
                worker.kill()
            else:
                worker.alone()
        self._check()

    def _say(self, worker: Worker, daemon: Child) -> None:
        def dead() -> bool:
            return daemon.poll() is not None

        def aboard() -> bool:
            return dead() or bool(worker.do("connect", seconds=0.05)["connected"])

        def done(what: str, **arguments: Any) -> dict[str, Any] | None:
            """Its answer; None where it was refused because the daemon is dead, or dying."""
            said = worker.do(what, **arguments)
            if "error" in said or "refused" in said:
                until(f"it is dead, which would explain {said}", dead)
                return None
            return said

        until("it is on board", aboard)
        if (adopted := done("adopt")) is None:
            return
        assert all(right for _, _, right in adopted["adopted"]), adopted
        assert max((step for _, step, _ in adopted["adopted"]), default=0) == self._step, (
            adopted,
            self._step,
        )
        if self._both and not self._reserved(done, dead):
            return
        for _ in range(STAGES):
            if done("stage", step=self._step + 1) is None:
                return
            self._step += 1
            until("it is safe", lambda: dead() or self.machine.saved(self._step))
        until("old ones are gone", lambda: dead() or self._manifests() <= 2)

    def _reserved(
        self, done: Callable[..., dict[str, Any] | None], dead: Callable[[], bool]
    ) -> bool:
        """A new process has its slots; False where the daemon is dead."""
        words, before = self.machine.manager.words, len(self.machine.manager.words)
        self._incarnation += 1
        if done("reserve", incarnation=self._incarnation) is None:
            return False

        def stored() -> bool:
            return dead() or sum("FDSTORE=1" in word for word in words[before:]) == SLOTS

        # Until a service manager has read of it, nobody but these two has the memory.
        until("the fd store has its slots", stored)
        return not dead()

    def _generations(self) -> list[Path]:
        return list((self.machine.store / "root" / "job").glob("step-*"))

    def _manifests(self) -> int:
        return sum(name.endswith(".manifest.json") for name in self.machine.files())

    def _check(self) -> None:
        """What a reader finds is right, and the newest of it never was newer."""
        complete = self.machine.complete().get("root/job", [])
        newest = max(complete, default=None)
        if self._safe is not None:
            assert newest is not None
            assert newest >= self._safe, (newest, self._safe)
        self._safe = newest


def rounds(aims: Sequence[Aim], total: int, seed: int) -> Iterator[Aim]:
    """So many of them: each once while there are any, then any."""
    yield from aims[:total]
    chance = random.Random(seed)
    for _ in range(total - len(aims)):
        yield chance.choice(aims)

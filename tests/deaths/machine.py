"""One machine out of the nursery: a daemon with an fd store, its folders, and whoever is on board."""

import asyncio
import json
import os
import socket
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from evac.commit import State, survey, verify
from evac.errors import StoreMissing
from evac.generation import METADATA as METADATA_NAME
from evac.generation import Generation
from evac.store import Store, open_store
from evac.wire import PROTOCOL, Drain, Hello, encode
from tests.agent.daemon.fdstore import Manager
from tests.agent.daemon.nodes import Node, until
from tests.agent.daemon.worker import body_of
from tests.deaths.nursery import Child, Nursery, logs_to

# Small, but not of whole pages.
NBYTES = 3 * 4096 + 17
METADATA = "what a reader of DCP would look for"


class Silent(Exception):
    """A worker has nothing more to say: it is dead."""


class Worker:
    """A `worker.py` of the nursery's."""

    def __init__(
        self, nursery: Nursery, log: Path, *, what: str = "worker", **settings: Any
    ) -> None:
        self.rank: int = settings.get("rank", 0)
        self.job: str = settings["job"]
        here, there = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
        error = logs_to(log)
        self.process = nursery.bear(
            what, [json.dumps(settings)], fds=(), std=(here[0], there[1], error)
        )
        for fd in (here[0], there[1], error):
            os.close(fd)
        self._asks, self._answers = os.fdopen(here[1], "w"), os.fdopen(there[0])

    def ask(self, what: str, **arguments: Any) -> None:
        """Have it do something; its answer may be fetched by `answer`."""
        self._asks.write(json.dumps({"do": what, **arguments}) + "\n")
        self._asks.flush()

    def answer(self) -> dict[str, Any]:
        """To the oldest `ask` that has none yet.

        Raises:
            Silent: It is dead.
        """
        line = self._answers.readline()
        if not line:
            raise Silent
        answer: dict[str, Any] = json.loads(line)
        return answer

    def do(self, what: str, **arguments: Any) -> dict[str, Any]:
        """Have it do something, and return its answer."""
        self.ask(what, **arguments)
        return self.answer()

    def ready(self, **reservation: Any) -> "Worker":
        """Registered, with its slots."""
        assert self.do("connect")["connected"]
        assert self.do("reserve", **reservation) == {}
        return self

    def alone(self) -> None:
        """Wait until it has noticed that its daemon is dead."""
        until("it has noticed", lambda: not self.do("connect", seconds=0.0)["connected"])

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """Gone, with its pipes."""
        self.process.close()
        for pipe in (self._asks, self._answers):
            try:
                pipe.close()
            except BrokenPipeError:
                continue


class Machine(Node):
    """A node whose processes come from the nursery.

    Args:
        stores: Its daemon has an fd store.
    """

    def __init__(
        self,
        nursery: Nursery,
        home: Path,
        *flags: str,
        nbytes: int = NBYTES,
        stores: bool = True,
    ) -> None:
        super().__init__(home)
        self.nursery = nursery
        self.manager = Manager(home)
        self.flags = flags
        self.nbytes = nbytes
        self.stores = stores
        self.workers: list[Worker] = []
        self._daemons: list[Child] = []
        self._numbers = count()

    def begin(self, **doom: Any) -> Child:
        """A daemon, with all that was kept for it; it may not listen yet."""
        self._heard_out()
        with self.manager.changed:
            kept = [(name, fd) for name, fds in self.manager.kept.items() for fd in fds]
            log, null = logs_to(self.log), os.open(os.devnull, os.O_RDWR)
            fds = [fd for _, fd in kept]
            environ = (
                {
                    "NOTIFY_SOCKET": str(self.manager.path),
                    "LISTEN_FDNAMES": ":".join(name for name, _ in kept),
                }
                if self.stores
                else {}
            )
            child = self.nursery.bear(
                "daemon", self.command(*self.flags)[3:], fds=fds, std=(null, log, log),
                environ=environ, doom=doom or None,
            )  # fmt: skip
            os.close(log)
            os.close(null)
        self.process = child
        self._daemons.append(child)
        return child

    def _heard_out(self) -> None:
        """The fd store has taken all that the daemon before has said."""
        word = f"X-SYNC={next(self._numbers)}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(word.encode(), str(self.manager.path))
        with self.manager.changed:
            assert self.manager.changed.wait_for(lambda: word in self.manager.words[-1:], 30.0)

    def start(self, *flags: str, environ: Mapping[str, str] | None = None) -> "Machine":
        """See `Node.start`; it never dies by its own hand."""
        assert not flags
        assert not environ
        self.begin()
        until("evacd listens", self.listens)
        return self

    def worker(self, job: str = "job", **settings: Any) -> Worker:
        """A workload's process; killed at the end."""
        settings = {"nbytes": self.nbytes, "run": "run-1", "metadata": METADATA, **settings}
        one = Worker(
            self.nursery, self.home / "workers.log", job=job, socket=str(self.socket), **settings
        )
        self.workers.append(one)
        return one

    def drain_unheard(self) -> None:
        """As `drain`, of a daemon that may stop itself before it has answered."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
            line.connect(str(self.admin))
            line.send(encode(Hello(version=PROTOCOL, client="test"), id=1))
            line.send(encode(Drain(seconds=3600.0), id=2))

    def reap(self) -> None:
        """Forget daemons that are dead."""
        for child in self._daemons:
            child.close()
        self._daemons.clear()

    def complete(self) -> dict[str, list[Generation]]:
        """What a reader calls complete, by prefix, newest first; every bit of it is right.

        Raises:
            AssertionError: It is not.
        """
        return asyncio.run(_complete(self.store, sorted(self.store.glob("root/*")), self.nbytes))

    def asides(self) -> list[str]:
        """Temporary files in the store."""
        return [name for name in self.files() if ".evac-tmp-" in name]

    def slots(self) -> list[dict[str, Any]]:
        """All that the daemon has."""
        return [slot for one in self.status()["workloads"] for slot in one["slots"]]

    def steps(self, rank: int = 0) -> set[int]:
        """Complete ones of a rank, whoever's they are."""
        return {
            slot["step"]
            for one in self.status()["workloads"]
            if one["rank"] == rank
            for slot in one["slots"]
            if slot["state"] == "complete"
        }

    def saved(self, step: int, job: str = "job") -> bool:
        """Its manifest and `.metadata` are there."""
        found = [name for name in self.files() if name.startswith(f"root/{job}/step-{step}.")]
        ends = (f"/{METADATA_NAME}", "/__0.manifest.json")
        return all(any(name.endswith(end) for name in found) for end in ends)

    def files(self) -> list[str]:
        """See `Node.files`; folders may go while they are looked at."""
        return sorted(
            os.path.relpath(os.path.join(here, name), self.store)
            for here, _, names in os.walk(self.store)
            for name in names
            if "evac-probe" not in here
        )

    def stopped(self) -> bool:
        """The daemon has stopped itself."""
        assert self.process
        stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] == "T"

    def close(self) -> None:
        """All processes gone."""
        for one in self.workers:
            one.close()
        for child in self._daemons:
            child.close()
        self.manager.close()


async def _complete(
    root: Path, folders: Sequence[Path], nbytes: int
) -> dict[str, list[Generation]]:
    store = open_store(f"file://{root}")
    found: dict[str, list[Generation]] = {}
    for folder in folders:
        prefix = str(folder.relative_to(root))
        if prefix.startswith("evac-probe"):
            continue
        found[prefix] = []
        for generation in await whole(store, prefix):
            wrong = await _wrong(store, prefix, generation, nbytes)
            if not wrong:
                found[prefix].append(generation)
            else:
                # Unless it was thinned out while it was read.
                assert generation not in await whole(store, prefix), wrong
    return found


async def whole(store: Store, prefix: str) -> list[Generation]:
    """What a reader calls complete, newest first."""
    statuses = await survey(store, prefix)
    return [one.generation for one in statuses if one.state is State.COMPLETE]


async def _wrong(store: Store, prefix: str, generation: Generation, nbytes: int) -> str:
    """What is not as it was staged; "" where all is."""
    problems = await verify(store, prefix, generation)
    if problems:
        return str(problems)
    here = f"{prefix}/{generation.directory}"
    try:
        if await store.get(f"{here}/.metadata") != METADATA.encode():
            return f"{here}: .metadata"
        for key in [one.key for one in await store.list(here) if one.key.endswith(".bin")]:
            rank = int(Path(key).stem.removeprefix("part"))
            if await store.get(key) != body_of(rank, generation.step, nbytes):
                return key
    except StoreMissing as error:
        return str(error)
    return ""

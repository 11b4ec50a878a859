"""Agents as threads: the handler as torchrun's agent calls it, without workers and their seconds.

What a round hands out is used as an agent uses it: all ranks meet in its store, and the barrier
before anybody stops is looked at (`Node.stopped` counts those who were still working then).
"""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined] # public, but not in __all__
from torch.distributed.elastic.agent.server import api
from torch.distributed.elastic.utils import store as store_util

from evac.rendezvous import log
from evac.rendezvous.address import Address, split_endpoint
from evac.rendezvous.etcd_keys import EtcdKeys
from evac.rendezvous.events import Depart, encode
from evac.rendezvous.handler import EvacHandler
from evac.rendezvous.keys import Keys
from evac.rendezvous.settings import Settings
from evac.rendezvous.torch_keys import TorchKeys, connect

HOST = "127.0.0.1"
# What agents wait in for each other at the end of a job.
_BARRIER = api._TERMINAL_STATE_SYNC_ID  # pyright: ignore[reportPrivateUsage]
# Longer than the backend itself is patient with anything: a round that is not confirmed, say.
PATIENCE_SECONDS = 150.0


@dataclass(frozen=True)
class Stood:
    """One round as one node saw it."""

    world: int
    rank: int
    master: tuple[str, int]


class WorkerFailed(Exception):
    """What an agent ends with where its worker has failed."""


@dataclass
class Node:
    """One agent; `start` it, tell it to `finish`, look at what became of it.

    Attributes:
        left: The handler of an agent that was told to `die`: as a process that has ended, it calls it
            no more.
    """

    name: str
    address: Address
    minimum: int = 2
    maximum: int = 3
    hosts: bool = False
    boot: str = "boot"
    socket: str = "/nowhere/evacd.sock"
    conf: dict[str, Any] = field(default_factory=dict[str, Any])
    rounds: list[Stood] = field(default_factory=list[Stood])
    ended: object = None
    works: bool = False
    barrier: bool = False
    handler: EvacHandler | None = None
    left: EvacHandler | None = None
    fails: bool = False
    _store: "Store | None" = None

    def start(self) -> "Node":
        self._finish, self._dies, self._goes = (threading.Event() for _ in range(3))
        self._goes.set()
        self._thread = Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()
        return self

    def store(self) -> Store:
        """Of the round that it is in."""
        assert self._store is not None
        return self._store

    def finish(self) -> None:
        self._finish.set()

    def fail(self) -> None:
        """Its worker fails, and it may not restart it."""
        self.fails = True
        self._finish.set()

    def die(self) -> None:
        """End without a word."""
        self._dies.set()
        self._finish.set()

    def hold(self) -> None:
        """Its workers take their time to stop, until it is told to `go`."""
        self._goes.clear()

    def go(self) -> None:
        self._goes.set()

    def join(self) -> object:
        """What it ended with: "finished", an exit code, or an exception."""
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive(), f"{self.name} does not end"
        return self.ended

    @property
    def now(self) -> Stood | None:
        return self.rounds[-1] if self.works else None

    def _run(self) -> None:
        try:
            self.handler = EvacHandler(
                Settings(
                    self.address,
                    "run",
                    self.minimum,
                    self.maximum,
                    self.hosts,
                    HOST,
                    self.name,
                    self.boot,
                    self.socket,
                    **{"call_seconds": 0.2, "return_seconds": 0.0, **self.conf},
                )
            )
            # As torch's `launch_agent` does, with the exception on its way.
            try:
                self._train(self.handler)
            finally:
                self.works = False
                if self._dies.is_set():
                    self.left = self.handler
                else:
                    self.handler.shutdown()
            self.ended = "finished"
        except SystemExit as error:
            self.ended = error.code
        except Exception as error:  # noqa: BLE001 - looked at by the test
            self.ended = error
        finally:
            self.works = False
            self.handler = None

    def _train(self, handler: EvacHandler) -> None:
        while True:
            info = handler.next_rendezvous()
            self._store = info.store
            # As the agent does: everybody writes, the first reads all and answers, all read that.
            info.store.set(f"role/{info.rank}", self.name)
            if info.rank == 0:
                info.store.multi_get([f"role/{one}" for one in range(info.world_size)])
                info.store.set("assigned", "yes")
            info.store.get("assigned")
            master = info.bootstrap_store_info
            assert master is not None
            self.rounds.append(
                Stood(info.world_size, info.rank, (master.master_addr, master.master_port))
            )
            self.works = True
            while handler.num_nodes_waiting() == 0:
                if self._finish.wait(0.01):
                    if self.fails:
                        raise WorkerFailed
                    if self.barrier:
                        store_util.barrier(info.store, info.world_size, _BARRIER, PATIENCE_SECONDS)
                    return
            self.works = False
            self._goes.wait(PATIENCE_SECONDS)


def until(what: str, probe: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> None:
    end = time.perf_counter() + seconds
    while not probe():
        assert time.perf_counter() < end, f"not within {seconds:g} s: {what}"
        time.sleep(0.005)


def work_together(nodes: Iterable[Node], *, but: object = None) -> Callable[[], bool]:
    """A probe: all of them are in one round, and nobody else is.

    Args:
        but: The master of a round that does not count.
    """
    all_of = list(nodes)

    def probe() -> bool:
        stood = [node.now for node in all_of]
        if any(one is None for one in stood):
            return False
        masters = {one.master for one in stood if one}
        return (
            len(masters) == 1
            and masters != {but}
            and sorted(one.rank for one in stood if one) == list(range(len(all_of)))
            and {one.world for one in stood if one} == {len(all_of)}
        )

    return probe


def open_keys(address: Address) -> Keys:
    if address.in_etcd:
        return EtcdKeys(address)
    return TorchKeys(connect(address.host, address.port, seconds=10), address.prefix)


def depart(
    address: Address, *names: str, word: str = "leaving", boot: str = "boot", sequence: int = 1
) -> None:
    """What evacd writes when nodes leave."""
    keys = open_keys(address)
    for name in names:
        found = log.snapshot(keys)
        event = Depart(word, name, boot, sequence, order="order", seconds_left=30.0)
        log.append(keys, found.at if found else 0, encode(event))
    keys.close()


def where(node: Node) -> Address:
    """Where the log lies now, as a node sees it."""
    assert node.handler is not None
    return node.handler.address


def local(port: int, scheme: str = "tcpstore", prefix: str = "evac/run") -> Address:
    return Address(scheme, HOST, port, prefix)


def port_of(endpoint: str) -> int:
    return split_endpoint(endpoint, 0)[1]

"""Whose checkpoints DCP saves and loads, and what it calls them."""

import os
import re

import torch.distributed as dist

from evac._settings import read_settings
from evac.client import Client
from evac.errors import ConfigError
from evac.store import open_store
from evac.torch.dcp_plan import of_group
from evac.torch.identity import Identity
from evac.torch.world import World

_CONNECT_SECONDS = 1.0
_STEP = re.compile(r"(\d+)\D*$")


class Connected:
    """Who this rank is, and where it saves; shared by a writer and its reader.

    Made on all ranks alike: they get a process group of their own, so that `async_save` may run
    beside training.
    """

    def __init__(
        self,
        *,
        job: str | None = None,
        store: str | None = None,
        priority: int | None = None,
        client: Client | None = None,
    ) -> None:
        self.world: World = of_group(dist.new_group(backend="gloo") if _several() else None)
        self.store = store or os.environ.get("EVAC_STORE") or None
        if self.store:
            open_store(self.store)  # a wrong URL is told now
        settings = read_settings(
            os.environ, job=job, rank=self.world.rank, world=self.world.size, priority=priority
        )
        register = settings.register
        self.identity = Identity(register.job, register.run, self.world.rank, self.world.size)
        if client is None:
            client = Client(settings, quiet=True)
            client.start()
            if os.path.exists(settings.socket):
                client.wait_connected(_CONNECT_SECONDS)
        self.client = client

    @property
    def prefix(self) -> str:
        """Where the job's generations go in a store."""
        return self.client.prefix or self.identity.own_prefix

    @property
    def stores(self) -> tuple[str, ...]:
        """The daemon's, and this process's own."""
        stores = self.client.stores if self.client.connected else ()
        own = self.store
        return (*stores, own) if own and own not in stores else stores


def names_step(checkpoint_id: str | os.PathLike[str]) -> bool:
    """Whether there is a number in it."""
    return _STEP.search(os.fspath(checkpoint_id)) is not None


def step_of(checkpoint_id: str | os.PathLike[str]) -> int:
    """The number at the end of a name: 100 of ``out/step-100``.

    Raises:
        ConfigError: It has none.
    """
    found = _STEP.search(os.fspath(checkpoint_id))
    if found is None:
        raise ConfigError("checkpoint_id", os.fspath(checkpoint_id), "a name that ends in the step")
    return int(found[1])


def _several() -> bool:
    return dist.is_available() and dist.is_initialized()

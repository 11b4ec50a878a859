"""What a person should know before the first stage: where it goes, and what it will lack."""

import logging

from evac.client import Client
from evac.torch.lacking import lacking, undealt
from evac.torch.rank_state import RankObjects
from evac.torch.world import World

log = logging.getLogger("evac")


class Introduction:
    """Says it once, in one warning.

    Args:
        world: What is lacking, its first rank says for all.
    """

    def __init__(
        self, client: Client, store: str | None, objects: RankObjects, world: World
    ) -> None:
        self._client = client
        self._store = store
        self._objects = objects
        self._leads = world.rank == 0
        self._ranks = world.size
        self._said = False

    def say(self, remark: str = "") -> None:
        """Say what was not said yet, and *remark*."""
        parts = [] if self._said else self._parts()
        self._said = True
        if remark:
            parts.append(remark)
        if parts:
            log.warning("%s", "; ".join(parts))

    def _parts(self) -> list[str]:
        parts = []
        connected = self._client.connected
        if not connected:
            parts.append(self._without_daemon())
        if self._leads and (connected or self._store):
            parts += self._lacks()
        return parts

    def _lacks(self) -> list[str]:
        try:
            missing = lacking(self._objects)
            alike = any(map(undealt, self._objects.loaders.values()))
        except Exception as error:  # noqa: BLE001 - objects of anybody's, looked at on this rank alone: the others are on their way to a collective
            return [f"what checkpoints lack cannot be told: {error!r}"]
        parts = [f"checkpoints hold {' and '.join(missing)}"] if missing else []
        if self._ranks > 1 and alike:
            parts.append(
                f"each of {self._ranks} ranks takes all of the dataset that its Resumable has: where they have the "
                "same one, give the sampler that deals it out (DistributedSampler); nobody else does"
            )
        return parts

    def _without_daemon(self) -> str:
        none = f"no evacd at {self._client.socket} ({self._client.absence})"
        if self._store:
            return f"{none}: this process commits to {self._store} by itself"
        return (
            f"nothing is saved: {none}, and no store; start evacd on this node, or pass store= "
            "(or set EVAC_STORE) to have this process commit there by itself"
        )

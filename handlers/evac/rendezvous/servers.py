"""The stores that one agent serves: the job's, where that is for it to do, and one in case it must later."""

import logging
from secrets import token_hex

from torch.distributed import TCPStore  # type: ignore[attr-defined] # public, but not in __all__

from evac.rendezvous import log
from evac.rendezvous.address import Address
from evac.rendezvous.keys import Keys, Unreachable
from evac.rendezvous.opening import serve_log
from evac.rendezvous.settings import Settings
from evac.rendezvous.snapshot import Snapshot, dump
from evac.rendezvous.state import State
from evac.rendezvous.torch_keys import TorchKeys, serve

logger = logging.getLogger("evac")


class Servers:
    """They live for as long as this does.

    Attributes:
        standby: ``host:port`` at which this agent would serve the log; "" if it could not.
    """

    def __init__(self, settings: Settings) -> None:
        self._address = settings.address
        self._log = serve_log(settings)
        if self._log is not None:
            # At once: whoever else comes first would begin a log that nothing holds.
            made = Snapshot(0, 0, State(held=True), token_hex(4))
            TorchKeys(self._log, settings.address.prefix).replace(log.SNAPSHOT, b"", dump(made))
        self._standby = _standby(settings)
        self.standby = f"{settings.local}:{self._standby.port}" if self._standby else ""

    @property
    def hosts(self) -> bool:
        """Whether the store that all were told to meet in is this agent's."""
        return self._log is not None

    def serves(self, address: Address) -> bool:
        """Whether the store at *address* is."""
        return (self.hosts and address == self._address) or (
            bool(self.standby) and self.standby == address.endpoint
        )

    def standby_keys(self) -> Keys:
        """The job's keys in the store that this agent would serve the log from."""
        assert self._standby is not None
        return TorchKeys(self._standby, self._address.prefix)


def _standby(settings: Settings) -> TCPStore | None:
    if settings.address.in_etcd:
        return None
    try:
        return serve(settings.local, 0)
    except Unreachable as error:
        logger.warning("this agent cannot serve the rendezvous store if it must: %s", error)
        return None

"""From an address to a connection, or to the server itself where it is for this agent to serve."""

from torch.distributed import TCPStore  # type: ignore[attr-defined] # public, but not in __all__
from torch.distributed.elastic.rendezvous import RendezvousConnectionError

from evac.rendezvous.address import Address
from evac.rendezvous.etcd_access import Access
from evac.rendezvous.etcd_calls import KEEP_SECONDS
from evac.rendezvous.etcd_keys import EtcdKeys
from evac.rendezvous.keys import Keys, Unreachable
from evac.rendezvous.settings import Settings, is_local
from evac.rendezvous.torch_keys import TorchKeys, connect, serve

CONNECT_SECONDS = 5.0


def serve_log(settings: Settings) -> TCPStore | None:
    """The store itself, where it is for this agent to serve it."""
    address = settings.address
    if address.in_etcd or settings.hosts is False:
        return None
    if settings.hosts is None and not is_local(address.host):
        return None
    try:
        return serve(address.host, address.port)
    except Unreachable as error:
        if settings.hosts:
            raise RendezvousConnectionError(
                f"cannot serve the rendezvous store: {error}"
            ) from error
        return None  # another agent of this machine does


def open_keys(
    address: Address,
    *,
    dead_seconds: float,
    access: Access | None = None,
    keep_seconds: float = KEEP_SECONDS,
) -> Keys:
    """A connection to a job's keys, which fails once the store's machine was silent for so long.

    Args:
        access: What an etcd is shown.
        keep_seconds: That an etcd keeps the keys of a job of which nobody is left.

    Raises:
        Unreachable: Nobody answers there; etcd is asked only at the first use.
    """
    if address.in_etcd:
        return EtcdKeys(address, access, keep_seconds=keep_seconds, dead_seconds=dead_seconds)
    store = connect(address.host, address.port, seconds=CONNECT_SECONDS, dead_seconds=dead_seconds)
    return TorchKeys(store, address.prefix)

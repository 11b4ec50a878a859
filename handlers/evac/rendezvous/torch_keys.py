"""A job's keys in torch's own TCPStore.

Its own protocol between client and server belongs to torch; only the class's public methods are
used here, and values are JSON, never pickles.
"""

import socket
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined] # public, but not in __all__

from evac.rendezvous.keys import Refused, Unreachable
from evac.rendezvous.silence import bound_all

# A wait has no end of its own: the store writes a warning to stderr each time one runs out.
_FOR_EVER = timedelta(days=365)
# No value; where a key is not there, a compare_set that expects something answers with just that.
_ABSENT = "\0absent"


def serve(host: str, port: int) -> TCPStore:
    """A server at *port* of this machine (0 for a free one), for as long as the result lives.

    It listens on all of the machine's addresses; *host* is one of them.

    Raises:
        Unreachable: The port cannot be had.
    """
    with _translated(f"{host}:{port}"):
        return TCPStore(host, port, is_master=True, wait_for_workers=False, multi_tenant=True)


def connect(
    host: str, port: int, *, seconds: float, read_seconds: float = 5.0, dead_seconds: float = 15.0
) -> TCPStore:
    """A client; *seconds* bound the connection, *read_seconds* each of its reads.

    Whatever it waits for, it fails once its server's machine has been silent for *dead_seconds*.

    Raises:
        Refused: Nobody serves there.
        Unreachable: Nobody answers there in time.
    """
    with _translated(f"{host}:{port}"):
        # torch's client would try again until its time is up, and tell stderr each time.
        socket.create_connection((host, port), timeout=seconds).close()
        store = TCPStore(host, port, is_master=False, timeout=timedelta(seconds=seconds))
        store.set_timeout(timedelta(seconds=read_seconds))
        bound_all(host, port, dead_seconds)
        return store


class TorchKeys:
    """See `Keys`."""

    def __init__(self, store: TCPStore, prefix: str) -> None:
        self._store: TCPStore | None = store
        self._prefix = prefix
        self._where = f"{store.host}:{store.port}"

    def create(self, key: str, value: bytes) -> bytes:
        """See `Keys.create`."""
        with self._open() as store:
            # An empty expectation means: only where there is none.
            found = bytes(store.compare_set(self._full(key), "", value.decode()))
            if found == value:
                # The older of torch's servers wakes who waits for a key only when it is set.
                store.set(self._full(key), value.decode())
            return found

    def replace(self, key: str, before: bytes, value: bytes) -> bool:
        """See `Keys.replace`."""
        with self._open() as store:
            found = store.compare_set(self._full(key), before.decode(), value.decode())
            return bytes(found) == value

    def put(self, key: str, value: bytes) -> None:
        """See `Keys.put`."""
        with self._open() as store:
            store.set(self._full(key), value.decode())

    def get(self, keys: Sequence[str]) -> list[bytes | None]:
        """See `Keys.get`."""
        full = [self._full(key) for key in keys]
        with self._open() as store:
            # A plain get waits for what is not there, and what was just there may be deleted by now.
            found = [bytes(store.compare_set(key, _ABSENT, _ABSENT)) for key in full]
        return [None if value == _ABSENT.encode() else value for value in found]

    def wait(self, key: str) -> None:
        """See `Keys.wait`."""
        with self._open() as store:
            store.wait([self._full(key)], _FOR_EVER)

    def delete(self, *keys: str) -> None:
        """See `Keys.delete`."""
        with self._open() as store:
            for key in keys:
                store.delete_key(self._full(key))

    def clear(self) -> bool:
        """See `Keys.clear`: torch's store tells of no keys that one does not know."""
        return False

    def keep(self) -> None:
        """See `Keys.keep`: it forgets nothing while it lives."""

    def close(self) -> None:
        """See `Keys.close`."""
        self._store = None

    def _full(self, key: str) -> str:
        return f"{self._prefix}/{key}"

    @contextmanager
    def _open(self) -> Generator[TCPStore, None, None]:
        store = self._store
        if store is None:
            raise Unreachable(self._where, "closed")
        with _translated(self._where):
            yield store


@contextmanager
def _translated(where: str) -> Generator[None, None, None]:
    # All of torch's own errors of this kind are RuntimeErrors: DistNetworkError, DistStoreError.
    try:
        yield
    except ConnectionRefusedError as error:
        raise Refused(where, str(error)) from error
    except (RuntimeError, ValueError, OSError) as error:
        said = str(error).strip() or type(error).__name__
        raise Unreachable(where, said.splitlines()[0][:200]) from error

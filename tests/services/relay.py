"""Passes bytes on to a server, whatever they are; cuts all connections on demand."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tests.services.process import HOST

_CHUNK = 65536


class Relay:
    """Listens on a free port of its own until closed.

    Args:
        port: The real server's.
        pace: Told of further bytes before they go to the server; as long as it does not return, those wait.
    """

    def __init__(self, port: int, *, pace: Callable[[int], None] = lambda _: None) -> None:
        self._upstream = port
        self._pace = pace
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._ended = False
        self._listening = socket.create_server((HOST, 0), backlog=128)
        self.port = int(self._listening.getsockname()[1])
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def cut(self) -> None:
        """End every connection that there is; new ones are taken."""
        with self._lock:
            for one in self._open:
                with suppress(OSError):  # its other end was quicker
                    one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let all threads end."""
        self._ended = True
        with suppress(OSError), socket.create_connection((HOST, self.port), timeout=1):
            pass
        self._accepting.join()
        self._listening.close()
        self.cut()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            client, _ = self._listening.accept()
            if self._ended:
                client.close()
                return
            thread = threading.Thread(target=self._serve, args=(client,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection((HOST, self._upstream), timeout=30) as server:
            server.settimeout(None)
            both = {client, server}
            with self._lock:
                self._open |= both
            back = threading.Thread(target=_pass_on, args=(server, client))
            back.start()
            _pass_on(client, server, self._pace)
            back.join()
            with self._lock:
                self._open -= both


def _pass_on(
    source: socket.socket, sink: socket.socket, pace: Callable[[int], None] = lambda _: None
) -> None:
    """Until the source ends; then the sink is told."""
    with suppress(OSError):  # cut, or left in the middle
        while got := source.recv(_CHUNK):
            pace(len(got))
            sink.sendall(got)
    for one in (source, sink):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


@contextmanager
def relay(port: int, *, pace: Callable[[int], None] = lambda _: None) -> Iterator[Relay]:
    """One until the block ends."""
    made = Relay(port, pace=pace)
    try:
        yield made
    finally:
        made.close()

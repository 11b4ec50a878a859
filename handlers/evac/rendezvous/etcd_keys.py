"""A job's keys in etcd, for its agents: requests of `etcd_calls` over connections of the standard library.

torch's own etcd backends speak v2, which etcd 3.6 dropped.
"""

import http.client
import socket
import ssl
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress

from evac.rendezvous.address import ETCD_TLS, Address
from evac.rendezvous.etcd_access import Access, Shown, refusal_of
from evac.rendezvous.etcd_calls import KEEP_SECONDS, Answer, EtcdCalls, Request, Steps, T
from evac.rendezvous.keys import Denied, Unreachable
from evac.rendezvous.silence import bound

_MOST_LINE = 8 << 20
# Of what a proxy answers in etcd's place.
_MOST_PAGE = 1 << 16
# A job of ten thousand nodes has a snapshot of some 2 MB.
_MOST_BYTES = 64 << 20


class EtcdKeys:
    """See `Keys`. A call takes *seconds* at most, save `wait`: that lasts until *dead_seconds* of silence.

    Raises:
        Denied: A file of *access* is wrong.
    """

    def __init__(
        self,
        address: Address,
        access: Access | None = None,
        *,
        keep_seconds: float = KEEP_SECONDS,
        seconds: float = 5.0,
        dead_seconds: float = 15.0,
    ) -> None:
        self._address, self._seconds, self._dead_seconds = address, seconds, dead_seconds
        self._where = address.endpoint
        self._access = access or Access()
        self._calls = EtcdCalls(
            self._where,
            address.prefix,
            self._shown().login,
            renewed=lambda: self._shown().login,
            keep_seconds=keep_seconds,
        )
        self._line: http.client.HTTPConnection | None = None
        self._watch: http.client.HTTPConnection | None = None
        self._closed = False

    def create(self, key: str, value: bytes) -> bytes:
        """See `Keys.create`."""
        return self._do(self._calls.create(key, value))

    def replace(self, key: str, before: bytes, value: bytes) -> bool:
        """See `Keys.replace`."""
        return self._do(self._calls.replace(key, before, value))

    def put(self, key: str, value: bytes) -> None:
        """See `Keys.put`."""
        self._do(self._calls.put(key, value))

    def get(self, keys: Sequence[str]) -> list[bytes | None]:
        """See `Keys.get`."""
        return self._do(self._calls.get(keys))

    def wait(self, key: str) -> None:
        """See `Keys.wait`."""
        asked = self._do(self._calls.watch(key))
        if asked is None:
            return
        self._watch = self._made()
        with self._translated(self._watch):
            self._watch.connect()
            sock = self._watch.sock
            try:
                bound(sock, self._dead_seconds)
                self._watch.request("POST", asked.path, asked.body, asked.headers)
                # The answer has the socket for itself where its server means to close it.
                with self._watch.getresponse() as response:
                    self._follow(response, sock)
            except TimeoutError as error:
                if error.errno:
                    raise  # the kernel has given it up
                reason = "it does not say that it watches (does a proxy hold answers back?)"
                raise Unreachable(self._where, reason) from error
            finally:
                self._watch.close()

    def _follow(self, response: http.client.HTTPResponse, sock: socket.socket) -> None:
        """Read the answer to a watch until something happens."""
        if response.status != 200:
            text = response.read(_MOST_PAGE).decode(errors="replace")
            raise self._calls.unwatched(response.status, text)
        # It says at once that it watches; from then on it is silent until something happens: no time limit.
        line = response.readline(_MOST_LINE)
        sock.settimeout(None)
        while line:
            if self._calls.came(line):
                return
            line = response.readline(_MOST_LINE)
        raise Unreachable(self._where, "the watch ended")

    def delete(self, *keys: str) -> None:
        """See `Keys.delete`."""
        self._do(self._calls.delete(keys))

    def clear(self) -> bool:
        """See `Keys.clear`."""
        self._do(self._calls.clear())
        return True

    def keep(self) -> None:
        """See `Keys.keep`."""
        self._do(self._calls.keep())

    def close(self) -> None:
        """See `Keys.close`."""
        self._closed = True
        for line in (self._line, self._watch):
            if line is not None and line.sock is not None:
                with suppress(OSError):
                    # Wakes a thread that reads from it. Not TLS's own, which takes its state along.
                    socket.socket.shutdown(line.sock, socket.SHUT_RDWR)
        if self._line is not None:
            self._line.close()

    # --- one request -------------------------------------------------------------------------

    def _do(self, steps: Steps[T]) -> T:
        try:
            request = next(steps)
            while True:
                request = steps.send(self._send(request))
        except StopIteration as done:
            found: T = done.value
            return found

    def _send(self, request: Request) -> Answer:
        if self._closed:
            raise Unreachable(self._where, "closed")
        # Where its server has closed it, it would connect by itself, and show what was shown before.
        if self._line is None or self._line.sock is None:
            self._line = self._made()
        line = self._line
        with self._translated(line):
            try:
                line.request("POST", request.path, request.body, request.headers)
                response = line.getresponse()
                body = response.read(_MOST_BYTES + 1)
                if len(body) > _MOST_BYTES:
                    raise ValueError(f"an answer of more than {_MOST_BYTES} bytes")
                response.close()
            except BaseException:
                self._line = None
                raise
        return Answer(response.status, body)

    def _made(self) -> http.client.HTTPConnection:
        host, port, context = self._address.host, self._address.port, self._shown().context
        if context is None:
            return http.client.HTTPConnection(host, port, timeout=self._seconds)
        return http.client.HTTPSConnection(host, port, timeout=self._seconds, context=context)

    def _shown(self) -> Shown:
        """By the files as they are now."""
        try:
            return self._access.read(tls=self._address.scheme == ETCD_TLS)
        except ValueError as error:
            raise Denied(self._where, str(error)) from error

    @contextmanager
    def _translated(self, line: http.client.HTTPConnection) -> Generator[None, None, None]:
        """Its errors; *line* is closed by one."""
        try:
            yield
        except Unreachable:
            line.close()
            raise
        except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
            last = _last_word(line, error)
            line.close()
            if refused := refusal_of(last):
                wrong = f" ({self._access.wrong})" if self._access.wrong else ""
                raise Denied(self._where, f"{refused}{wrong}") from error
            reason = str(last) or type(last).__name__
            if self._address.scheme != ETCD_TLS and isinstance(
                last, http.client.RemoteDisconnected
            ):
                reason += " (does it want https?)"
            raise Unreachable(self._where, f"no etcd v3 gateway answers: {reason}") from error


def _last_word(line: http.client.HTTPConnection, error: Exception) -> Exception:
    """What the other end has said before it broke off a connection that we were still writing to.

    With TLS 1.3 we have begun to ask by the time that it turns our certificate down.
    """
    if line.sock is not None and isinstance(
        error, (BrokenPipeError, ConnectionResetError, ssl.SSLEOFError)
    ):
        try:
            line.sock.recv(1)
        except OSError as said:  # SSLError is one, too
            return said if refusal_of(said) else error
    return error

"""A small proxy in front of a real server that does to requests what networks and stores do.

It forwards each request unchanged, over a connection of its own, unless a rule says otherwise.
"""

import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from enum import Enum

from tests.services.process import HOST

_CHUNK = 65536


class Fate(Enum):
    """What happens to a request other than an answer that somebody made up."""

    RESET = "the connection is reset while the body is sent"
    HALF = "the answer ends in its middle"
    SILENCE = "nobody ever answers"
    FLIP = "one bit of the request's body is another"
    CUT = "the connection is reset when half of the request's body has reached the server"
    LOST = "the server does what it was asked to, and its answer never arrives"
    PASS = "nothing: it was only waited for"


@dataclass
class Rule:
    """Strikes requests that match, *times* times; a negative number for ever.

    Attributes:
        answer: Status and body, or a fate.
        bearing: Only those with this in their head.
        after: So many of them pass before.
        first_tries: Strike no request that was struck before: whoever asks again is served.
        met: Called in the proxy's thread before it strikes.
    """

    answer: tuple[int, bytes] | Fate
    method: str = ""
    within: str = ""
    bearing: str = ""
    times: int = -1
    after: int = 0
    first_tries: bool = False
    met: Callable[[], None] | None = None
    struck: set[str] = field(default_factory=set)

    def strikes(self, method: str, path: str, nbytes: int, head: str) -> bool:
        """Whether this request is one to strike; counts it."""
        if not self.times or self.method not in ("", method) or self.within not in path:
            return False
        if self.bearing not in head:
            return False
        if self.first_tries:
            # A put that begins anew has names of its own for its parts.
            request = (
                f"{method} {re.sub('uploadId=[^&]*|blockid=[^&]*|[0-9a-f]{16}', '', path)} {nbytes}"
            )
            if request in self.struck:
                return False
            self.struck.add(request)
        if self.after > 0:
            self.after -= 1
            return False
        self.times -= 1
        return True


@dataclass(frozen=True)
class Request:
    """What came by."""

    method: str
    path: str
    head: str


class Proxy:
    """Listens on a free port of its own until closed.

    Args:
        port: The real server's.
        tls: Speaks TLS to clients with this; plain to the server.
    """

    def __init__(self, port: int, *, tls: ssl.SSLContext | None = None) -> None:
        self.rules: list[Rule] = []
        self.seen: list[Request] = []
        # What the server's clock is ahead, as far as its answers' Date tells.
        self.ahead = timedelta()
        self._upstream = port
        self._tls = tls
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._listening = socket.create_server((HOST, 0), backlog=128)
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    @property
    def endpoint(self) -> str:
        """``http://host:port``."""
        port = self._listening.getsockname()[1]
        return f"{'https' if self._tls else 'http'}://{HOST}:{port}"

    def close(self) -> None:
        """Let all threads end."""
        self._ended.set()
        # accept() is not woken by a close: a last visitor does it.
        with suppress(OSError), socket.create_connection(self._listening.getsockname(), timeout=1):
            pass
        self._accepting.join()
        self._listening.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while not self._ended.is_set():
            client, _ = self._listening.accept()
            thread = threading.Thread(target=self._serve, args=(client,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        client.settimeout(30)
        # A client that leaves in the middle is one of the things that happen.
        with suppress(OSError), client:
            if self._tls is None:
                self._answer(client)
                return
            with self._tls.wrap_socket(client, server_side=True) as wrapped:
                self._answer(wrapped)

    def _answer(self, client: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            got = client.recv(_CHUNK)
            if not got:
                return
            head += got
        head, _, body = head.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        method, path, _ = lines[0].split(" ", 2)
        length = 0
        kept = [lines[0]]
        for line in lines[1:]:
            name = line.partition(":")[0].lower()
            if name == "content-length":
                length = int(line.partition(":")[2])
            if name == "expect":
                client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            elif name != "connection":
                kept.append(line)
        said = head.decode("latin-1")
        rule = self._rule(method, path, length, said)
        self.seen.append(Request(method, path, said))
        fate = rule.answer if rule else None
        if rule is not None and rule.met is not None:
            rule.met()
        if fate is Fate.RESET:
            _reset(client)
            return
        if fate is Fate.SILENCE:
            self._ended.wait(60)
            return
        if isinstance(fate, tuple):
            self._drain(client, length - len(body))
            status, text = fate
            client.sendall(
                f"HTTP/1.1 {status} Because\r\nContent-Type: application/xml\r\n"
                f"Connection: close\r\nContent-Length: {len(text)}\r\n\r\n".encode()
                + text
            )
            return
        with socket.create_connection((HOST, self._upstream), timeout=30) as server:
            server.sendall("\r\n".join([*kept, "Connection: close", "", ""]).encode("latin-1"))
            if fate is Fate.CUT:
                half = (length + 1) // 2
                body = body[:half]
                server.sendall(body)
                while len(body) < half and (got := client.recv(half - len(body))):
                    server.sendall(got)
                    body += got
                _reset(client)
                return
            if fate is Fate.FLIP and body:
                body = bytes([body[0] ^ 1]) + body[1:]
                fate = None
            server.sendall(body)
            left = length - len(body)
            while left > 0:
                got = client.recv(min(_CHUNK, left))
                if not got:
                    return
                left -= len(got)
                if fate is Fate.FLIP:
                    got, fate = bytes([got[0] ^ 1]) + got[1:], None
                server.sendall(got)
            self._relay(server, client, fate)

    def _relay(
        self, server: socket.socket, client: socket.socket, fate: tuple[int, bytes] | Fate | None
    ) -> None:
        if fate not in (Fate.HALF, Fate.LOST) and not self.ahead:
            while got := server.recv(_CHUNK):
                client.sendall(got)
            return
        answer = b""
        while got := server.recv(_CHUNK):
            answer += got
        if fate is Fate.LOST:
            _reset(client)
            return
        head, gap, body = answer.partition(b"\r\n\r\n")
        if self.ahead:
            date = format_datetime(datetime.now(UTC) + self.ahead, usegmt=True)
            head = re.sub(rb"(?im)^date:[^\r\n]*", b"Date: " + date.encode(), head)
        client.sendall(head + gap + (body[: len(body) // 2] if fate is Fate.HALF else body))

    def _drain(self, client: socket.socket, left: int) -> None:
        while left > 0 and (got := client.recv(min(_CHUNK, left))):
            left -= len(got)

    def _rule(self, method: str, path: str, nbytes: int, head: str) -> Rule | None:
        with self._lock:
            struck = (one for one in self.rules if one.strikes(method, path, nbytes, head))
            return next(struck, None)


def _reset(client: socket.socket) -> None:
    """Make its close a reset."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


@contextmanager
def proxy(port: int, *, tls: ssl.SSLContext | None = None) -> Iterator[Proxy]:
    """One until the block ends."""
    made = Proxy(port, tls=tls)
    try:
        yield made
    finally:
        made.close()

"""A name server of one's own, and processes that ask nobody else.

It listens on port 53 of a loopback address, because that is the only port that resolv.conf can name. A process asks
it in a mount namespace in which /etc/resolv.conf says so; the machine's own stays as it is.

Source: RFC 1035, 4.1 (messages), 3.2 (types and classes).
"""

import os
import shutil
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from itertools import product
from pathlib import Path

from tests.services.process import HOST, Unavailable

# Without a dot, or Azurite takes what is before it for an account.
NAME = "evac-store"
_A, _AAAA = 1, 28


class Gone(IntEnum):
    """How a name server says that it does not know, as the answer's code; or it says nothing."""

    SERVFAIL = 2
    NXDOMAIN = 3
    SILENCE = -1


class Names:
    """Knows `NAME`, which is this machine, until told otherwise.

    Attributes:
        gone: What it says instead; None while it knows.
        asked: How often it was asked for an address so far.
    """

    def __init__(self) -> None:
        self.gone: Gone | None = None
        self.asked = 0
        self._socket, self.host = _bound()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        """Let its thread end."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"", (self.host, 53))
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            query, client = self._socket.recvfrom(4096)
            if not query:
                return
            if (answer := self._answer(query)) is not None:
                self._socket.sendto(answer, client)

    def _answer(self, query: bytes) -> bytes | None:
        end = query.index(b"\0", 12) + 1
        question = query[12 : end + 4]
        (kind,) = struct.unpack("!H", query[end : end + 2])
        self.asked += kind == _A
        gone = self.gone
        if gone is Gone.SILENCE:
            return None
        if gone is None and question[:end].rstrip(b"\0")[1 : len(NAME) + 1] != NAME.encode():
            gone = Gone.NXDOMAIN
        address = b""
        if gone is None and kind == _A:
            # The name of the question, one hour, four bytes.
            address = b"\xc0\x0c" + struct.pack("!HHIH", _A, 1, 3600, 4) + socket.inet_aton(HOST)
        flags = 0x8180 | (gone or 0)
        head = query[:2] + struct.pack("!HHHHH", flags, 1, 1 if address else 0, 0, 0)
        return head + question + address


@contextmanager
def names() -> Iterator[Names]:
    """One until the block ends.

    Raises:
        Unavailable: Nobody may listen on port 53 here.
    """
    made = Names()
    try:
        yield made
    finally:
        made.close()


def asking(server: Names, folder: Path) -> Sequence[str]:
    """What to put before a command so that it resolves names by that server alone.

    Raises:
        Unavailable: This machine gives no mount namespaces, or has nothing to mount over.
    """
    if shutil.which("unshare") is None:
        raise Unavailable("no unshare here")
    (folder / "resolv.conf").write_text(
        f"nameserver {server.host}\nsearch .\noptions timeout:1 attempts:1\n"
    )
    (folder / "nsswitch.conf").write_text("hosts: files dns\n")
    mounts = "\n".join(
        f'[ ! -e /etc/{name} ] || mount --bind "{folder}/{name}" /etc/{name} || exit 125'
        for name in ("resolv.conf", "nsswitch.conf")
    )
    before = ("unshare", "--mount", "--propagation", "private", "sh", "-c", f'{mounts}\nexec "$@"')
    tried = subprocess.run([*before, "sh", "true"], capture_output=True, text=True, check=False)
    if tried.returncode or not os.path.exists("/etc/resolv.conf"):
        raise Unavailable(f"no mount namespace of our own: {tried.stderr.strip()}")
    return (*before, "sh")


def _bound() -> tuple[socket.socket, str]:
    why: OSError | None = None
    for third, fourth in product((83, 84), range(1, 255)):
        host, bound = f"127.53.{third}.{fourth}", socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            bound.bind((host, 53))
        except OSError as error:
            bound.close()
            why = error
            if isinstance(error, PermissionError):
                break
        else:
            return bound, host
    raise Unavailable(f"no name server of our own: {why}")

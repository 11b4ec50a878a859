"""Machines of a network of their own: namespaces on a bridge, each of which can be cut off.

All of it is inside namespaces: the machine that runs the tests gets no address, no route and no link.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from secrets import token_hex

from tests.services.process import Unavailable

INTERFACE = "eth0"
_NET = "10.201.7"


class Network:
    """Machines on one switch; see `network`."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)
        self._mark = f"evac-{token_hex(3)}"
        self._hub = f"{self._mark}-hub"

    def address(self, name: str) -> str:
        """IPv4 address of a machine."""
        return f"{_NET}.{self._names.index(name) + 1}"

    def on(self, name: str) -> list[str]:
        """What to put before a command to run it there; the process is the command's own."""
        return ["ip", "netns", "exec", self._space(name)]

    def cut(self, name: str) -> None:
        """Pull its cable: nothing reaches it, nothing comes from it, and nobody is told."""
        self._plug(name, "down")

    def heal(self, name: str) -> None:
        """Plug it in again."""
        self._plug(name, "up")

    def open(self) -> None:
        """Make it all."""
        _ip("netns", "add", self._hub)
        _ip("-n", self._hub, "link", "add", "switch", "type", "bridge")
        _ip("-n", self._hub, "link", "set", "switch", "up")
        for name in self._names:
            space = self._space(name)
            _ip("netns", "add", space)
            pair = ["type", "veth", "peer", "name", INTERFACE, "netns", space]
            _ip("-n", self._hub, "link", "add", f"to-{name}", *pair)
            _ip("-n", self._hub, "link", "set", f"to-{name}", "master", "switch", "up")
            _ip("-n", space, "address", "add", f"{self.address(name)}/24", "dev", INTERFACE)
            _ip("-n", space, "link", "set", INTERFACE, "up")
            _ip("-n", space, "link", "set", "lo", "up")

    def close(self) -> None:
        """Take it down, as far as it was made."""
        for space in (*map(self._space, self._names), self._hub):
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)

    def _space(self, name: str) -> str:
        return f"{self._mark}-{name}"

    def _plug(self, name: str, way: str) -> None:
        _ip("-n", self._hub, "link", "set", f"to-{name}", way)


@contextmanager
def network(*names: str) -> Iterator[Network]:
    """A machine for each of *names*, until the block ends.

    Raises:
        Unavailable: This machine cannot make namespaces; says why.
    """
    if os.geteuid() != 0:
        raise Unavailable("network namespaces want root")
    if shutil.which("ip") is None:
        raise Unavailable("no ip here: apt install iproute2")
    made = Network(names)
    try:
        try:
            made.open()
        except subprocess.CalledProcessError as error:
            said = error.stderr.decode(errors="replace").strip()
            raise Unavailable(f"{' '.join(error.cmd)}: {said}") from error
        yield made
    finally:
        made.close()


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], capture_output=True, check=True)

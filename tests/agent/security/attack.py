"""A hostile process: somebody else's uid, this test's code, and only what it can open itself."""

import json
import os
import socket
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from evac.wire import (
    MAX_PACKET,
    PROTOCOL,
    Hello,
    Message,
    Packet,
    Register,
    Registered,
    decode,
    encode,
)

NOBODY = 65534


def as_user(uid: int, attack: Callable[[], Any], pipe: tuple[int, int] | None = None) -> Any:
    """Run *attack* in a forked process of *uid*, without groups; what it returns, as JSON has it.

    Args:
        pipe: By which it tells; a new one by default.
    """
    ours, theirs = pipe or os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(ours)
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            with os.fdopen(theirs, "w") as told:
                json.dump(attack(), told)
            status = 0
        except BaseException:  # noqa: BLE001 - it ends in the child's exit status
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(theirs)
    with os.fdopen(ours) as told:
        answer = told.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, "the attack itself failed; see stderr"
    return json.loads(answer)


@contextmanager
def as_long_as(uid: int, attack: Callable[[], object]) -> Iterator[None]:
    """What *attack* returns stands, in a process of *uid*, until the block ends."""
    over_r, over_w = os.pipe()

    def stand() -> bool:
        held = attack()
        if os.fork() == 0:
            # Nothing of it but what was held: the reader of the answer waits for its end.
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, told[1])
            os.close(over_w)
            os.read(over_r, 1)
            os._exit(0 if held else 1)
        return True

    told = os.pipe()
    try:
        as_user(uid, stand, told)
        yield
    finally:
        os.close(over_r)
        os.close(over_w)


class Line:
    """A blocking connection that says whatever it is told to."""

    def __init__(self, path: str, *, hello: bool = True) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(20.0)
        self.sock.connect(path)
        self._id = 0
        if hello:
            self.ask(Hello(version=PROTOCOL, client="hostile"))

    def ask(self, message: Message) -> Message:
        """Its answer; fds that come with it are closed."""
        self._id += 1
        self.sock.send(encode(message, id=self._id))
        while (packet := self.receive()) is not None:
            if packet.re == self._id or packet.re is None:
                return packet.message
        raise ConnectionResetError

    def receive(self) -> Packet | None:
        """The next packet; None where the daemon has hung up."""
        try:
            data, fds, _, _ = socket.recv_fds(self.sock, MAX_PACKET + 1, 16)
        except ConnectionResetError:
            return None
        for fd in fds:
            os.close(fd)
        return decode(data) if data else None

    def register(self, job: str, **more: Any) -> Message:
        """Come on board, or not."""
        return self.ask(Register(job=job, rank=more.pop("rank", 0), world=1, **more))

    def aboard(self, job: str, **more: Any) -> "Line":
        """The same, and it has to work."""
        answer = self.register(job, **more)
        assert isinstance(answer, Registered), answer
        return self

    def close(self) -> None:
        self.sock.close()


def refused(action: Callable[[], object]) -> str:
    """The name of the error that *action* ends with; "" where it goes through."""
    try:
        action()
    except OSError as error:
        return type(error).__name__
    return ""

"""One connection's protocol: which word may come when, and through which door."""

from enum import StrEnum
from typing import Protocol

from evac.errors import ProtocolError
from evac.wire import (
    PROTOCOL,
    Acquire,
    Adopt,
    AskStatus,
    Cancel,
    Done,
    Drain,
    Drill,
    HandBack,
    Hello,
    Leave,
    Message,
    Packet,
    Pin,
    Refuse,
    Register,
    Release,
    Reserve,
    Save,
    Staged,
    Welcome,
    decode,
    encode,
)
from evacd.workloads.job import Workload
from evacd.workloads.link import Link
from evacd.workloads.peer import Peer


class Door(StrEnum):
    """Which socket a connection came through."""

    WORKLOAD = "workload"
    ADMIN = "admin"


class Stage(StrEnum):
    """How far a connection has come."""

    SILENT = "silent"
    GREETED = "greeted"
    ABOARD = "aboard"


# What changes something for the whole node.
ORDERS = (Drain, Cancel, Drill)
# Who may say what when. What drains a node is unknown at the workloads' door: a container's
# root has uid 0 too, and only the file mode of the other door keeps it out.
WORDS: dict[tuple[Door, Stage], frozenset[type[Message]]] = {
    (Door.WORKLOAD, Stage.SILENT): frozenset({Hello}),
    (Door.WORKLOAD, Stage.GREETED): frozenset({Register, AskStatus, Save, Pin}),
    (Door.WORKLOAD, Stage.ABOARD): frozenset(
        {Reserve, Acquire, Staged, Release, HandBack, Adopt, Done, Leave, AskStatus, Save, Pin}
    ),
    (Door.ADMIN, Stage.SILENT): frozenset({Hello}),
    (Door.ADMIN, Stage.GREETED): frozenset({AskStatus, Drain, Cancel, Drill}),
    (Door.ADMIN, Stage.ABOARD): frozenset(),
}
_FROM_WORKLOADS = WORDS[Door.WORKLOAD, Stage.GREETED] | WORDS[Door.WORKLOAD, Stage.ABOARD]
_FROM_ADMINS = WORDS[Door.ADMIN, Stage.GREETED]


class Desk(Protocol):
    """Where a session takes what was said; answers by `Session.reply`."""

    def welcome(self) -> Welcome:
        """The daemon's half of the hello, in its own version."""
        ...

    def take(
        self, session: "Session", message: Message, re: int | None, fd: int | None = None
    ) -> None:
        """One message that may be said at this point; the fd is closed when this returns."""
        ...

    def denied(self, session: "Session", what: str, reason: str) -> None:
        """A peer was refused something that somebody else should know of."""
        ...

    def gone(self, session: "Session", reason: str) -> None:
        """The connection is closed; *reason* is "" where the peer closed it."""
        ...


class Session:
    """One connection; *opened* is when it came, in monotonic seconds."""

    def __init__(
        self, link: Link, door: Door, peer: Peer, desk: Desk, *, opened: float, barred: str = ""
    ) -> None:
        """Begin.

        Args:
            barred: Why its other end may give no orders; "" where it may.
        """
        self._barred = barred
        self.link = link
        self.door = door
        self.peer = peer
        self.opened = opened
        self.stage = Stage.SILENT
        self.workload: Workload | None = None
        self._desk = desk

    def reply(self, message: Message, re: int | None = None, fd: int | None = None) -> None:
        """Answer a request, or say something unasked."""
        self.link.send(encode(message, re=re), fd)

    def refuse(self, reason: str, re: int | None = None) -> None:
        """Not done, and why."""
        self.reply(Refuse(reason=reason[:1024]), re)

    def deny(self, what: str, reason: str, re: int | None = None) -> None:
        """The same, and it is counted, and logged as often as is good."""
        self._desk.denied(self, what, reason)
        self.refuse(reason, re)

    def received(self, packet: bytes, fd: int | None = None) -> None:
        """See `Receiver`."""
        try:
            said = decode(packet)
            if (fd is not None) != isinstance(said.message, HandBack):
                raise ProtocolError(_fds_of(said.message, fd))
            problem = self._problem(said.message)
        except ProtocolError as error:
            self.link.drop(error.reason)
            return
        if problem:
            self.refuse(problem, said.id)
        elif self._barred and isinstance(said.message, ORDERS):
            self.deny(said.message.type, self._barred, said.id)
        elif isinstance(said.message, Hello):
            self._greet(said.message, said)
        else:
            self._desk.take(self, said.message, said.id, fd)

    def ended(self, reason: str) -> None:
        """See `Receiver`."""
        self._desk.gone(self, reason)

    def _greet(self, hello: Hello, said: Packet) -> None:
        self.stage = Stage.GREETED
        welcome = self._desk.welcome()
        # The lower of both versions is spoken; a newer peer knows how.
        version = min(hello.version, PROTOCOL)
        answer = Welcome(
            version=version, daemon=welcome.daemon, node=welcome.node, boot=welcome.boot
        )
        self.reply(answer, said.id)

    def _problem(self, message: Message) -> str:
        """Why this may not be said here and now; "" where it may.

        Raises:
            ProtocolError: It may never be said so.
        """
        kind = type(message)
        if kind in WORDS[self.door, self.stage]:
            return ""
        if self.stage is Stage.SILENT:
            raise ProtocolError(f"{kind.type} before hello")
        if kind is Hello:
            raise ProtocolError("hello was said already")
        if self.door is Door.WORKLOAD and kind in _FROM_ADMINS:
            return f"{kind.type} is unknown on this socket: it is said on the admin socket"
        if self.door is Door.ADMIN and kind in _FROM_WORKLOADS:
            return f"{kind.type} is unknown on the admin socket: it is said on the workloads' one"
        if kind is Register:
            return "this connection has registered already"
        if kind in _FROM_WORKLOADS:
            return f"{kind.type} before register"
        raise ProtocolError(f"{kind.type} is said by the daemon alone")


def _fds_of(message: Message, fd: int | None) -> str:
    if fd is None:
        return f"{message.type} came without its fd"
    return f"{message.type} came with fds, which it does not carry"

"""What is said on one connection, without the socket: packets in, facts out, for both shells.

::

    hello -> welcome -> register -> registered -> hand-back ... -> aboard
                                                                      |
                                       requests and their answers, orders, turns

The shell sends what `begin`, `ask` and a `Heard` give it, and hands over what it receives.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import count
from typing import Generic, Protocol, TypeVar

from evac.errors import ProtocolError
from evac.wire import (
    PROTOCOL,
    Accepted,
    Adopted,
    HandBack,
    Hello,
    Lent,
    Message,
    Refuse,
    Register,
    Registered,
    Slot,
    Status,
    Welcome,
    decode,
    encode,
)

# When nobody answers: seconds until the first try that follows, and between two at most.
FIRST_RETRY, LAST_RETRY = 1.0, 15.0
# A daemon that accepts and then says nothing is as good as none.
HANDSHAKE_SECONDS = 10.0
_WITH_FD = (Slot, Lent, Adopted, Status)

_Who = TypeVar("_Who", bound=Hashable)


class Returning(Protocol):
    """Who has slots that a new daemon should have back."""

    def handing(self) -> Sequence[tuple[HandBack, int]]:
        """What to say of each, and its fd, which stays theirs; the last one says so."""
        ...


class Unwelcome(Exception):
    """The daemon does not take us aboard; the text says why. The connection is of no more use."""


class Aboard(Enum):
    """How we came on board."""

    ANEW = "with nothing"
    RESUMED = "with all that was handed back"


@dataclass(frozen=True)
class Heard(Generic[_Who]):
    """One packet, understood.

    Attributes:
        message: What the daemon said.
        asker: Who asked for it; None where nobody did.
        replies: To be sent at once, with an fd each or None.
        aboard: This packet took us on board.
        ours: It is nobody else's to hear: said to this conversation itself, or too late.
        kept_out: Why a slot that was handed back is none any more.
    """

    message: Message
    asker: _Who | None = None
    replies: tuple[tuple[bytes, int | None], ...] = ()
    aboard: Aboard | None = None
    ours: bool = False
    kept_out: str = ""


@dataclass
class Talk(Generic[_Who]):
    """One connection's conversation.

    Attributes:
        register: Who we are.
        returning: Who has slots of before; None for nobody.
        aboard: The daemon has this workload on board.
        welcome: Its half of the hello; None before it.
        waiting: Who waits for an answer, by the request's number.
    """

    register: Register
    returning: Returning | None = None
    aboard: bool = False
    welcome: Welcome | None = None
    waiting: dict[int, _Who] = field(default_factory=dict)
    # One call, so that a signal handler in between gets another one.
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))
    _greeting: int = 0
    _boarding: int = 0
    _handed: set[int] = field(default_factory=set)
    _resumed: bool = True

    def begin(self) -> bytes:
        """The first packet."""
        self._greeting = next(self._numbers)
        return encode(Hello(version=PROTOCOL, client="evac"), id=self._greeting)

    def ask(self, message: Message, asker: _Who) -> bytes:
        """The packet of a request; each answer is given to *asker*."""
        number = next(self._numbers)
        packet = encode(message, id=number)
        self.waiting[number] = asker
        return packet

    def take(self, packet: bytes, fds: int) -> "Heard[_Who]":
        """Understand what came with so many fds.

        Raises:
            ProtocolError: It is not the protocol.
            Unwelcome: We are not wanted, or not any more.
        """
        got = decode(packet)
        message = got.message
        expected = 1 if isinstance(message, _WITH_FD) else 0
        if fds != expected:
            raise ProtocolError(f"{message.type} came with {fds} fds, expected {expected}")
        if got.re is None:
            if isinstance(message, Refuse) and message.fatal:
                raise Unwelcome(_unexpected(message))
            return Heard(message)
        if got.re == self._greeting:
            return self._greeted(message)
        if got.re == self._boarding:
            return self._boarded(message)
        if got.re in self._handed:
            return self._taken_back(got.re, message)
        # A reservation is answered slot by slot, and so is an adoption.
        goes_on = isinstance(message, Lent) or (isinstance(message, Slot) and not message.last)
        asker = (self.waiting.get if goes_on else self.waiting.pop)(got.re, None)
        return Heard(message, asker, ours=asker is None)

    def _greeted(self, message: Message) -> "Heard[_Who]":
        if not isinstance(message, Welcome):
            raise Unwelcome(_unexpected(message))
        self.welcome, self._greeting, self._boarding = message, 0, next(self._numbers)
        resume = self.returning is not None and bool(self.returning.handing())
        packet = encode(replace(self.register, resume=resume), id=self._boarding)
        return Heard(message, replies=((packet, None),), ours=True)

    def _boarded(self, message: Message) -> "Heard[_Who]":
        if not isinstance(message, Registered):
            raise Unwelcome(_unexpected(message))
        self._boarding = 0
        replies: list[tuple[bytes, int | None]] = []
        for one, fd in self.returning.handing() if self.returning is not None else ():
            number = next(self._numbers)
            self._handed.add(number)
            replies.append((encode(one, id=number), fd))
        self.aboard = not replies
        return Heard(message, replies=tuple(replies), aboard=Aboard.ANEW if self.aboard else None)

    def _taken_back(self, number: int, message: Message) -> "Heard[_Who]":
        self._handed.discard(number)
        self._resumed = self._resumed and isinstance(message, Accepted)
        self.aboard = not self._handed
        how = Aboard.RESUMED if self._resumed else Aboard.ANEW
        why = message.reason if isinstance(message, Refuse) else ""
        return Heard(message, aboard=how if self.aboard else None, ours=True, kept_out=why)


def _unexpected(message: Message) -> str:
    if isinstance(message, Refuse):
        return f"evacd refused: {message.reason}"
    return f"evacd answered with {message.type!r}"

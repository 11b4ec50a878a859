"""What is said on one connection, without the socket: packets in, facts out, for any shell.

::

    hello -> welcome -> register -> registered -> requests and their answers, orders, turns

The shell sends what `begin`, `ask` and a `Heard` give it, and hands over what it receives.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from evac.errors import ProtocolError
from evac.wire import (
    PROTOCOL,
    Hello,
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
_WITH_FD = (Slot, Status)

_Who = TypeVar("_Who", bound=Hashable)


class Unwelcome(Exception):
    """The daemon does not take us aboard; the text says why. The connection is of no more use."""


@dataclass(frozen=True)
class Heard(Generic[_Who]):
    """One packet, understood.

    Attributes:
        message: What the daemon said.
        asker: Who asked for it; None where nobody did.
        reply: To be sent at once; empty where there is nothing to say.
        aboard: This packet took us aboard.
    """

    message: Message
    asker: _Who | None = None
    reply: bytes = b""
    aboard: bool = False


@dataclass
class Talk(Generic[_Who]):
    """One connection's conversation.

    Attributes:
        register: Who we are.
        aboard: The daemon has this workload on board.
        welcome: Its half of the hello; None before it.
        waiting: Who waits for an answer, by the request's number.
    """

    register: Register
    aboard: bool = False
    welcome: Welcome | None = None
    waiting: dict[int, _Who] = field(default_factory=dict)
    _last: int = 0
    _greeting: int = 0
    _boarding: int = 0

    def begin(self) -> bytes:
        """The first packet."""
        self._greeting = self._next()
        return encode(Hello(version=PROTOCOL, client="evac"), id=self._greeting)

    def ask(self, message: Message, asker: _Who) -> bytes:
        """The packet of a request; each answer is given to *asker*."""
        packet = encode(message, id=self._last + 1)
        self.waiting[self._next()] = asker
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
        # A reservation is answered slot by slot.
        goes_on = isinstance(message, Slot) and not message.last
        asker = (self.waiting.get if goes_on else self.waiting.pop)(got.re, None)
        return Heard(message, asker)

    def _greeted(self, message: Message) -> "Heard[_Who]":
        if not isinstance(message, Welcome):
            raise Unwelcome(_unexpected(message))
        self.welcome, self._greeting, self._boarding = message, 0, self._next()
        return Heard(message, reply=encode(self.register, id=self._boarding))

    def _boarded(self, message: Message) -> "Heard[_Who]":
        if not isinstance(message, Registered):
            raise Unwelcome(_unexpected(message))
        self._boarding, self.aboard = 0, True
        return Heard(message, aboard=True)

    def _next(self) -> int:
        self._last += 1
        return self._last


def _unexpected(message: Message) -> str:
    if isinstance(message, Refuse):
        return f"evacd refused: {message.reason}"
    return f"evacd answered with {message.type!r}"

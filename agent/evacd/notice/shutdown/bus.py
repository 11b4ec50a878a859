"""The system bus, as far as the shutdown path needs it: calls, properties, signals.

dbus-fast speaks the protocol (pure asyncio, no dependency of its own, 2.4 MiB of RSS); its
proxies and introspection stay unused, because five calls do not need them. What it raises
is translated here and seen nowhere else.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from dbus_fast import AuthError, BusType, InvalidAddressError, Message, MessageType, Variant
from dbus_fast.aio import MessageBus

# A bus on this machine answers in milliseconds, or it hangs.
CALL_SECONDS = 2.0

DAEMON = "org.freedesktop.DBus"
PROPERTIES = "org.freedesktop.DBus.Properties"


@dataclass(frozen=True)
class Reply:
    """What a method returned.

    Attributes:
        fds: Came with it; whoever takes the reply owns them.
    """

    body: Sequence[Any]
    fds: tuple[int, ...] = ()


@dataclass(frozen=True)
class Refused:
    """The other side said no.

    Attributes:
        error: Its D-Bus error name: ``org.freedesktop.DBus.Error.AccessDenied``.
    """

    error: str
    text: str

    @property
    def reason(self) -> str:
        """For people, in one line."""
        short = self.error.rpartition(".")[2]
        return f"{short}: {self.text}" if self.text else short


@dataclass(frozen=True)
class Broken:
    """There is no bus, or it went away, or it does not answer."""

    reason: str


Answer: TypeAlias = Reply | Refused | Broken
Hear: TypeAlias = Callable[[str, Sequence[Any]], None]


class Bus:
    """One connection; made by `connected`."""

    def __init__(self, bus: MessageBus) -> None:
        self._bus = bus

    async def call(
        self,
        destination: str,
        path: str,
        member: str,
        *,
        interface: str = "",
        signature: str = "",
        body: Sequence[Any] = (),
    ) -> Answer:
        """One method call; ends within `CALL_SECONDS`.

        Args:
            interface: The same as *destination* where it is "".
        """
        message = Message(
            destination=destination,
            path=path,
            interface=interface or destination,
            member=member,
            signature=signature,
            body=list(body),
        )
        try:
            async with asyncio.timeout(CALL_SECONDS):
                reply = await self._bus.call(message)
        except TimeoutError:
            return Broken(f"{destination} does not answer within {CALL_SECONDS:g} s")
        except (EOFError, OSError) as error:
            return Broken(f"the bus went away: {type(error).__name__}")
        for fd in reply.unix_fds:
            # It comes inheritable, and a child that holds a lock would keep it for ever.
            os.set_inheritable(fd, False)
        if reply.message_type is MessageType.ERROR:
            text = reply.body[0] if reply.body and isinstance(reply.body[0], str) else ""
            return Refused(str(reply.error_name), text)
        return Reply(reply.body, tuple(reply.unix_fds))

    async def read(self, destination: str, path: str, interface: str, name: str) -> Answer:
        """One property; its value is the reply's only item."""
        answer = await self.call(
            destination, path, "Get", interface=PROPERTIES, signature="ss", body=[interface, name]
        )
        if isinstance(answer, Reply):
            value = answer.body[0] if answer.body else None
            return Reply([value.value if isinstance(value, Variant) else value])
        return answer

    async def listen(self, rule: str) -> Answer:
        """Have the bus send the signals that match *rule*."""
        return await self.call(
            DAEMON, "/org/freedesktop/DBus", "AddMatch", signature="s", body=[rule]
        )

    def on_signal(self, hear: Hear) -> None:
        """Call *hear* with member and body of every signal, in the order in which they come."""

        def handle(message: Message) -> None:
            if message.message_type is MessageType.SIGNAL:
                hear(str(message.member), message.body)

        self._bus.add_message_handler(handle)

    async def gone(self) -> None:
        """Until the connection ends, however it ends."""
        ended = self._bus.wait_for_disconnect()  # type: ignore[no-untyped-call]  # theirs
        try:
            # Shielded: the library's one future would be cancelled with whoever waits for it.
            await asyncio.shield(ended)
        except (EOFError, OSError):
            return


@asynccontextmanager
async def connected(address: str | None) -> AsyncIterator[Bus | Broken]:
    """The bus, until the block ends; or why there is none.

    Args:
        address: A D-Bus address; None is the system bus, DBUS_SYSTEM_BUS_ADDRESS honoured.
    """
    bus: MessageBus | None = None
    found: Bus | Broken
    try:
        bus = MessageBus(bus_address=address, bus_type=BusType.SYSTEM, negotiate_unix_fd=True)
        async with asyncio.timeout(CALL_SECONDS):
            await bus.connect()
        found = Bus(bus)
    except TimeoutError:
        found = Broken("the bus does not answer")
    except OSError as error:
        found = Broken(error.strerror or type(error).__name__)
    except (AuthError, InvalidAddressError, EOFError) as error:
        found = Broken(str(error) or type(error).__name__)
    try:
        yield found
    finally:
        if isinstance(found, Bus) and bus is not None:
            if bus.connected:
                bus.disconnect()
            await found.gone()

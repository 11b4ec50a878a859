"""A private system bus, and a small logind on it that keeps its promises.

It hands out delay locks as pipe ends, announces a shutdown, and lets it go on when every lock
is closed or the delay has passed, as systemd's logind does.
"""

import asyncio
import os
import shutil
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from dbus_fast import DBusError, Message, MessageType, PropertyAccess
from dbus_fast.aio import MessageBus
from dbus_fast.annotations import DBusSignature
from dbus_fast.service import ServiceInterface, dbus_method, dbus_property, dbus_signal

from tests.agent.notice.hearing import LIMIT

DBusStr = Annotated[str, DBusSignature("s")]
DBusBool = Annotated[bool, DBusSignature("b")]
DBusTime = Annotated[int, DBusSignature("t")]
DBusFd = Annotated[int, DBusSignature("h")]

_CONFIG = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type>
  <listen>unix:path={path}</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/>
    <allow own="*"/>
    <allow send_destination="*"/>
    <allow receive_sender="*"/>
  </policy>
</busconfig>
"""

HAS_DBUS = shutil.which("dbus-daemon") is not None


class PrivateBus:
    """A dbus-daemon of one's own, which can be stopped and started on the same address."""

    def __init__(self, directory: Path) -> None:
        self._socket = directory / "bus"
        self._config = directory / "bus.conf"
        self.address = f"unix:path={self._socket}"
        self._process: Process | None = None

    async def start(self) -> None:
        text = _CONFIG.format(path=self._socket)
        await asyncio.to_thread(self._config.write_text, text)
        self._process = await asyncio.create_subprocess_exec(
            "dbus-daemon",
            f"--config-file={self._config}",
            "--nofork",
            "--nopidfile",
            "--nosyslog",
            "--print-address",
            stdout=PIPE,
        )
        assert self._process.stdout is not None
        async with asyncio.timeout(LIMIT):
            assert await self._process.stdout.readline()

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            await process.communicate()


@dataclass
class Lock:
    """One lock that was handed out."""

    what: str
    who: str
    why: str
    mode: str
    closed: asyncio.Event = field(default_factory=asyncio.Event)


class _Manager(ServiceInterface):
    def __init__(self, logind: "FakeLogind") -> None:
        super().__init__("org.freedesktop.login1.Manager")
        self._logind = logind

    @dbus_method()
    def Inhibit(self, what: DBusStr, who: DBusStr, why: DBusStr, mode: DBusStr) -> DBusFd:
        return self._logind.inhibit(what, who, why, mode)

    @dbus_property(access=PropertyAccess.READ)
    def InhibitDelayMaxUSec(self) -> DBusTime:
        return round(self._logind.delay_seconds * 1e6)

    @dbus_property(access=PropertyAccess.READ)
    def PreparingForShutdown(self) -> DBusBool:
        return self._logind.preparing

    @dbus_signal()
    def PrepareForShutdown(self, start: bool) -> DBusBool:
        return start


class FakeLogind:
    """org.freedesktop.login1 on a private bus; it can die and return."""

    def __init__(self, address: str, *, delay_seconds: float = 5.0) -> None:
        self._address = address
        self.delay_seconds = delay_seconds
        self.refuse = ""
        self.preparing = False
        self.locks: list[Lock] = []
        self._bus: MessageBus | None = None
        self._manager: _Manager | None = None
        self._ends: dict[int, Lock] = {}
        self._news = asyncio.Event()

    async def start(self) -> None:
        self._bus = await MessageBus(self._address, negotiate_unix_fd=True).connect()
        self._manager = _Manager(self)
        self._bus.export("/org/freedesktop/login1", self._manager)
        await self._bus.request_name("org.freedesktop.login1")

    async def die(self) -> None:
        bus, self._bus = self._bus, None
        if bus is not None:
            if bus.connected:
                bus.disconnect()
            with suppress(EOFError, OSError):
                await bus.wait_for_disconnect()  # type: ignore[no-untyped-call]  # theirs
        for end in list(self._ends):
            self._drop(end)

    def inhibit(self, what: str, who: str, why: str, mode: str) -> int:
        if self.refuse:
            raise DBusError(self.refuse, "Permission denied")
        if self.preparing:
            raise DBusError(
                "org.freedesktop.login1.OperationInProgress", "The operation is in progress"
            )
        ours, theirs = os.pipe()
        lock = Lock(what, who, why, mode)
        self.locks.append(lock)
        self._ends[ours] = lock

        loop = asyncio.get_running_loop()
        loop.add_reader(ours, self._drop, ours)
        # The message has its own copy once it is sent.
        loop.call_later(0.2, os.close, theirs)
        self._news.set()
        return theirs

    @property
    def held(self) -> list[Lock]:
        return [lock for lock in self.locks if not lock.closed.is_set()]

    async def until_held(self, count: int, *, of: int = 0) -> None:
        """Wait until exactly so many locks are held, of so many or more ever handed out."""
        async with asyncio.timeout(LIMIT):
            while len(self.held) != count or len(self.locks) < of:
                self._news.clear()
                await self._news.wait()

    def shut_down(self) -> None:
        """Announce it; `until_down` says when it would go on."""
        assert self._manager is not None
        self.preparing = True
        self._manager.PrepareForShutdown(True)

    async def until_down(self) -> bool:
        """Wait for the locks as logind does; whether they were let go before the delay."""
        try:
            async with asyncio.timeout(self.delay_seconds):
                for lock in self.held:
                    await lock.closed.wait()
        except TimeoutError:
            return False
        return True

    def call_off(self) -> None:
        assert self._manager is not None
        self.preparing = False
        self._manager.PrepareForShutdown(False)

    def say(self, signature: str, body: list[Any]) -> None:
        """Send a PrepareForShutdown signal of another shape."""
        assert self._bus is not None
        self._bus.send(
            Message(
                message_type=MessageType.SIGNAL,
                path="/org/freedesktop/login1",
                interface="org.freedesktop.login1.Manager",
                member="PrepareForShutdown",
                signature=signature,
                body=body,
            )
        )

    def _drop(self, end: int) -> None:
        lock = self._ends.pop(end, None)
        if lock is not None:
            lock.closed.set()
            self._news.set()
            asyncio.get_running_loop().remove_reader(end)
            os.close(end)


class _Systemd(ServiceInterface):
    def __init__(self) -> None:
        super().__init__("org.freedesktop.systemd1.Manager")
        self.state = "running"

    @dbus_property(access=PropertyAccess.READ)
    def SystemState(self) -> DBusStr:
        return self.state


class FakeSystemd:
    """org.freedesktop.systemd1, as far as its state."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._manager = _Systemd()
        self._bus: MessageBus | None = None

    @property
    def state(self) -> str:
        return self._manager.state

    @state.setter
    def state(self, state: str) -> None:
        self._manager.state = state

    async def start(self) -> None:
        self._bus = await MessageBus(self._address).connect()
        self._bus.export("/org/freedesktop/systemd1", self._manager)
        await self._bus.request_name("org.freedesktop.systemd1")

    async def stop(self) -> None:
        if self._bus is not None and self._bus.connected:
            self._bus.disconnect()
            await self._bus.wait_for_disconnect()  # type: ignore[no-untyped-call]  # theirs

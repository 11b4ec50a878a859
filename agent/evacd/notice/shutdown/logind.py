"""logind announces the machine's shutdown, and waits a little for whoever holds a delay lock.

Sources: systemd's docs/INHIBITOR_LOCKS.md and org.freedesktop.login1(5): `Inhibit` returns a
file descriptor that is the lock; `PrepareForShutdown(true)` begins a shutdown, `false` takes
it back; the delay ends at `InhibitDelayMaxUSec` (default 5 s) or when the last lock is
closed. ACPI shutdowns of a cloud (GCP, Azure, Yandex, OpenStack) arrive as the power key and
so here too. Read 2026-10.

The lock is what keeps the workloads alive while their state is moved: systemd stops their
units together with ours once it is gone. Without the lock the announcement is still heard,
only no time is promised after it; so a refused lock degrades the source and does not
silence it.
"""

import asyncio
import math
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import structlog

from evacd.clock import Clock
from evacd.facts import Cancelled, Confidence, Notice, Noticed, Probe, Quiet, Unknown
from evacd.notice.longpoll import Pace
from evacd.notice.shutdown.bus import Broken, Bus, Refused, Reply, connected

LOGIND = "org.freedesktop.login1"
PATH = "/org/freedesktop/login1"
MANAGER = "org.freedesktop.login1.Manager"
# logind's own default, where it does not tell.
DELAY_SECONDS = 5.0

_NO_BUS = (
    "is there a system bus? in a container mount /run/dbus/system_bus_socket; "
    "without systemd, leave the shutdown source out"
)
_NO_LOGIND = "is systemd-logind running? systemctl start systemd-logind"
_SIGNALS = (
    f"type='signal',sender='{LOGIND}',interface='{MANAGER}',member='PrepareForShutdown'",
    f"type='signal',sender='org.freedesktop.DBus',member='NameOwnerChanged',arg0='{LOGIND}'",
)

log = structlog.get_logger()


@dataclass(frozen=True)
class _Greeting:
    """How logind is at the beginning of a connection."""

    preparing: bool
    delay_seconds: float


class ShutdownSource:
    """One delay lock, and the announcement that it is there for."""

    name = "shutdown"

    def __init__(
        self,
        clock: Clock,
        *,
        address: str | None = None,
        most_seconds: float = math.inf,
        why: str = "moving staged state out of the machine",
        pace: Pace | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Make it ready; it connects to nothing yet.

        Args:
            address: A D-Bus address; None is the system bus.
            most_seconds: What the machine lasts at most once it shuts down. A cloud that
                presses the power key does not wait for logind's delay.
            why: Shown by ``systemd-inhibit --list``.
            jitter: Uniform in [0, 1), for the back-off.
        """
        self._clock = clock
        self._address = address
        self._most = most_seconds
        self._why = why
        self._pace = pace or Pace()
        self._jitter = jitter
        self._lock: int | None = None
        self._delay = DELAY_SECONDS
        self._notice: Notice | None = None
        self._degraded = ""

    @property
    def degraded(self) -> str:
        """Why shutdowns are heard but not delayed; "" where they are, or nothing is heard."""
        return self._degraded

    @property
    def locked(self) -> bool:
        """A shutdown would wait for `release`, or its delay."""
        return self._lock is not None

    async def release(self) -> None:
        """Let the shutdown go on: what could be moved is moved, or the order was cancelled.

        Does nothing while no shutdown is under way, so that the lock stands for the next.
        """
        if self._notice is not None:
            self._unlock()

    async def probe(self) -> Probe:
        """See `Source`. Takes no lock."""
        async with connected(self._address) as bus:
            if isinstance(bus, Broken):
                return Unknown(self.name, f"no system bus: {bus.reason}", _NO_BUS)
            greeting = await self._greet(bus)
            if isinstance(greeting, Unknown):
                return greeting
            self._delay = greeting.delay_seconds
            return self._judge(greeting.preparing)

    async def watch(self, tell: Callable[[Probe], None]) -> NoReturn:
        """See `Source`. Holds the lock meanwhile."""
        failures = 0
        try:
            while True:
                heard, why = await self._listen(tell)
                failures = 1 if heard else failures + 1
                self._degraded = ""
                tell(why)
                await asyncio.sleep(self._backoff(failures))
        finally:
            self._unlock()

    async def _listen(self, tell: Callable[[Probe], None]) -> tuple[bool, Unknown]:
        """One connection from beginning to end: whether it was heard, and why no longer."""
        async with connected(self._address) as bus:
            if isinstance(bus, Broken):
                return False, Unknown(self.name, f"no system bus: {bus.reason}", _NO_BUS)
            signals: asyncio.Queue[bool | None] = asyncio.Queue()

            def hear(member: str, body: Sequence[Any]) -> None:
                match member, list(body):
                    case "PrepareForShutdown", [bool(begins), *_]:
                        # In the moment it arrives; the lock's side can wait for the loop.
                        tell(self._judge(begins))
                        signals.put_nowait(begins)
                    case "NameOwnerChanged", [str(name), *_] if name == LOGIND:
                        signals.put_nowait(None)

            # Lock first, then signals, then the state: nothing can slip through in between.
            await self._lock_again(bus)
            bus.on_signal(hear)
            for rule in _SIGNALS:
                answer = await bus.listen(rule)
                if not isinstance(answer, Reply):
                    return False, Unknown(self.name, f"no signals: {answer.reason}", _NO_BUS)
            greeting = await self._greet(bus)
            if isinstance(greeting, Unknown):
                return False, greeting
            self._delay = greeting.delay_seconds
            if signals.empty():
                tell(self._judge(greeting.preparing))
            async with asyncio.TaskGroup() as tasks:
                follow = tasks.create_task(self._follow(bus, signals))
                gone = tasks.create_task(bus.gone())
                await asyncio.wait((follow, gone), return_when=asyncio.FIRST_COMPLETED)
                restarted = follow.done()
                follow.cancel()
                gone.cancel()
            if restarted:
                return True, Unknown(self.name, "logind went away or restarted", _NO_LOGIND)
            return True, Unknown(self.name, "the system bus went away", _NO_BUS)

    async def _follow(self, bus: Bus, signals: "asyncio.Queue[bool | None]") -> None:
        """Keep the lock as the signals ask for it, until logind goes."""
        while (begins := await signals.get()) is not None:
            if not begins:
                await self._lock_again(bus)

    async def _greet(self, bus: Bus) -> _Greeting | Unknown:
        preparing = await bus.read(LOGIND, PATH, MANAGER, "PreparingForShutdown")
        if not isinstance(preparing, Reply):
            return Unknown(self.name, f"no logind: {preparing.reason}", _NO_LOGIND)
        delay = await bus.read(LOGIND, PATH, MANAGER, "InhibitDelayMaxUSec")
        microseconds = delay.body[0] if isinstance(delay, Reply) else None
        match preparing.body[0], microseconds:
            case bool(state), int(number) if number >= 0:
                return _Greeting(state, number / 1e6)
            case bool(state), _:
                return _Greeting(state, DELAY_SECONDS)
        return Unknown(self.name, "PreparingForShutdown is no boolean", "is this systemd's logind?")

    async def _lock_again(self, bus: Bus) -> None:
        """Take a new lock; the old one is let go only then.

        logind keeps its locks over its own restart, so one that a running shutdown waits for
        must not be closed only because the bus or logind went away.
        """
        answer = await bus.call(
            LOGIND,
            PATH,
            "Inhibit",
            interface=MANAGER,
            signature="ssss",
            body=["shutdown", "evacd", self._why, "delay"],
        )
        before, self._degraded = self._degraded, ""
        match answer:
            case Reply(body=[int(index), *_], fds=fds) if 0 <= index < len(fds):
                for other in fds[:index] + fds[index + 1 :]:
                    os.close(other)
                self._unlock()
                self._lock = fds[index]
            case Refused() if self._lock is None or self._notice is None:
                self._unlock()
                self._degraded = (
                    f"no delay lock ({answer.reason}): a shutdown is heard but does not wait; "
                    "run evacd as root or allow org.freedesktop.login1.inhibit-delay-shutdown"
                )
                if self._degraded != before:
                    log.warning("shutdown.lock_refused", reason=answer.reason)
            case _ if self._lock is None:
                self._degraded = "no delay lock: logind gave no usable answer"

    def _unlock(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def _judge(self, preparing: bool) -> Probe:
        if not preparing:
            if self._notice is None:
                return Quiet(self.name)
            taken_back, self._notice = self._notice, None
            return Cancelled(self.name, taken_back.id, "the shutdown was called off")
        if self._notice is None:
            seen = self._clock.monotonic()
            # Nothing waits for who holds no lock: then no time is promised at all.
            left = min(self._delay, self._most) if self.locked else 0.0
            self._notice = Notice(
                source=self.name,
                kind="shutdown",
                id="shutdown:prepare",
                confidence=Confidence.STARTED,
                deadline=seen + left,
                seen=seen,
                detail=f"the system shuts down; delay {self._delay:g} s, "
                + ("held" if self.locked else "not held"),
            )
        return Noticed(self._notice)

    def _backoff(self, failures: int) -> float:
        doubled = math.ldexp(self._pace.backoff_first, min(failures - 1, 16))
        return min(self._pace.backoff_most, doubled) * (0.5 + 0.5 * self._jitter())

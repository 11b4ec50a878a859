"""Faults carried out: one set that every cloud's simulator uses as its `fault`."""

import asyncio
import random
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field

from aiohttp import hdrs, web

from evacd.clock import Clock, SystemClock
from evacd.notice.metadata import BODY_LIMIT
from evacd.notice.simulate.fault import GRAMMAR, KINDS, Fault, parse

__all__ = ["GRAMMAR", "KINDS", "Fault", "Faults", "parse"]

_STRIPPED = {"no-flavor": "Metadata-Flavor", "no-etag": hdrs.ETAG}
# Header names to take from the answer to the request that this task, the connection's, serves.
_stripped: ContextVar[tuple[str, ...]] = ContextVar("_stripped", default=())


@dataclass
class _Armed:
    """A fault in force, and how often it was met."""

    fault: Fault
    since: float
    met: int = 0
    seen: deque[float] = field(default_factory=deque)


class Faults:
    """The set in force; give it to a cloud as its `fault`, and `attach` it to its `app`.

    The first fault that a request meets decides; a fault that lets the true answer pass
    (slow, no-flavor) lets the later ones have their turn, too.
    """

    def __init__(
        self,
        faults: Iterable[Fault] = (),
        *,
        echo: Mapping[str, str] | None = None,
        clock: Clock | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """Make the set.

        Args:
            echo: Headers that the service puts on all its answers, errors included.
            chance: Uniform in [0, 1).
        """
        self._echo = dict(echo or {})
        self._clock = clock or SystemClock()
        self._chance = chance
        self._armed: list[_Armed] = []
        for fault in faults:
            self.add(fault)

    def add(self, fault: Fault) -> None:
        """Put it in force, after those that are."""
        self._armed.append(_Armed(fault, self._clock.monotonic()))

    def clear(self) -> None:
        """End all; what is being held back already stays so."""
        self._armed.clear()

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Those in force, used up ones included."""
        return tuple(each.fault for each in self._armed)

    def attach(self, app: web.Application) -> None:
        """Let it take headers from the true answers of *app*; before the app is served."""
        app.on_response_prepare.append(_strip)

    async def __call__(self, request: web.Request) -> web.StreamResponse | None:
        """An answer in place of the true one, or None to let that pass."""
        _stripped.set(())
        for armed in tuple(self._armed):
            if self._meets(armed, request):
                answer = await self._answer(armed.fault, request)
                if answer is not None:
                    return answer
        return None

    def _meets(self, armed: _Armed, request: web.Request) -> bool:
        fault, now = armed.fault, self._clock.monotonic()
        if fault.kind.startswith("hang-") and "wait_for_change" not in request.query:
            return False
        passed = now - armed.since
        over = fault.lasting is not None and passed >= fault.after + fault.lasting
        if passed < fault.after or over or not fault.matches(request.path):
            return False
        if fault.kind == "rate" and not _too_many(armed.seen, now, fault.argument):
            return False
        if fault.first is not None and armed.met >= fault.first:
            return False
        if fault.chance < 1.0 and self._chance() >= fault.chance:
            return False
        armed.met += 1
        return True

    async def _answer(self, fault: Fault, request: web.Request) -> web.StreamResponse | None:
        match fault.kind:
            case "status":
                return self._page(int(fault.argument))
            case "rate":
                return self._page(429)
            case "hang-503":
                await asyncio.sleep(fault.argument)
                return self._page(503)
            case "html":
                text = "<!DOCTYPE html><title>Welcome</title><p>Please log in."
                return web.Response(text=text, content_type="text/html")
            case "redirect":
                return web.Response(status=302, headers={"Location": "http://192.0.2.1/login"})
            case "empty":
                return self._value(b"")
            case "malformed":
                return self._value(b'{"Events": [{"EventId": ')
            case "garbage":
                return self._value(b"\x00\xff\xfe\x80TRUE")
            case "too-large":
                return self._value(b"TRUE " * (BODY_LIMIT // 4))
            case "truncated":
                return await self._cut(request)
            case "drip":
                return await self._drip(request)
            case "reset":
                return _reset(request)
            case "slow":
                await asyncio.sleep(fault.argument)
            case "never" | "hang-never":
                await asyncio.Event().wait()
            case _:
                _stripped.set((*_stripped.get(), _STRIPPED[fault.kind]))
        return None

    def _value(self, body: bytes) -> web.Response:
        """A 200 as the service gives it, but for its body."""
        headers = {"Content-Type": "text/plain", **self._echo}
        return web.Response(body=body, headers=headers)

    def _page(self, status: int) -> web.Response:
        return web.Response(
            status=status,
            text=f"<!DOCTYPE html><title>{status}</title><p>A fault that was asked for.\n",
            content_type="text/html",
            headers=self._echo,
        )

    async def _cut(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "64", **self._echo})
        await response.prepare(request)
        await response.write(b'TRUE{"action"')
        if request.transport is not None:
            request.transport.abort()
        return response

    async def _drip(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "60000", **self._echo})
        await response.prepare(request)
        try:
            while True:
                await response.write(b"x")
                await asyncio.sleep(0.02)
        except ConnectionError:
            return response


def _too_many(seen: deque[float], now: float, limit: float) -> bool:
    """More than *limit* in the last second; refused ones count, as they do at a cloud."""
    while seen and seen[0] <= now - 1.0:
        seen.popleft()
    seen.append(now)
    return len(seen) > limit


def _reset(request: web.Request) -> web.StreamResponse:
    transport = request.transport
    if transport is not None:
        end = transport.get_extra_info("socket")
        if end is not None:
            # To linger for no time at all makes the end an RST.
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
    return web.Response(status=500)


async def _strip(_: web.Request, response: web.StreamResponse) -> None:
    for name in _stripped.get():
        response.headers.popall(name, None)

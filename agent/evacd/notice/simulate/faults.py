"""What can be wrong with a metadata service, as one set that every cloud's simulator uses.

A fault is said in one line: ``KIND[=ARGUMENT][@PATH][,first=N][,after=S][,for=S][,chance=P]``.
``status=503@instance/preempted,first=3`` answers the first three requests for that key with
503. A path is a glob, against the whole path or its end; without one, every request counts.
"""

import asyncio
import fnmatch
import random
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MappingProxyType

from aiohttp import hdrs, web

from evacd.clock import Clock, SystemClock
from evacd.notice.metadata import BODY_LIMIT

# --- what is said -----------------------------------------------------------------------

KINDS: Mapping[str, str] = MappingProxyType(
    {
        "status": "answer with this status, as the service would (403, 404, 410, 429, 500, 503)",
        "html": "answer 200 with a page, as a captive portal does",
        "redirect": "answer 302 to another host",
        "empty": "answer 200 with nothing in it",
        "malformed": "answer 200 with the beginning of a JSON object",
        "garbage": "answer 200 with bytes that are no text",
        "too-large": "answer 200 with more than any client should read",
        "truncated": "break the connection in the middle of the body",
        "reset": "reset the connection before the answer",
        "drip": "send a byte now and then, for ever",
        "slow": "answer truly, so many seconds later",
        "never": "hold the connection and never answer",
        "rate": "answer 429 to what is more than so many requests in a second",
        "hang-503": "end hanging GETs with 503, so many seconds later (0)",
        "hang-never": "never end a hanging GET",
        "no-flavor": "answer truly, without the header Metadata-Flavor",
        "no-etag": "answer truly, without the header ETag",
    }
)
# Kinds that take a number; the default, or None where it must be given.
_ARGUMENTS: Mapping[str, float | None] = MappingProxyType(
    {"status": None, "slow": None, "rate": None, "hang-503": 0.0}
)
_STRIPPED = {"no-flavor": "Metadata-Flavor", "no-etag": hdrs.ETAG}
GRAMMAR = "KIND[=ARGUMENT][@PATH][,first=N][,after=SECONDS][,for=SECONDS][,chance=0..1]"


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong.

    Attributes:
        kind: Of `KINDS`.
        argument: A status, seconds, or requests per second, as the kind needs; else 0.
        path: Glob, against the whole path or its end.
        first: So many matching requests; None for all.
        after: Seconds from when the fault was set.
        lasting: Seconds from then; None for ever.
        chance: That a matching request meets it.
    """

    kind: str
    argument: float = 0.0
    path: str = "*"
    first: int | None = None
    after: float = 0.0
    lasting: float | None = None
    chance: float = 1.0

    def __post_init__(self) -> None:
        """Raise ValueError where it cannot be."""
        if self.kind not in KINDS:
            raise ValueError(f"expected a kind of fault ({', '.join(KINDS)}), not {self.kind!r}")
        if self.kind == "status" and not (
            200 <= self.argument <= 599 and self.argument == int(self.argument)
        ):
            raise ValueError(f"expected a status from 200 to 599, not {self.argument:g}")
        if self.kind == "rate" and self.argument < 1:
            raise ValueError(f"expected at least 1 request in a second, not {self.argument:g}")

    def matches(self, path: str) -> bool:
        """It concerns requests for *path*."""
        return fnmatch.fnmatchcase(path, self.path) or fnmatch.fnmatchcase(path, f"*/{self.path}")


def parse(text: str) -> Fault:
    """Read one line.

    Raises:
        ValueError: Says what was expected.
    """
    head, *options = text.split(",")
    head, _, path = head.partition("@")
    kind, given, argument = head.replace(":", "=", 1).partition("=")
    kind = kind.strip()
    values: dict[str, float] = {}
    for option in options:
        name, _, value = option.strip().partition("=")
        if name not in {"first", "after", "for", "chance"} or name in values:
            raise ValueError(f"expected {GRAMMAR}, not {option.strip()!r} in {text!r}")
        most = 1.0 if name == "chance" else 1e9
        values[name] = _number(value, name, most=most, whole=name == "first")
    if kind in KINDS and given and kind not in _ARGUMENTS:
        raise ValueError(f"{kind} takes no argument, not {argument!r}")
    default = _ARGUMENTS.get(kind, 0.0)
    if not given and default is None:
        raise ValueError(f"expected {kind}=NUMBER, not {text!r}")
    first = values.get("first")
    return Fault(
        kind=kind,
        argument=_number(argument, kind, most=1e9) if given else default or 0.0,
        path=path.strip() or "*",
        first=None if first is None else int(first),
        after=values.get("after", 0.0),
        lasting=values.get("for"),
        chance=values.get("chance", 1.0),
    )


def _number(text: str, name: str, *, most: float, whole: bool = False) -> float:
    kind = "whole number" if whole else "number"
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    # Not a number compares false, too.
    if not 0 <= number <= most or (whole and number != int(number)):
        raise ValueError(f"expected a {kind} from 0 to {most:g} for {name}, not {text!r}")
    return number


# Header names to take from the answer to the request that this task, the connection's, serves.
_stripped: ContextVar[tuple[str, ...]] = ContextVar("_stripped", default=())

# --- what is done -----------------------------------------------------------------------


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

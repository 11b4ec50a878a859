"""GCE's metadata service, as far as a preemption needs it, with a hand on the switch.

What is faithful: the required request header and its echo, the refusal of forwarded
requests, ETags, text values, 404 for unknown keys, and hanging GETs: query parameters only,
an ETag that is out of date answers at once, else the answer waits for the next change of the
key or the end of ``timeout_sec``; a service that stops ends them with 503. Source:
cloud.google.com/compute/docs/metadata/querying-metadata.
"""

import asyncio
import ipaddress
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

from aiohttp import web
from aiohttp.typedefs import Handler

BANNER = "evac simulator, not a metadata service"
ROOT = "/computeMetadata/v1/"
PREEMPTED = "instance/preempted"
KEYS: Mapping[str, str] = MappingProxyType(
    {
        PREEMPTED: "FALSE",
        "instance/id": "4520031799277581759",
        "instance/name": "evac-simulated",
        "instance/zone": "projects/1/zones/evac-simulated-a",
        "instance/maintenance-event": "NONE",
        "instance/scheduling/preemptible": "TRUE",
    }
)
_ECHO = {"Metadata-Flavor": "Google", "Server": "Metadata Server for VM (evac simulator)"}

Fault: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse | None]]


@dataclass(frozen=True)
class Seen:
    """One request as it came in.

    Attributes:
        target: Path and query.
        headers: By lower-case name.
    """

    method: str
    target: str
    headers: Mapping[str, str]


@dataclass
class _Value:
    text: str
    version: int = 1
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class GcpMetadata:
    """The service and its state; `app` is served by whoever made it.

    Attributes:
        fault: Asked first about every metadata request: a response goes out in place of the
            true one, None lets it pass.
        changed: Told (key, value) after each change.
        requests: The last thousand, oldest first.
    """

    def __init__(
        self,
        *,
        fault: Fault | None = None,
        changed: Callable[[str, str], None] | None = None,
    ) -> None:
        self.fault = fault
        self.changed = changed
        self.requests: deque[Seen] = deque(maxlen=1000)
        self._values = {key: _Value(text) for key, text in KEYS.items()}
        self._stopping = False
        self.app = web.Application()
        self.app.router.add_get(ROOT + "{key:.+}", self._guarded(self._get))
        self.app.router.add_post("/evac-simulator/{verb:preempt|clear}", self._control)
        self.app.on_shutdown.append(self._stop)

    def preempt(self) -> None:
        """Announce the preemption, as of now."""
        self.set(PREEMPTED, "TRUE")

    def clear(self) -> None:
        """Take it back; GCE never does."""
        self.set(PREEMPTED, "FALSE")

    def set(self, key: str, text: str) -> None:
        """Give *key* a value; nothing happens where it has it already."""
        value = self._values.setdefault(key, _Value(""))
        if value.text == text:
            return
        value.text = text
        value.version += 1
        self._wake(value)
        if self.changed is not None:
            self.changed(key, text)

    def _wake(self, value: _Value) -> None:
        value.changed.set()
        value.changed = asyncio.Event()

    def _guarded(self, handler: Handler) -> Handler:
        async def guarded(request: web.Request) -> web.StreamResponse:
            headers = {name.lower(): value for name, value in request.headers.items()}
            self.requests.append(Seen(request.method, request.path_qs, headers))
            if self.fault is not None and (wrong := await self.fault(request)) is not None:
                return wrong
            if request.headers.get("Metadata-Flavor") != "Google":
                return _page(403, "the request header Metadata-Flavor: Google is missing")
            if "X-Forwarded-For" in request.headers:
                return _page(403, "a request with X-Forwarded-For is not answered")
            return await handler(request)

        return guarded

    async def _get(self, request: web.Request) -> web.StreamResponse:
        value = self._values.get(request.match_info["key"])
        if value is None:
            return _page(404, "no such key")
        if request.query.get("wait_for_change", "").lower() == "true":
            try:
                hold = _seconds(request.query.get("timeout_sec"))
            except ValueError:
                return _page(400, "timeout_sec is not a whole number")
            if request.query.get("last_etag") in (None, _etag(value)):
                await self._held(value, hold)
        if self._stopping:
            return _page(503, "the service is stopping")
        return web.Response(
            text=value.text,
            content_type="text/plain",
            headers={**_ECHO, "ETag": _etag(value), "Cache-Control": "no-store"},
        )

    async def _held(self, value: _Value, seconds: float | None) -> None:
        """Until the next change or the end of *seconds*."""
        changed = value.changed
        try:
            async with asyncio.timeout(seconds):
                await changed.wait()
        except TimeoutError:
            pass

    async def _control(self, request: web.Request) -> web.StreamResponse:
        if not _from_here(request):
            return _page(403, "only from this machine")
        if request.match_info["verb"] == "preempt":
            self.preempt()
        else:
            self.clear()
        return web.json_response({PREEMPTED: self._values[PREEMPTED].text})

    async def _stop(self, app: web.Application) -> None:
        self._stopping = True
        for value in self._values.values():
            self._wake(value)


def _page(status: int, text: str) -> web.Response:
    # Errors are HTML there, too.
    return web.Response(
        status=status,
        text=f"<!DOCTYPE html><title>{status}</title><p>{BANNER}: {text}.\n",
        content_type="text/html",
        headers=_ECHO,
    )


def _etag(value: _Value) -> str:
    return f"{value.version:016x}"


def _seconds(text: str | None) -> float | None:
    """None where there is no limit.

    Raises:
        ValueError: Not a whole number >= 0.
    """
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise ValueError(text)
    return float(min(int(text[:9]), 86_400))


def _from_here(request: web.Request) -> bool:
    try:
        return ipaddress.ip_address(request.remote or "").is_loopback
    except ValueError:
        return False

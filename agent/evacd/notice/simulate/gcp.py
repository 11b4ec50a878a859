"""GCE's metadata service, as far as its notices go, with a hand on the switch.

What is faithful: the required request header and its echo, the refusal of forwarded
requests, ETags, text values and ``alt=json``, 404 for unknown keys, and hanging GETs: query
parameters only, an ETag that is out of date answers at once, else the answer waits for the
next change of the key or the end of ``timeout_sec``; a service that stops ends them with 503.
A maintenance event that nobody asked for since the last one is not announced. Sources:
cloud.google.com/compute/docs/metadata/querying-metadata and .../getting-live-migration-notice.
"""

import asyncio
import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType

from aiohttp import web
from aiohttp.typedefs import Handler

from evacd.clock import Clock, SystemClock
from evacd.notice.simulate.cloud import BANNER, Hook, Seen

ROOT = "/computeMetadata/v1/"
PREEMPTED = "instance/preempted"
MAINTENANCE_EVENT = "instance/maintenance-event"
UPCOMING = "instance/upcoming-maintenance"
STOP_STATE = "instance/shutdown-details/stop-state"
KEYS: Mapping[str, str] = MappingProxyType(
    {
        PREEMPTED: "FALSE",
        "instance/id": "4520031799277581759",
        "instance/name": "evac-simulated",
        "instance/zone": "projects/1/zones/evac-simulated-a",
        MAINTENANCE_EVENT: "NONE",
        "instance/scheduling/preemptible": "TRUE",
    }
)
ECHO: Mapping[str, str] = MappingProxyType(
    {"Metadata-Flavor": "Google", "Server": "Metadata Server for VM (evac simulator)"}
)
# How much later a window that moves is at each read.
MOVE = timedelta(seconds=7)
NOTHING_YET = '{"error":"no notifications have been received yet, try again later"}'


@dataclass
class _Value:
    """A key's value; None while it has none, which differs from key to key."""

    text: str | None
    version: int = 1
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class GcpMetadata:
    """The service and its state; `app` is served by whoever made it.

    Attributes:
        fault: Asked first about every metadata request: a response goes out in place of the
            true one, None lets it pass.
        requests: The last thousand, oldest first.
        echo: Headers that are on every answer.
        nothing_upcoming: Status and body where no maintenance is known: real ones say 404,
            503, 200 with `NOTHING_YET`, ``NONE`` or ``{}``.
    """

    def __init__(
        self,
        *,
        fault: Hook | None = None,
        nothing_upcoming: tuple[int, str] = (503, NOTHING_YET),
        clock: Clock | None = None,
    ) -> None:
        self.fault = fault
        self.requests: deque[Seen] = deque(maxlen=1000)
        self.echo = ECHO
        self.nothing_upcoming = nothing_upcoming
        self._clock = clock or SystemClock()
        self._values = {key: _Value(text) for key, text in KEYS.items()}
        self._values |= {UPCOMING: _Value(None), STOP_STATE: _Value(None)}
        self._maintenance_asked = False
        self._moving: datetime | None = None
        self._stopping = False
        self.app = web.Application()
        self.app.router.add_get(ROOT + "{key:.+}", self._guarded(self._get))
        self.app.on_shutdown.append(self._stop)

    @property
    def actions(self) -> Mapping[str, Callable[[], None]]:
        """What can be made to happen, by name."""
        hour, day = timedelta(hours=1), timedelta(days=1)
        return {
            "preempt": self.preempt,
            "clear": self.clear,
            "cancel": self.cancel,
            "maintenance": lambda: self._maintain("TERMINATE_ON_HOST_MAINTENANCE"),
            "migrate": lambda: self._maintain("MIGRATE_ON_HOST_MAINTENANCE"),
            "maintenance-unknown": lambda: self._maintain("REPAINT_ON_HOST_MAINTENANCE"),
            "stop": lambda: self.set(STOP_STATE, "PENDING_STOP"),
            "stop-unknown": lambda: self.set(STOP_STATE, "PENDING_NAP"),
            "upcoming": lambda: self._announce(self._in(hour)),
            "upcoming-camel": lambda: self._announce(self._in(hour), camel=True),
            "upcoming-day": lambda: self._announce(self._in(day)),
            "upcoming-past": lambda: self._announce(self._in(-hour)),
            "upcoming-moving": lambda: self._announce(self._in(hour - MOVE), moving=True),
            "upcoming-blank": lambda: self.set(UPCOMING, _window("")),
            "upcoming-garbled": lambda: self.set(UPCOMING, _window("at the weekend")),
            "upcoming-none": lambda: self.set(UPCOMING, "NONE"),
        }

    def preempt(self) -> None:
        """Announce the preemption, as of now."""
        self.set(PREEMPTED, "TRUE")

    def clear(self) -> None:
        """Make everything as it was at the start; of a preemption GCE never does."""
        self.set(PREEMPTED, "FALSE")
        self.cancel()

    def cancel(self) -> None:
        """Take back all but the preemption."""
        self._moving = None
        self.set(MAINTENANCE_EVENT, "NONE")
        # A window that was known is said to be over; it does not become unknown again.
        if self._values[UPCOMING].text is not None:
            self.set(UPCOMING, "NONE")
        self.set(STOP_STATE, None)

    def set(self, key: str, text: str | None) -> None:
        """Give *key* a value; nothing happens where it has it already."""
        value = self._values.setdefault(key, _Value(""))
        if value.text == text:
            return
        value.text = text
        value.version += 1
        self._wake(value)

    def _maintain(self, event: str) -> None:
        if self._maintenance_asked:
            self.set(MAINTENANCE_EVENT, event)
        # Else the warning is skipped, as GCE does.
        self._maintenance_asked = False

    def _announce(self, start: datetime, *, camel: bool = False, moving: bool = False) -> None:
        self._moving = start if moving else None
        self.set(UPCOMING, _window(_written(start), camel=camel))

    def _in(self, delay: timedelta) -> datetime:
        return self._clock.utc() + delay

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
        key = request.match_info["key"]
        value = self._values.get(key)
        if value is None:
            return _page(404, "no such key")
        if key == MAINTENANCE_EVENT:
            self._maintenance_asked = True
        if key == UPCOMING and self._moving is not None:
            self._announce(self._moving + MOVE, moving=True)
        if value.text is None:
            return self._absent(key)
        if request.query.get("wait_for_change", "").lower() == "true":
            try:
                hold = _seconds(request.query.get("timeout_sec"))
            except ValueError:
                return _page(400, "timeout_sec is not a whole number")
            if request.query.get("last_etag") in (None, _etag(value)):
                await self._held(value, hold)
        if self._stopping:
            return _page(503, "the service is stopping")
        if value.text is None:
            return self._absent(key)
        return _answer(value.text, _etag(value), as_json=request.query.get("alt") == "json")

    def _absent(self, key: str) -> web.Response:
        if key != UPCOMING:
            return _page(404, "no such key")
        status, body = self.nothing_upcoming
        return web.Response(status=status, text=body, content_type="application/json", headers=ECHO)

    async def _held(self, value: _Value, seconds: float | None) -> None:
        """Until the next change or the end of *seconds*."""
        changed = value.changed
        try:
            async with asyncio.timeout(seconds):
                await changed.wait()
        except TimeoutError:
            pass

    async def _stop(self, app: web.Application) -> None:
        self._stopping = True
        for value in self._values.values():
            self._wake(value)


def _answer(text: str, etag: str, *, as_json: bool) -> web.Response:
    if as_json and not text.startswith("{"):
        text = json.dumps(text)
    return web.Response(
        text=text,
        content_type="application/json" if as_json else "text/plain",
        headers={**ECHO, "ETag": etag, "Cache-Control": "no-store"},
    )


def _page(status: int, text: str) -> web.Response:
    # Errors are HTML there, too.
    return web.Response(
        status=status,
        text=f"<!DOCTYPE html><title>{status}</title><p>{BANNER}: {text}.\n",
        content_type="text/html",
        headers=ECHO,
    )


def _window(start: str, *, camel: bool = False) -> str:
    fields = {
        "can_reschedule": "true",
        "maintenance_status": "PENDING",
        "type": "SCHEDULED",
        "window_start_time": start,
    }
    if camel:
        names = {name: name.title().replace("_", "") for name in fields}
        fields = {names[name][0].lower() + names[name][1:]: fields[name] for name in fields}
    return json.dumps(fields)


def _written(date: datetime) -> str:
    return date.isoformat(timespec="seconds").replace("+00:00", "Z")


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

"""Azure's metadata service, as far as Scheduled Events need it, with a hand on the switches.

What is faithful: the required request header, the refusal of forwarded requests, api-versions,
5 requests a second, a first call that takes as long as enabling the service does, the events
of the whole placement group, and their life: Scheduled with an RFC 1123 date, Started with a
blank one when the date has come or somebody approves, then gone; each change raises the
incarnation. Sources: learn.microsoft.com/azure/virtual-machines/linux/scheduled-events and
learn.microsoft.com/azure/virtual-machines/instance-metadata-service.
"""

import asyncio
import json
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from email.utils import format_datetime
from functools import partial
from types import MappingProxyType
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from evacd.clock import Clock, SystemClock
from evacd.notice.simulate.cloud import BANNER, Hook, Seen

EVENTS = "/metadata/scheduledevents"
INSTANCE = "/metadata/instance"
LISTED = "/metadata/versions"
VERSIONS = frozenset({"2017-11-01", "2019-01-01", "2019-04-01", "2019-08-01", "2020-07-01"})
MACHINE = "evac-simulated_0"
OTHER = "evac-simulated_1"
# Seconds from an event's appearance to its date, by type.
AHEAD: Mapping[str, float] = MappingProxyType(
    {"Preempt": 30.0, "Terminate": 300.0, "Redeploy": 600.0, "Reboot": 900.0, "Freeze": 900.0}
)
RATE = 5


@dataclass(frozen=True)
class SimulatedEvent:
    """One event as the document has it.

    Attributes:
        not_before: None once it has started, and where it never had a date.
    """

    id: str
    type: str
    status: str
    resources: tuple[str, ...]
    not_before: datetime | None

    def document(self) -> dict[str, Any]:
        """Its JSON object."""
        at = self.not_before
        return {
            "EventId": self.id,
            "EventStatus": self.status,
            "EventType": self.type,
            "ResourceType": "VirtualMachine",
            "Resources": list(self.resources),
            "NotBefore": format_datetime(at, usegmt=True) if at else "",
            "Description": "An event of the evac simulator.",
            "EventSource": "Platform",
            "DurationInSeconds": 5 if self.type == "Freeze" else -1,
        }


class AzureMetadata:
    """The service and its state; `app` is served by whoever made it.

    Attributes:
        fault: Asked first about every request: a response goes out in place of the true one,
            None lets it pass.
        changed: Told (type and id of an event, its new status or ``gone``).
        requests: The last thousand, oldest first.
        incarnation: Of the document.
        rate: Requests in a second, before 429; None for any number.
        first_call_seconds: From the first call until the service answers.
        enabled_at: When it does, on the loop's clock; None before the first call.
        clock: For dates.
        actions: What can happen, by name.
    """

    def __init__(
        self,
        *,
        fault: Hook | None = None,
        changed: Callable[[str, str], None] | None = None,
        machine: str = MACHINE,
        clock: Clock | None = None,
        rate: int | None = RATE,
        first_call_seconds: float = 0.0,
    ) -> None:
        self.fault = fault
        self.changed = changed
        self.machine = machine
        self.requests: deque[Seen] = deque(maxlen=1000)
        self.incarnation = 1
        self.rate = rate
        self.first_call_seconds = first_call_seconds
        self.clock = clock or SystemClock()
        self._events: dict[str, SimulatedEvent] = {}
        self._asked: deque[float] = deque()
        self.enabled_at: float | None = None
        self.app = web.Application()
        self.app.router.add_get(EVENTS, self._guarded(self._get))
        self.app.router.add_post(EVENTS, self._guarded(self._post))
        self.app.router.add_get(INSTANCE + "{path:(/.*)?}", self._guarded(self._instance))
        self.app.router.add_get(LISTED, self._guarded(_versions))
        self.app.router.add_route("*", "/metadata/{any:.*}", self._guarded(_nothing))
        own: dict[str, Callable[[], None]] = {
            name: partial(self._announce, type)
            for name, type in (
                ("preempt", "Preempt"),
                ("terminate", "Terminate"),
                ("redeploy", "Redeploy"),
                ("reboot", "Reboot"),
                ("freeze", "Freeze"),
                ("rebalance", "SpotRebalanceRecommendation"),
                ("unknown", "Defenestrate"),
            )
        }
        self.actions: Mapping[str, Callable[[], None]] = MappingProxyType(
            {
                **own,
                "other-vm": partial(self._announce, "Preempt", (OTHER,)),
                "together": partial(self._announce, "Reboot", (OTHER, machine)),
                "start": self._start_all,
                "cancel": partial(self._end_all, ("Scheduled", "Advisory")),
                "finish": partial(self._end_all, ("Started",)),
                "clear": partial(self._end_all, ("Scheduled", "Advisory", "Started")),
            }
        )

    # --- what can happen -----------------------------------------------------------------

    @property
    def events(self) -> tuple[SimulatedEvent, ...]:
        """The document's, as of now."""
        self._pass_time()
        return tuple(self._events.values())

    def schedule(
        self,
        type: str,
        *,
        resources: Sequence[str] | None = None,
        status: str = "Scheduled",
        seconds: float | None = None,
    ) -> str:
        """Put an event into the document; its id.

        Args:
            resources: This machine alone where it is None.
            seconds: From now to its date; None for what its type has.
        """
        ahead = AHEAD.get(type) if seconds is None else seconds
        dated = status == "Scheduled" and ahead is not None
        event = SimulatedEvent(
            id=str(uuid.uuid4()),
            type=type,
            status=status,
            resources=(self.machine,) if resources is None else tuple(resources),
            not_before=self.clock.utc() + timedelta(seconds=ahead or 0.0) if dated else None,
        )
        self._put(event)
        return event.id

    def start(self, event_id: str) -> None:
        """It begins, for all of its machines; nothing happens where it has begun already."""
        event = self._events[event_id]
        if event.status == "Scheduled":
            self._put(replace(event, status="Started", not_before=None))

    def end(self, event_id: str) -> None:
        """It is over, or was called off: Azure tells these two apart by nothing."""
        event = self._events.pop(event_id)
        self._changed(event, "gone")

    def move(self, event_id: str, *, seconds: float) -> None:
        """Its date is now so many seconds from now."""
        at = self.clock.utc() + timedelta(seconds=seconds)
        self._put(replace(self._events[event_id], not_before=at))

    def disable(self) -> None:
        """As after a day without a call: the next one enables the service again."""
        self.enabled_at = None

    def _announce(self, type: str, resources: tuple[str, ...] | None = None) -> None:
        """Once: not a second of the same while one stands."""
        wanted = resources or (self.machine,)
        if not any((each.type, each.resources) == (type, wanted) for each in self.events):
            status = "Advisory" if type == "SpotRebalanceRecommendation" else "Scheduled"
            self.schedule(type, resources=wanted, status=status)

    def _start_all(self) -> None:
        for event in self.events:
            self.start(event.id)

    def _end_all(self, statuses: tuple[str, ...]) -> None:
        for event in self.events:
            if event.status in statuses:
                self.end(event.id)

    def _put(self, event: SimulatedEvent) -> None:
        self._events[event.id] = event
        self._changed(event, event.status)

    def _changed(self, event: SimulatedEvent, what: str) -> None:
        self.incarnation += 1
        if self.changed is not None:
            self.changed(f"{event.type} {event.id}", what)

    def _pass_time(self) -> None:
        """What was scheduled for a moment that has come has started."""
        for event in tuple(self._events.values()):
            if event.not_before is not None and event.not_before <= self.clock.utc():
                self.start(event.id)

    # --- what is answered ----------------------------------------------------------------

    def _guarded(self, handler: Handler) -> Handler:
        async def guarded(request: web.Request) -> web.StreamResponse:
            headers = {name.lower(): value for name, value in request.headers.items()}
            self.requests.append(Seen(request.method, request.path_qs, headers))
            if self.fault is not None and (wrong := await self.fault(request)) is not None:
                return wrong
            if self._is_too_often():
                answer: web.StreamResponse = _error(429, "Too many requests")
            elif request.headers.get("Metadata", "").lower() != "true":
                answer = _error(400, "Bad request. Required metadata header not specified")
            elif "X-Forwarded-For" in request.headers:
                answer = _error(400, "Bad request. X-Forwarded-For is not allowed")
            elif "api-version" not in request.query and request.path != LISTED:
                answer = _error(400, "Bad request. api-version was not specified in the request")
            else:
                answer = await handler(request)
            answer.headers["Server"] = f"IMDS ({BANNER})"
            answer.headers["Date"] = format_datetime(self.clock.utc(), usegmt=True)
            return answer

        return guarded

    def _is_too_often(self) -> bool:
        now = asyncio.get_running_loop().time()
        while self._asked and self._asked[0] <= now - 1.0:
            self._asked.popleft()
        self._asked.append(now)
        return self.rate is not None and len(self._asked) > self.rate

    async def _get(self, request: web.Request) -> web.StreamResponse:
        if request.query["api-version"] not in VERSIONS:
            return _error(400, "Bad request. api-version is invalid or not supported")
        await self._enabled()
        events = [event.document() for event in self.events]
        return web.json_response({"DocumentIncarnation": self.incarnation, "Events": events})

    async def _enabled(self) -> None:
        """The first call enables the service, whether or not its caller waits for that."""
        now = asyncio.get_running_loop().time()
        if self.enabled_at is None:
            self.enabled_at = now + self.first_call_seconds
        await asyncio.sleep(max(0.0, self.enabled_at - now))

    async def _post(self, request: web.Request) -> web.StreamResponse:
        if request.query["api-version"] not in VERSIONS:
            return _error(400, "Bad request. api-version is invalid or not supported")
        wanted = _start_requests(await request.text())
        if wanted is None or not all(id in self._events for id in wanted):
            return _error(400, "Bad request. StartRequests is malformed or names no event")
        for event_id in wanted:
            self.start(event_id)
        return web.Response()

    async def _instance(self, request: web.Request) -> web.StreamResponse:
        value: object = {
            "compute": {
                "azEnvironment": "AzurePublicCloud",
                "location": "westeurope",
                "name": self.machine,
                "priority": "Spot",
                "vmId": "02aab8a4-74ef-476e-8182-f6d2ba4166a6",
                "vmScaleSetName": "evac-simulated",
                "vmSize": "Standard_ND96isr_H100_v5",
            }
        }
        for part in filter(None, request.match_info["path"].split("/")):
            if not isinstance(value, dict) or part not in value:
                return _error(404, "Not found")
            inner: object = value[part]
            value = inner
        if not isinstance(value, str):
            return web.json_response(value)
        if request.query.get("format") != "text":
            return _error(400, "Bad request. A leaf has to be asked for with format=text")
        return web.Response(text=value)


async def _versions(request: web.Request) -> web.StreamResponse:
    # The one question that needs no api-version.
    return web.json_response({"apiVersions": sorted(VERSIONS)})


async def _nothing(request: web.Request) -> web.StreamResponse:
    return _error(404, "Not found")


def _error(status: int, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status)


def _start_requests(text: str) -> list[str] | None:
    """The ids that are approved; None where the request is malformed."""
    try:
        wanted = json.loads(text)["StartRequests"]
        ids = [each["EventId"] for each in wanted]
    except (ValueError, LookupError, TypeError):
        return None
    return ids if ids and all(isinstance(id, str) for id in ids) else None

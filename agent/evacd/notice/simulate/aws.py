"""EC2's instance metadata service, version 2, with a hand on each thing that it can announce.

What is faithful: tokens by PUT only, with their time to live and its header; 400 for a PUT that
is malformed, 403 for one that was forwarded or names a version, 401 without a good token, 404
for absent keys; text/plain for every value, JSON too; listings of what lies below a path; and
each key as it looks through its event's life. Sources: docs.aws.amazon.com/AWSEC2/latest/
UserGuide, "Retrieve instance metadata", "Instance metadata categories", "Spot Instance
interruption notices", "EC2 instance rebalance recommendations"; docs.aws.amazon.com/autoscaling/
ec2/userguide, "Retrieve the target lifecycle state through instance metadata".
"""

import json
import re
import secrets
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from email.utils import format_datetime
from types import MappingProxyType

from aiohttp import web

from evacd.clock import Clock, SystemClock
from evacd.notice.simulate.cloud import BANNER, CONTROL, Hook

SPOT = "spot/instance-action"
SPOT_LEGACY = "spot/termination-time"
REBALANCE = "events/recommendations/rebalance"
SCHEDULED = "events/maintenance/scheduled"
HISTORY = "events/maintenance/history"
LIFECYCLE = "autoscaling/target-lifecycle-state"
KEYS: Mapping[str, str] = MappingProxyType(
    {
        "ami-id": "ami-0evac51mu1a7ed0",
        "hostname": "ip-192-0-2-10.evac-simulated.internal",
        "instance-id": "i-0e7acded51301a7ed",
        "instance-life-cycle": "spot",
        "instance-type": "p5.48xlarge",
        "local-ipv4": "192.0.2.10",
        "placement/availability-zone": "evac-simulated-1a",
        "placement/region": "evac-simulated-1",
        SCHEDULED: "[]",
        HISTORY: "[]",
        LIFECYCLE: "InService",
    }
)
# What comes and goes; the rest stays through `clear`.
_ANNOUNCING = (SPOT, SPOT_LEGACY, REBALANCE, SCHEDULED, HISTORY, LIFECYCLE)
_TTL = "X-aws-ec2-metadata-token-ttl-seconds"
_TOKEN = "X-aws-ec2-metadata-token"
_TTL_MOST = 21_600
_VERSION = re.compile(r"latest|\d{4}-\d\d-\d\d", re.ASCII)
SERVER: Mapping[str, str] = MappingProxyType({"Server": "EC2ws (evac simulator)"})
SPOT_SECONDS = 120


@dataclass(frozen=True)
class Asked:
    """One request as it came in.

    Attributes:
        target: Path and query.
        headers: By lower-case name, in order; a name that was sent twice is here twice.
    """

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]

    def all(self, name: str) -> list[str]:
        """Every value of this header."""
        return [value for key, value in self.headers if key == name.lower()]


class AwsMetadata:
    """The service and its state; `app` is served by whoever made it.

    Attributes:
        fault: Asked first about every request: a response goes out in place of the true one,
            None lets it pass.
        echo: Headers that are on every answer.
        tokens_required: False also answers without a token, as version 1 did.
        requests: The last thousand, oldest first.
        wrongs: What no client may ever send, in the order it came.
    """

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        fault: Hook | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self.fault = fault
        self.echo = SERVER
        self.tokens_required = True
        self.requests: deque[Asked] = deque(maxlen=1000)
        self.wrongs: list[str] = []
        self._ends: dict[str, float] = {}
        self._values = dict(KEYS)
        self._events = 0
        self._moving = False
        self.app = web.Application()
        self.app.router.add_put("/{version}/api/token", self._put_token)
        # Everything but the switch, which is beside the service.
        self.app.router.add_get(f"/{{path:(?!{CONTROL[1:]}(?:/|$)).*}}", self._get)

    # --- the switches -------------------------------------------------------------------

    @property
    def actions(self) -> Mapping[str, Callable[[], None]]:
        """Everything that can be made to happen, by name."""
        return MappingProxyType(
            {
                "preempt": self.preempt,
                "terminate": self.preempt,
                "stop": lambda: self.interrupt("stop"),
                "hibernate": lambda: self.interrupt("hibernate"),
                "preempt-past": lambda: self.interrupt("terminate", time=self._in(-600)),
                "preempt-day": lambda: self.interrupt("terminate", time=self._in(86_400)),
                "preempt-moving": lambda: self.interrupt("terminate", moving=True),
                "preempt-blank": lambda: self.interrupt("terminate", time=""),
                "preempt-garbled": lambda: self.interrupt("terminate", time="at the weekend"),
                "preempt-unknown": lambda: self.interrupt("repaint"),
                "rebalance": self.rebalance,
                "maintenance": lambda: self.schedule("system-reboot"),
                "reboot": lambda: self.schedule("instance-reboot"),
                "retire": lambda: self.schedule("instance-retirement", not_after=False),
                "instance-stop": lambda: self.schedule("instance-stop", not_after=False),
                "maintenance-unknown": lambda: self.schedule("system-repainting"),
                "maintenance-past": lambda: self.schedule("system-reboot", in_seconds=-600.0),
                "complete": lambda: self.end_events("completed"),
                "cancel": lambda: self.end_events("canceled"),
                "asg-terminate": lambda: self.set(LIFECYCLE, "Terminated"),
                "asg-unknown": lambda: self.set(LIFECYCLE, "Repainted"),
                "asg-in-service": lambda: self.set(LIFECYCLE, "InService"),
                "expire-tokens": self.expire_tokens,
                "clear": self.clear,
            }
        )

    def preempt(self) -> None:
        """Announce a spot termination, in two minutes."""
        self.interrupt("terminate")

    def interrupt(
        self, action: str, *, time: datetime | str | None = None, moving: bool = False
    ) -> None:
        """Announce what happens to this spot instance.

        Args:
            time: Two minutes from now where it is None, now for a hibernation.
            moving: Two minutes from whenever it is read, as no real one does.
        """
        self._moving = moving
        if time is None:
            time = self._in(0 if action == "hibernate" else SPOT_SECONDS)
        text = time if isinstance(time, str) else _rfc3339(time)
        self.set(SPOT, json.dumps({"action": action, "time": text}))
        self.set(SPOT_LEGACY, text if action == "terminate" else None)

    def _in(self, seconds: float) -> datetime:
        return self._clock.utc() + timedelta(seconds=seconds)

    def rebalance(self) -> None:
        """Recommend a rebalance, noticed now."""
        self.set(REBALANCE, json.dumps({"noticeTime": _rfc3339(self._clock.utc())}))

    def schedule(
        self, code: str, *, in_seconds: float = 3600.0, not_after: bool = True, id: str = ""
    ) -> None:
        """Schedule one more event, with an id of its own unless it is given one."""
        self._events += 1
        begins = self._in(in_seconds)
        event = {
            "NotBefore": _event_date(begins),
            "Code": code,
            "Description": f"evac simulator: {code}",
            "EventId": id or f"instance-event-{self._events:017x}",
            "State": "active",
        }
        if not_after:
            event["NotAfter"] = _event_date(begins + timedelta(hours=2))
        self.set(SCHEDULED, json.dumps([*json.loads(self._values[SCHEDULED]), event]))

    def end_events(self, state: str) -> None:
        """Call every scheduled event ``completed`` or ``canceled``; they stay listed so."""
        events = json.loads(self._values[SCHEDULED])
        for event in events:
            if event["State"] == "active":
                event["State"] = state
                event["Description"] = f"[{state.capitalize()}] {event['Description']}"
        self.set(SCHEDULED, json.dumps(events))
        self.set(HISTORY, json.dumps(events))

    def clear(self) -> None:
        """Announce nothing, as after the launch."""
        for key in _ANNOUNCING:
            self.set(key, KEYS.get(key))

    def set(self, key: str, text: str | None) -> None:
        """Give *key* a value, or take it away; nothing happens where it is so already."""
        if self._values.get(key) == text:
            return
        if text is None:
            del self._values[key]
        else:
            self._values[key] = text

    def expire_tokens(self) -> None:
        """Forget all tokens: whoever holds one is answered 401."""
        self._ends.clear()

    # --- the service --------------------------------------------------------------------

    async def _guarded(self, request: web.Request) -> web.StreamResponse | None:
        asked = Asked(
            request.method,
            request.path_qs,
            tuple((name.lower(), value) for name, value in request.headers.items()),
        )
        self.requests.append(asked)
        self.wrongs += _wrongs(asked)
        return await self.fault(request) if self.fault is not None else None

    async def _put_token(self, request: web.Request) -> web.StreamResponse:
        wrong = await self._guarded(request)
        if wrong is not None:
            return wrong
        if request.match_info["version"] != "latest" or "X-Forwarded-For" in request.headers:
            return self._page(403, "Forbidden")
        told = request.headers.getall(_TTL, [])
        if len(told) != 1 or not (told[0].isascii() and told[0].isdigit() and len(told[0]) < 9):
            return self._page(400, "Bad Request")
        ttl = int(told[0])
        if not 1 <= ttl <= _TTL_MOST:
            return self._page(400, "Bad Request")
        now = self._clock.monotonic()
        self._ends = {token: ends for token, ends in self._ends.items() if ends > now}
        token = secrets.token_urlsafe(41) + "=="
        self._ends[token] = now + ttl
        return self._text(token, {_TTL: str(ttl)})

    async def _get(self, request: web.Request) -> web.StreamResponse:
        wrong = await self._guarded(request)
        if wrong is not None:
            return wrong
        tokens = request.headers.getall(_TOKEN, [])
        # The first one counts, as where a client adds a second.
        if tokens and not self._is_good(tokens[0]):
            return self._page(401, "Unauthorized")
        if not tokens and self.tokens_required:
            return self._page(401, "Unauthorized")
        version, _, path = request.match_info["path"].partition("/")
        if version == "":
            return self._text("2021-07-15\nlatest")
        if not _VERSION.fullmatch(version):
            return self._page(404, "Not Found")
        text = self._at(path)
        return self._page(404, "Not Found") if text is None else self._text(text)

    def _is_good(self, token: str) -> bool:
        return self._clock.monotonic() < self._ends.get(token, -1.0)

    def _at(self, path: str) -> str | None:
        """What lies there: a value, else a listing, else nothing."""
        if path == "":
            return "dynamic\nmeta-data"
        if path == "dynamic/instance-identity/document":
            return self._document()
        top, _, key = path.partition("/")
        if top != "meta-data":
            return None
        if key == SPOT and self._moving and key in self._values:
            self.interrupt("terminate", moving=True)
        if key in self._values:
            return self._values[key]
        prefix = f"{key.rstrip('/')}/" if key.strip("/") else ""
        below = [each.removeprefix(prefix) for each in self._values if each.startswith(prefix)]
        listing = {name.partition("/")[0] + ("/" if "/" in name else "") for name in below}
        return "\n".join(sorted(listing)) or None

    def _document(self) -> str:
        return json.dumps(
            {
                "availabilityZone": self._values["placement/availability-zone"],
                "imageId": self._values["ami-id"],
                "instanceId": self._values["instance-id"],
                "instanceType": self._values["instance-type"],
                "privateIp": self._values["local-ipv4"],
                "region": self._values["placement/region"],
                "version": "2017-09-30",
            },
            indent=2,
        )

    def _text(self, text: str, headers: Mapping[str, str] | None = None) -> web.Response:
        return web.Response(
            text=text, content_type="text/plain", headers={**self._headers(), **(headers or {})}
        )

    def _page(self, status: int, title: str) -> web.Response:
        # Errors are pages there, too.
        return web.Response(
            status=status,
            text=f"<!DOCTYPE html><title>{status} - {title}</title><p>{BANNER}.\n",
            content_type="text/html",
            headers=self._headers(),
        )

    def _headers(self) -> dict[str, str]:
        return {**self.echo, "Date": format_datetime(self._clock.utc(), usegmt=True)}


def _wrongs(asked: Asked) -> list[str]:
    wrongs = [
        f"{asked.method} {asked.target} with {name}"
        for name in ("x-forwarded-for", "forwarded", "via", "cookie", "authorization")
        if asked.all(name)
    ]
    if len(asked.all(_TOKEN)) > 1:
        wrongs.append(f"{asked.method} {asked.target} with two tokens")
    return wrongs


def _rfc3339(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def _event_date(time: datetime) -> str:
    # As EC2 writes it, and never by this machine's locale.
    months = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
    return f"{time.day} {months[time.month - 1]} {time:%Y %H:%M:%S} GMT"

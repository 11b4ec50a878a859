"""`instance/upcoming-maintenance?alt=json`: the host will be worked on, hours or days ahead.

Sources: cloud.google.com/compute/docs/instances/monitor-plan-host-maintenance-event and the
`UpcomingMaintenance` schema of the Compute REST API. The service writes the fields in
snake_case or in camelCase. That nothing is known it says with 404 (the machine type has no
such notices), with 503, with an object that has only `error`, with `NONE` or with `{}`. Only
a 200 with the start of a window is a notice. Unverified on a real cloud: which of these
forms a machine gives, and what stands there while the maintenance is under way.
"""

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeAlias

from evacd.clock import Clock
from evacd.facts import Cancelled, Confidence, Notice, Noticed, Probe, Quiet, Unknown
from evacd.notice import when
from evacd.notice.gcp.key import HOLD_SECONDS, KeySource, from_google, valued
from evacd.notice.longpoll import Pace
from evacd.notice.metadata import Answer, Failed, MetadataClient

NAME = "gcp/upcoming-maintenance"
UPCOMING = "instance/upcoming-maintenance"
# It is known days ahead, and where there is nothing there is also nothing to wait for.
POLL_SECONDS = 15.0
# Below this a date that moved is jitter, not news.
JITTER_SECONDS = 1.0

_OVER = {"COMPLETE", "COMPLETED", "CANCELED", "CANCELLED"}
_CURE = "is this GCE's metadata service, and this evacd up to date?"

# --- the parser -------------------------------------------------------------------------


@dataclass(frozen=True)
class Window:
    """A maintenance that is announced.

    Attributes:
        start: Timezone-aware.
        detail: Its type, state and reasons, as the service words them.
    """

    start: datetime
    detail: str = ""


@dataclass(frozen=True)
class Nothing:
    """No maintenance is known.

    Attributes:
        certain: The service says that there is none, and not only that it knows of none.
    """

    certain: bool


@dataclass(frozen=True)
class Unreadable:
    """It may announce something, but not in words that are understood."""

    reason: str


Reading: TypeAlias = Window | Nothing | Unreadable


def parse(body: str) -> Reading:
    """Read the body of a 200. Never raises."""
    text = body.strip()
    if text.upper() == "NONE":
        return Nothing(certain=True)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return Unreadable(f"not JSON: {text[:40]!r}")
    if value is None or value == {} or (isinstance(value, str) and value.upper() == "NONE"):
        return Nothing(certain=True)
    if not isinstance(value, dict):
        return Unreadable(f"not an object: {text[:40]!r}")
    fields = {_plain(name): field for name, field in value.items()}
    if set(fields) == {"error"}:
        return Nothing(certain=False)
    if _word(fields.get("maintenancestatus")) in _OVER:
        return Nothing(certain=True)
    start = _date(fields.get("windowstarttime"))
    if start is None:
        return Unreadable(f"no window_start_time that is a date in {text[:80]!r}")
    return Window(start, _detail(fields))


def _plain(name: str) -> str:
    """One spelling for snake_case and camelCase."""
    return name.replace("_", "").lower()


def _word(field: object) -> str:
    return field.upper() if isinstance(field, str) else ""


def _date(field: object) -> datetime | None:
    """RFC 3339; without a zone it is taken as UTC."""
    if not isinstance(field, str):
        return None
    try:
        date = datetime.fromisoformat(field.strip())
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _detail(fields: Mapping[str, object]) -> str:
    reasons = fields.get("maintenancereasons")
    parts = [
        fields.get("type"),
        fields.get("maintenancestatus"),
        *(reasons[:4] if isinstance(reasons, list) else ()),
    ]
    words = [part[:40] for part in parts if isinstance(part, str) and part.isprintable()]
    return " ".join([UPCOMING, *words])


# --- what it means ----------------------------------------------------------------------


class Windows:
    """Turns answers into probes; remembers the one notice that stands."""

    def __init__(self, clock: Clock, *, boot: str = "") -> None:
        self._clock = clock
        self._id = "gcp:upcoming-maintenance" + (f":{boot}" if boot else "")
        self._notice: Notice | None = None
        self._start: datetime | None = None

    def __call__(self, answer: Answer | Failed) -> Probe:
        """What the answer says, given those before."""
        if isinstance(answer, Answer) and answer.status in {404, 503} and from_google(answer):
            return self._nothing(Nothing(certain=False), f"HTTP {answer.status}")
        valid = valued(NAME, answer)
        if isinstance(valid, Unknown):
            return valid
        match parse(valid.body):
            case Window() as window:
                return Noticed(self._announced(window, valid))
            case Nothing() as nothing:
                return self._nothing(nothing, f"{UPCOMING} is {valid.body.strip()[:40]!r}")
            case Unreadable(reason):
                return Unknown(NAME, f"{UPCOMING}: {reason}", _CURE)

    def _nothing(self, nothing: Nothing, how: str) -> Probe:
        if self._notice is None:
            return Quiet(NAME)
        if not nothing.certain:
            # Known to be coming a moment ago: that takes more than a service that is busy.
            return Unknown(NAME, f"{how}, while a maintenance is announced", "asked again")
        gone, self._notice, self._start = self._notice, None, None
        return Cancelled(NAME, gone.id, how)

    def _announced(self, window: Window, answer: Answer) -> Notice:
        """The standing notice; sooner where the window is, never later without a cancel."""
        stands = self._notice
        if stands is not None and window.start == self._start:
            return stands
        utc = self._clock.utc()
        sight = when.Sight(
            self._clock.monotonic(), utc, when.skew(answer.headers.get("date"), utc=utc)
        )
        found = when.deadline(window.start, sight=sight, most=None)
        self._start = window.start
        if stands is not None and not _sooner(found.deadline, stands.deadline):
            return stands
        self._notice = notice = Notice(
            source=NAME,
            kind="upcoming-maintenance",
            id=self._id,
            confidence=Confidence.PLANNED,
            deadline=found.deadline,
            seen=stands.seen if stands else sight.monotonic,
            detail="; ".join(part for part in (window.detail, found.suspect) if part),
        )
        return notice


def _sooner(new: float | None, old: float | None) -> bool:
    return new is not None and (old is None or new < old - JITTER_SECONDS)


# --- the source -------------------------------------------------------------------------


class UpcomingSource(KeySource):
    """Hears of maintenance whose window is known."""

    def __init__(
        self,
        client: MetadataClient,
        clock: Clock,
        *,
        poll_seconds: float = POLL_SECONDS,
        hold_seconds: float = HOLD_SECONDS,
        boot: str = "",
        pace: Pace | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Make it ready; it asks nothing yet.

        Args:
            poll_seconds: Between plain reads, in place of the pace's own.
            boot: Kernel boot id.
        """
        super().__init__(
            NAME,
            UPCOMING,
            Windows(clock, boot=boot),
            client,
            clock,
            params={"alt": "json"},
            hold_seconds=hold_seconds,
            pace=replace(pace or Pace(), poll=poll_seconds),
            jitter=jitter,
        )

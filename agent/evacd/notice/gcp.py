"""Google Compute Engine: the key `instance/preempted`, by plain read and hanging GET.

Sources: cloud.google.com/compute/docs/metadata/querying-metadata (required
header and its echo, `wait_for_change`, `last_etag` and `timeout_sec` as query parameters,
503 at any time) and cloud.google.com/compute/docs/instances/spot#preemption_process (up to
30 s from the notice to the end, best effort; 120 s where the VM was made so). The duration
of the notice is not readable from inside, so it is configured.
"""

import random
from collections.abc import Callable
from typing import NoReturn

import aiohttp

from evacd.clock import Clock
from evacd.facts import Cancelled, Confidence, Notice, Noticed, Probe, Quiet, Unknown
from evacd.notice.longpoll import LongPoll, Pace
from evacd.notice.metadata import Answer, Failed, Limits, MetadataClient

URL = "http://169.254.169.254"
ROOT = "/computeMetadata/v1/"
PREEMPTED = "instance/preempted"
# A connection that died unseen hides a notice for this long and a little more; so it must be
# well below the shortest window of 30 s.
HOLD_SECONDS = 10.0
FLAVOR = {"Metadata-Flavor": "Google"}

_CURES = {
    401: "something in between wants credentials; reach the metadata service directly",
    403: "something in between adds X-Forwarded-For; reach the metadata service directly",
    404: "on GKE its own metadata server hides this key: run evacd with hostNetwork: true",
    429: "too many ask on this machine; asked again",
    503: "the VM is migrating or the service restarting; asked again",
}


def google_flavor(answer: Answer) -> Failed | None:
    """Only Google's service echoes its header; a captive proxy does not."""
    if answer.status == 200 and answer.headers.get("metadata-flavor") != "Google":
        return Failed(
            "Metadata-Flavor: Google is missing from the answer", "is this a captive proxy?"
        )
    return None


def gcp_client(
    session: aiohttp.ClientSession,
    url: str = URL,
    *,
    limits: Limits | None = None,
    where: str = "metadata",
) -> MetadataClient:
    """A client at GCE's address.

    Raises:
        ConfigError: *url* is no ``http://ADDRESS[:PORT]``; says *where* it was set.
    """
    return MetadataClient(session, url, limits=limits, where=where)


class GcpSource:
    """Hears that this VM is preempted."""

    name = "gcp"

    def __init__(
        self,
        client: MetadataClient,
        clock: Clock,
        *,
        window_seconds: float,
        hold_seconds: float = HOLD_SECONDS,
        boot: str = "",
        pace: Pace | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Make it ready; it asks nothing yet.

        Args:
            window_seconds: From the notice to the end of the VM: 30, or 120 where it was
                made with that preemption notice duration.
            hold_seconds: How long the service is asked to hold a hanging GET; whole
                seconds, at least 1.
            boot: Kernel boot id: tells this VM's preemption from one before a restart.
            jitter: Uniform in [0, 1), for the back-off.
        """
        self._client = client
        self._clock = clock
        self._window = window_seconds
        self._hold = max(1, round(hold_seconds))
        self._id = f"gcp:preempted:{boot}" if boot else "gcp:preempted"
        self._notice: Notice | None = None
        self._preempted = LongPoll(
            self._ask, self._judge, clock, pace=pace or Pace(), jitter=jitter
        )

    async def probe(self) -> Probe:
        """See `Source`."""
        return await self._preempted.once()

    async def watch(self, tell: Callable[[Probe], None]) -> NoReturn:
        """See `Source`."""
        await self._preempted.watch(tell)

    async def _ask(self, *, etag: str) -> Answer | Failed:
        if not etag:
            return await self._client.ask(ROOT + PREEMPTED, headers=FLAVOR, check=google_flavor)
        return await self._client.ask(
            ROOT + PREEMPTED,
            headers=FLAVOR,
            check=google_flavor,
            params={
                "wait_for_change": "true",
                "last_etag": etag,
                "timeout_sec": str(self._hold),
            },
            hang_seconds=self._hold,
        )

    def _judge(self, answer: Answer | Failed) -> Probe:
        if isinstance(answer, Failed):
            return Unknown(self.name, answer.reason, answer.cure)
        if answer.status != 200:
            return Unknown(self.name, *_status(answer))
        match answer.body.strip().upper():
            case "TRUE":
                return Noticed(self._first_or_same())
            case "FALSE" if self._notice is not None:
                # A preempted VM never comes back, but a rehearsal ends this way.
                taken_back, self._notice = self._notice, None
                return Cancelled(self.name, taken_back.id, "instance/preempted is FALSE again")
            case "FALSE":
                return Quiet(self.name)
            case _:
                return Unknown(
                    self.name,
                    f"{PREEMPTED} is {answer.body[:40]!r}, expected TRUE or FALSE",
                    "is this GCE's metadata service?",
                )

    def _first_or_same(self) -> Notice:
        if self._notice is None:
            seen = self._clock.monotonic()
            self._notice = Notice(
                source=self.name,
                kind="preempted",
                id=self._id,
                confidence=Confidence.CERTAIN,
                deadline=seen + self._window,
                seen=seen,
                detail=f"{PREEMPTED} is TRUE",
            )
        return self._notice


def _status(answer: Answer) -> tuple[str, str]:
    """Reason and cure of an answer that is not 200."""
    if 300 <= answer.status < 400:
        to = answer.headers.get("location", "nowhere")[:80]
        return f"HTTP {answer.status}, a redirect to {to}", "a proxy or captive portal answers"
    return f"HTTP {answer.status}", _CURES.get(answer.status, "")

"""Keys whose value is one word: the host's maintenance and a graceful stop. Judges are pure.

Sources: cloud.google.com/compute/docs/metadata/getting-live-migration-notice (values of
`instance/maintenance-event`, filled where the policy is to migrate or a GPU is attached: 60 s
before a live migration, 60 min before a GPU's host ends; the warning is *skipped* where the
key was not queried since the last event; sole-tenant VMs stay at NONE) and the graceful
shutdown of cloud.google.com/compute/docs/instances (`instance/shutdown-details/stop-state`:
404 while inactive; only for requests to stop or delete, not for a preemption). Unverified on a
real cloud: that the 404 echoes Metadata-Flavor, without which it counts as somebody else's.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from evacd.clock import Clock
from evacd.facts import Cancelled, Confidence, Notice, Noticed, Probe, Quiet, Unknown
from evacd.notice.gcp.key import HOLD_SECONDS, KeySource, from_google, is_word, valued
from evacd.notice.longpoll import Pace
from evacd.notice.metadata import Answer, Failed, MetadataClient

MAINTENANCE_EVENT = "instance/maintenance-event"
STOP_STATE = "instance/shutdown-details/stop-state"
MIGRATE_SECONDS = 60.0
TERMINATE_SECONDS = 60.0
GPU_TERMINATE_SECONDS = 3600.0


@dataclass(frozen=True)
class Meaning:
    """What one word announces.

    Attributes:
        seconds: From its first sight to what it announces.
    """

    kind: str
    confidence: Confidence
    seconds: float


class Words:
    """Turns a key's words into probes; remembers the one notice that stands.

    A word that is not known is an advisory: it may matter to people and orders nothing. While
    a notice that does stands, such a word neither clears it nor takes its place.
    """

    def __init__(
        self,
        name: str,
        key: str,
        meanings: Mapping[str, Meaning],
        *,
        clock: Clock,
        nothing: frozenset[str],
        absent_is_nothing: bool = False,
        boot: str = "",
    ) -> None:
        """Make it ready.

        Args:
            nothing: Words that announce nothing.
            absent_is_nothing: 404 from the service itself says so, too.
        """
        self._name = name
        self._key = key
        self._meanings = meanings
        self._clock = clock
        self._nothing = nothing
        self._absent_is_nothing = absent_is_nothing
        self._id = name.replace("/", ":") + (f":{boot}" if boot else "")
        self._notice: Notice | None = None

    def __call__(self, answer: Answer | Failed) -> Probe:
        """What the answer says, given those before."""
        if self._absent_is_nothing and isinstance(answer, Answer) and answer.status == 404:
            if from_google(answer):
                return self._over("is gone")
            return Unknown(self._name, "HTTP 404 without Metadata-Flavor", "is this a proxy?")
        valid = valued(self._name, answer)
        if isinstance(valid, Unknown):
            return valid
        word = valid.body.strip().upper()
        if word in self._nothing:
            return self._over(f"is {word}")
        if meaning := self._meanings.get(word):
            return self._announced(word, meaning)
        if not is_word(word) or self._stands_above_advice():
            return Unknown(
                self._name,
                f"{self._key} is {valid.body[:40]!r}, expected {', '.join(self._meanings)}",
                "is this GCE's metadata service, and this evacd up to date?",
            )
        return self._announced(word, Meaning("unknown", Confidence.ADVISORY, 0.0))

    def _stands_above_advice(self) -> bool:
        return self._notice is not None and self._notice.confidence > Confidence.ADVISORY

    def _over(self, how: str) -> Probe:
        if self._notice is None:
            return Quiet(self._name)
        gone, self._notice = self._notice, None
        return Cancelled(self._name, gone.id, f"{self._key} {how}")

    def _announced(self, word: str, meaning: Meaning) -> Probe:
        stands, detail = self._notice, f"{self._key} is {word}"
        if stands is not None and stands.confidence > meaning.confidence:
            # It became less: said as a cancel now, and as what it is with the next answer.
            return self._over(f"is {word} now")
        if stands is not None and stands.confidence == meaning.confidence:
            notice = replace(stands, kind=meaning.kind, detail=detail)
        else:
            now = self._clock.monotonic()
            notice = Notice(
                source=self._name,
                kind=meaning.kind,
                id=self._id,
                confidence=meaning.confidence,
                deadline=now + meaning.seconds if meaning.seconds else None,
                seen=stands.seen if stands else now,
                detail=detail,
            )
        self._notice = notice
        return Noticed(notice)


class MaintenanceSource(KeySource):
    """Hears that the host is about to be worked on: the VM is moved away, or ended."""

    def __init__(
        self,
        client: MetadataClient,
        clock: Clock,
        *,
        gpu: bool,
        hold_seconds: float = HOLD_SECONDS,
        boot: str = "",
        pace: Pace | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Make it ready; it asks nothing yet.

        Args:
            gpu: The machine has one, and so an hour's notice of its end instead of a minute's.
            boot: Kernel boot id.
        """
        name = "gcp/maintenance"
        terminate = GPU_TERMINATE_SECONDS if gpu else TERMINATE_SECONDS
        judge = Words(
            name,
            MAINTENANCE_EVENT,
            {
                "TERMINATE_ON_HOST_MAINTENANCE": Meaning(
                    "terminate-on-host-maintenance", Confidence.PLANNED, terminate
                ),
                "MIGRATE_ON_HOST_MAINTENANCE": Meaning(
                    "migrate-on-host-maintenance", Confidence.ADVISORY, MIGRATE_SECONDS
                ),
            },
            clock=clock,
            nothing=frozenset({"NONE"}),
            boot=boot,
        )
        super().__init__(
            name,
            MAINTENANCE_EVENT,
            judge,
            client,
            clock,
            hold_seconds=hold_seconds,
            pace=pace,
            jitter=jitter,
        )


class StopSource(KeySource):
    """Hears that somebody asked to stop or delete this VM, where graceful shutdown is on."""

    def __init__(
        self,
        client: MetadataClient,
        clock: Clock,
        *,
        window_seconds: float = 30.0,
        hold_seconds: float = HOLD_SECONDS,
        boot: str = "",
        pace: Pace | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Make it ready; it asks nothing yet.

        Args:
            window_seconds: The VM's `gracefulShutdown.maxDuration`; not readable from inside.
            boot: Kernel boot id.
        """
        name = "gcp/stop"
        judge = Words(
            name,
            STOP_STATE,
            {"PENDING_STOP": Meaning("stop", Confidence.CERTAIN, window_seconds)},
            clock=clock,
            nothing=frozenset({"UNSPECIFIED", "STOP_STATE_UNSPECIFIED", "NONE"}),
            absent_is_nothing=True,
            boot=boot,
        )
        super().__init__(
            name,
            STOP_STATE,
            judge,
            client,
            clock,
            hold_seconds=hold_seconds,
            pace=pace,
            jitter=jitter,
        )

"""`instance/preempted`: this VM is taken back.

Source: cloud.google.com/compute/docs/instances/spot#preemption_process (up to 30 s from the
notice to the end, best effort; 120 s where the VM was made with that preemption notice
duration, which is not readable from inside, so it is configured).

A TRUE that stands when the machine has just booted may be left over from its last life. No
public report of that is known, and a VM whose first minute ends in a preemption is, so it is
not ignored: it is read again a few times, quickly, and believed where it persists.
"""

import asyncio
import random
import time
from collections.abc import Callable

from evacd.clock import Clock
from evacd.facts import Cancelled, Confidence, Notice, Noticed, Probe, Quiet, Unknown
from evacd.notice.gcp.key import HOLD_SECONDS, KeySource, valued
from evacd.notice.longpoll import Pace
from evacd.notice.metadata import Answer, Failed, MetadataClient

NAME = "gcp/preempted"
PREEMPTED = "instance/preempted"
JUST_BOOTED_SECONDS = 60.0
REREADS = 3
REREAD_SECONDS = 0.2


def uptime() -> float:
    """Seconds since the kernel booted, suspended ones included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class GcpSource(KeySource):
    """Hears that this VM is preempted."""

    def __init__(
        self,
        client: MetadataClient,
        clock: Clock,
        *,
        window_seconds: float,
        hold_seconds: float = HOLD_SECONDS,
        boot: str = "",
        trust_true_at_boot: bool = False,
        uptime: Callable[[], float] = uptime,
        reread_seconds: float = REREAD_SECONDS,
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
            trust_true_at_boot: Believe a TRUE at once even in the machine's first minute.
            uptime: Seconds since the machine booted.
            reread_seconds: Before each reading again of a TRUE that is suspect.
            jitter: Uniform in [0, 1), for the back-off.
        """
        self._clock = clock
        self._window = window_seconds
        self._id = f"gcp:preempted:{boot}" if boot else "gcp:preempted"
        self._uptime = uptime
        self._reread_seconds = reread_seconds
        self._settled = trust_true_at_boot
        self._note = ""
        self._notice: Notice | None = None
        super().__init__(
            NAME,
            PREEMPTED,
            self._judge,
            client,
            clock,
            hold_seconds=hold_seconds,
            pace=pace,
            jitter=jitter,
        )

    async def ask(self, *, etag: str) -> Answer | Failed:
        """One request, or a few where the answer is suspect; then the first that differs."""
        answer = await super().ask(etag=etag)
        if self._settled or not _is_true(answer) or self._uptime() >= JUST_BOOTED_SECONDS:
            return answer
        self._note = f", right after boot and on {REREADS} more reads"
        for _ in range(REREADS):
            await asyncio.sleep(self._reread_seconds)
            answer = await super().ask(etag="")
            if not _is_true(answer):
                break
        return answer

    def _judge(self, answer: Answer | Failed) -> Probe:
        valid = valued(self.name, answer)
        if isinstance(valid, Unknown):
            return valid
        match valid.body.strip().upper():
            case "TRUE":
                self._settled = True
                return Noticed(self._first_or_same())
            case "FALSE" if self._notice is not None:
                # A preempted VM never comes back, but a rehearsal ends this way.
                taken_back, self._notice = self._notice, None
                return Cancelled(self.name, taken_back.id, f"{PREEMPTED} is FALSE again")
            case "FALSE":
                self._settled, self._note = True, ""
                return Quiet(self.name)
            case _:
                return Unknown(
                    self.name,
                    f"{PREEMPTED} is {valid.body[:40]!r}, expected TRUE or FALSE",
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
                detail=f"{PREEMPTED} is TRUE{self._note}",
            )
        return self._notice


def _is_true(answer: Answer | Failed) -> bool:
    return (
        isinstance(answer, Answer)
        and answer.status == 200
        and answer.body.strip().upper() == "TRUE"
    )

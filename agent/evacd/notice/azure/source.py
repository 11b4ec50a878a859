"""Hears Scheduled Events of this machine among those of its whole placement group."""

import random
from collections.abc import Callable, Collection
from typing import NoReturn

from evacd.clock import Clock
from evacd.facts import Probe, Unknown
from evacd.notice.azure.document import Event, Foreign, parse
from evacd.notice.azure.meaning import is_over, is_preempt, is_started, meaning
from evacd.notice.azure.service import Service
from evacd.notice.metadata import Failed
from evacd.notice.polled import Polled
from evacd.notice.standing import Standing
from evacd.notice.when import Sight, skew

WARMING = "warming up (first call enables the service)"
# The first call takes up to two minutes.
WARM_UP_SECONDS = 130.0
_SILENT = (
    "in a container run with hostNetwork: true; let no firewall, network policy or proxy "
    "stand between this machine and 169.254.169.254"
)


class AzureSource:
    """Scheduled Events, asked for at a steady period."""

    name = "azure"

    def __init__(
        self,
        service: Service,
        clock: Clock,
        *,
        machine: str = "",
        preempt_assume_seconds: float = 10.0,
        acknowledge: bool = False,
        over: Collection[str] = (),
        period: float = 1.0,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Make it ready; it asks nothing yet.

        Args:
            machine: This machine's name, as in the events' resources; "" asks the service.
            preempt_assume_seconds: A preemption is planned to come at most so long after its
                notice: spot machines are often gone well before the 30 s that are promised.
            acknowledge: Whether `acknowledge` may tell Azure to go ahead.
            over: Ids of events that had started before this boot, and so are done: the
                service shows them for minutes more.
            period: Seconds between two questions.
            jitter: Uniform in [0, 1), for the back-off.
        """
        self._service = service
        self._clock = clock
        self._machine = machine.strip()
        self._assume = preempt_assume_seconds
        self._may_acknowledge = acknowledge
        self._over = frozenset(over)
        self._own: dict[str, Event] = {}
        self._standing = Standing(self.name)
        self._first_asked: float | None = None
        self._has_answered = False
        self._polled = Polled(self._ask, period=period, clock=clock, jitter=jitter)

    @property
    def patience(self) -> float:
        """See `evacd.notice.patience_of`."""
        return self._polled.patience

    async def probe(self) -> Probe:
        """See `Source`."""
        return await self._polled.probe()

    async def watch(self, tell: Callable[[Probe], None]) -> NoReturn:
        """See `Source`."""
        await self._polled.watch(tell)

    async def acknowledge(self, notice_id: str) -> str | None:
        """Tell Azure that it need not wait for this machine: call it after the flush.

        Only for a preemption of this machine alone: an approval starts the event for all of
        its machines at once.

        Returns:
            Why it was not done; None where it was, or where the event has started anyway.
        """
        event = self._own.get(notice_id)
        if not self._may_acknowledge:
            return "acknowledging is not switched on"
        if event is None:
            return "no such event is announced for this machine"
        if not is_preempt(event):
            return f"{event.type} is left to run its time; only Preempt is acknowledged"
        if len(event.resources) != 1:
            return f"the event is of {len(event.resources)} machines, not of this one alone"
        if is_started(event):
            return None
        failed = await self._service.start(notice_id)
        return failed.reason if failed else None

    async def _ask(self) -> tuple[Probe, ...]:
        if self._first_asked is None:
            self._first_asked = self._clock.monotonic()
        answer = await self._service.events()
        if isinstance(answer, Failed):
            return (self._failed(answer),)
        self._has_answered = True
        # Taken before the name is asked for: that may take its time.
        now, utc = self._clock.monotonic(), self._clock.utc()
        document = parse(answer.body)
        if isinstance(document, Foreign):
            return (Unknown(self.name, document.reason, "is this Azure's metadata service?"),)
        if not self._machine:
            name = await self._service.name()
            if isinstance(name, Failed):
                reason = f"this machine's own name is not known: {name.reason}"
                cure = "set azure.machine to the name that events have"
                return (Unknown(self.name, reason, "; ".join(filter(None, (cure, name.cure)))),)
            self._machine = name
        own = [event for event in document.events if self._is_own(event)]
        if document.wrong and not own:
            return (
                Unknown(self.name, document.wrong[0], "does the api-version fit this document?"),
            )
        self._own = {event.id: event for event in own}
        sight = Sight(now, utc, skew(answer.headers.get("date"), utc=utc))
        said = [meaning(event, sight=sight, preempt_assume_seconds=self._assume) for event in own]
        over = [event.id for event in document.events if is_over(event)]
        return self._standing.hear(said, now=now, whole=not document.wrong, over=over)

    def _is_own(self, event: Event) -> bool:
        if is_over(event) or not event.concerns(self._machine):
            return False
        return not (is_started(event) and event.id in self._over)

    def _failed(self, failed: Failed) -> Unknown:
        since = self._clock.monotonic() - (self._first_asked or 0.0)
        if failed.timed_out and not self._has_answered and since < WARM_UP_SECONDS:
            return Unknown(
                self.name,
                f"{WARMING}: {failed.reason}",
                f"wait up to 2 min; if it stays so: {_SILENT}",
            )
        return Unknown(self.name, failed.reason, _SILENT if failed.timed_out else failed.cure)

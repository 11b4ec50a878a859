"""Reads the table: keeps what each notice said at its worst, and derives the one order."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from evacd.facts import Cancelled, Confidence, Notice, Noticed, Order, Probe
from evacd.order.standing import Standing
from evacd.order.table import NEXT, Event, State

# --- what comes out ---------------------------------------------------------------------


@dataclass(frozen=True)
class Given:
    """Evacuate. The deadline may already be past: then in overtime."""

    order: Order


@dataclass(frozen=True)
class Amended:
    """The running order has less time, or is surer; after a cancel, the reverse."""

    order: Order


@dataclass(frozen=True)
class StoodDown:
    """The order is withdrawn: every notice that carried it was cancelled."""

    order: Order
    reason: str


@dataclass(frozen=True)
class Advised:
    """Worth telling workloads; orders nothing. Once per notice, and again after a while."""

    notice: Notice


@dataclass(frozen=True)
class Waiting:
    """A planned notice was accepted; again whenever its time comes nearer.

    Attributes:
        starts_at: When the order would start, by what saving everything takes as of now.
    """

    notice: Notice
    starts_at: float


@dataclass(frozen=True)
class Withdrawn:
    """A notice that carried no order was cancelled."""

    notice: Notice
    reason: str


Transition: TypeAlias = Given | Amended | StoodDown | Advised | Waiting | Withdrawn

# --- the machine ------------------------------------------------------------------------


@dataclass(frozen=True)
class _Standing:
    """A notice that nobody cancelled.

    Attributes:
        confidence: The highest that it ever had.
        deadline: The earliest that it ever had; finite wherever it can carry an order.
        advised: When workloads were last told of it as advice.
    """

    notice: Notice
    state: State
    confidence: Confidence
    deadline: float
    advised: float


_NEVER = math.inf


class Machine:
    """Feed it probes and time; it holds at most one order and says what changed.

    Its order's deadline never moves later unless something was cancelled.
    """

    def __init__(self, new_id: Callable[[], str], *, advise_again: float = _NEVER) -> None:
        """Nothing stands.

        Args:
            advise_again: Seconds after which advice that still stands is told again, to those
                who came meanwhile and those who thought that it was over.
        """
        self._new_id = new_id
        self._advise_again = advise_again
        self._need = 0.0
        self._order: Order | None = None
        # By (source, id), in order of arrival: a tie of deadlines goes to the first.
        self._standing: dict[tuple[str, str], _Standing] = {}

    @property
    def order(self) -> Order | None:
        """The running order; who registers late gets it at once."""
        return self._order

    @property
    def leaving(self) -> tuple[Notice, ...]:
        """What carries the running order, each at its worst."""
        return tuple(
            replace(each.notice, confidence=each.confidence, deadline=each.deadline)
            for each in self._leaving()
        )

    @property
    def state(self) -> State:
        """Where the node is: `State.LEAVING` exactly while an order runs."""
        return max((each.state for each in self._standing.values()), default=State.CALM)

    @property
    def carrier(self) -> Notice | None:
        """The notice that set the running order's deadline; None without an order."""
        if self._order is None:
            return None
        return min(self._leaving(), key=lambda each: each.deadline).notice

    def standing(self) -> tuple[Standing, ...]:
        """All that was announced and not taken back, whatever it started."""
        return tuple(self._seen(each) for each in tuple(self._standing.values()))

    @property
    def goes(self) -> bool:
        """Whether anything that stands is more than advice, though its order may not be due yet."""
        return any(one.confidence >= Confidence.PLANNED for one in tuple(self._standing.values()))

    def _seen(self, each: _Standing) -> Standing:
        waits = each.deadline - self._need if each.state is State.WAITING else None
        return Standing(
            each.notice,
            each.confidence,
            each.notice.deadline if each.deadline == _NEVER else each.deadline,
            # What leaves has started already, whenever that was.
            -_NEVER if each.state is State.LEAVING else waits,
        )

    def feed(self, probe: Probe, *, now: float) -> tuple[Transition, ...]:
        """Take in one answer of one source."""
        match probe:
            case Noticed(notice):
                return self._noticed(notice, now)
            case Cancelled():
                return self._cancelled(probe, now)
            case _:  # Quiet and Unknown neither fire nor clear
                return ()

    def tick(self, *, now: float, need: float) -> tuple[Transition, ...]:
        """Let time pass: planned notices become the order at their deadline minus *need*.

        Args:
            need: Seconds that saving everything would take; >= 0, infinite starts all at once.
        """
        self._need = need
        return self._settle(now)

    def _noticed(self, notice: Notice, now: float) -> tuple[Transition, ...]:
        key = notice.source, notice.id
        before = self._standing.get(key)
        state = before.state if before else State.CALM
        confidence = max(notice.confidence, before.confidence) if before else notice.confidence
        known = before.deadline if before else _NEVER
        deadline = min(known, _deadline(notice, now))
        if before and (confidence, deadline) == (before.confidence, known):
            return self._advised_again(key, before, now)
        after = _Standing(
            notice=notice,
            state=NEXT[state, self._event(confidence, deadline, now)],
            confidence=confidence,
            deadline=deadline,
            advised=before.advised if before else now,
        )
        self._standing[key] = after
        if after.state is State.LEAVING:
            return self._settle(now)
        if after.state is State.WAITING:
            return (Waiting(notice, starts_at=deadline - self._need),)
        return (Advised(notice),) if state is State.CALM else ()

    def _advised_again(
        self, key: tuple[str, str], before: _Standing, now: float
    ) -> tuple[Transition, ...]:
        if before.state is not State.ADVISED or now - before.advised < self._advise_again:
            return ()
        self._standing[key] = replace(before, advised=now)
        return (Advised(before.notice),)

    def _event(self, confidence: Confidence, deadline: float, now: float) -> Event:
        if confidence >= Confidence.CERTAIN:
            return Event.CERTAIN
        if deadline == _NEVER:
            return Event.ADVISED
        earlier = self._order is not None and deadline < self._order.deadline
        return Event.DUE if earlier or deadline - self._need <= now else Event.PLANNED

    def _cancelled(self, cancel: Cancelled, now: float) -> tuple[Transition, ...]:
        key = cancel.source, cancel.id
        gone = self._standing.get(key)
        if gone is None:
            return ()
        reason = cancel.reason or f"{gone.notice.source} {gone.notice.kind} was cancelled"
        if NEXT[gone.state, Event.CANCELLED] is State.CALM:
            del self._standing[key]
        if gone.state is not State.LEAVING:
            return (Withdrawn(gone.notice, reason),)
        return self._settle(now, reason)

    def _settle(self, now: float, reason: str = "") -> tuple[Transition, ...]:
        """Start what is due, then make the order what its notices say."""
        self._start(lambda deadline: deadline - self._need <= now)
        deadline = min((each.deadline for each in self._leaving()), default=-math.inf)
        # Whatever else is announced for earlier ends this order earlier.
        self._start(lambda waiting: waiting < deadline)
        before, self._order = self._order, self._derive(now)
        match before, self._order:
            case None, Order() as given:
                return (Given(given),)
            case Order() as gone, None:
                return (StoodDown(gone, reason),)
            case Order() as was, Order() as order if was != order:
                self._order = replace(order, amendments=was.amendments + 1)
                return (Amended(self._order),)
            case _:
                return ()

    def _leaving(self) -> list[_Standing]:
        return [each for each in self._standing.values() if each.state is State.LEAVING]

    def _start(self, due: Callable[[float], bool]) -> None:
        for key, each in self._standing.items():
            if each.state is State.WAITING and due(each.deadline):
                self._standing[key] = replace(each, state=NEXT[each.state, Event.DUE])

    def _derive(self, now: float) -> Order | None:
        leaving = self._leaving()
        if not leaving:
            return None
        first = min(leaving, key=lambda each: each.deadline)
        running = self._order
        return Order(
            id=running.id if running else self._new_id(),
            deadline=first.deadline,
            confidence=max(each.confidence for each in leaving),
            source=first.notice.source,
            kind=first.notice.kind,
            given=running.given if running else now,
            amendments=running.amendments if running else 0,
        )


def _deadline(notice: Notice, now: float) -> float:
    """When the machine goes; never infinite for what starts an order by itself."""
    if notice.confidence is Confidence.ADVISORY:
        return _NEVER
    if notice.deadline is not None and math.isfinite(notice.deadline):
        return notice.deadline
    return now if notice.confidence >= Confidence.CERTAIN else _NEVER

"""Orders of scope workload: a job asks to have all that it staged here saved, and goes by itself.

They are not the node's order: nothing is cordoned, no departure announced, nobody else told. The
flush saves the job as it saves a dead process's, by a deadline of its own; here is kept what
becomes of it, for the one who waits and for the report. While the node's order runs, such a wish
is part of that, and of its incident.
"""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import structlog

from evacd.allowance import Allowance
from evacd.clock import Clock
from evacd.facts import Confidence, Kept, Lost, Notice, Order, Outcome, Scope, Unit
from evacd.report.journal import Journal
from evacd.workloads import TurnResult

log = structlog.get_logger()

# Incidents that one user may open: so many at once, and one more every minute. The journal keeps
# 500, and whoever filled it would push out the node's own.
BURST, EVERY_SECONDS = 32, 60.0
# Answered for who asks again; beyond, the oldest that has ended is forgotten.
_REMEMBERED = 256


class Moves(Protocol):
    """What carries them out; `evacd.flush.Flush` does."""

    order: Order | None
    outcomes: dict[str, Outcome]

    def rescue(self, unit: str, *, deadline: float | None = None) -> None:
        """Save one unit, by *deadline*; `ended` and `idle` are told what becomes of it."""
        ...


class Turns(Protocol):
    """Who has callback workloads; `evacd.workloads.Board` does."""

    async def turn(
        self, unit: str, *, seconds: float, order: str, patience: float | None = None
    ) -> TurnResult:
        """Let every callback workload of *unit* flush itself."""
        ...


@dataclass
class _Asked:
    """One job's wish.

    Attributes:
        incident: It has one of its own; else it is part of the node's.
        turn: A callback workload has its turn, which decides.
    """

    order: Order
    incident: bool
    turn: bool = False
    state: str = "waiting"
    settled: bool = False
    outcome: Outcome | None = None


class OwnOrders:
    """All of this node, by unit: one at a time each."""

    def __init__(
        self,
        moves: Moves,
        turns: Turns,
        *,
        units: Callable[[], tuple[Unit, ...]],
        journal: Journal,
        clock: Clock,
        new_id: Callable[[], str],
        node: str,
        boot: str,
        count: Callable[[str, Mapping[str, Any]], None],
        beside: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """Nothing is asked for.

        Args:
            units: Who is on board.
            count: Told each event, by its name in the report.
            beside: Runs the turns of callback workloads, and owns them.
        """
        self._moves = moves
        self._turns = turns
        self._units = units
        self._journal = journal
        self._clock = clock
        self._new_id = new_id
        self._node = node
        self._boot = boot
        self._count = count
        self._beside = beside
        self._asked: dict[str, _Asked] = {}
        self._allowance: Allowance[int] = Allowance(BURST, EVERY_SECONDS)

    @property
    def running(self) -> bool:
        """Whether any has not settled."""
        return any(not one.settled for one in self._asked.values())

    # --- what is asked -------------------------------------------------------------------

    def ask(self, unit: str, seconds: float, *, uid: int) -> Order | str:
        """Save *unit* within so many seconds; the order, or why not.

        Args:
            uid: Who asks; may open only so many incidents.
        """
        now = self._clock.monotonic()
        before = self._asked.get(unit)
        if before is not None and not before.settled:
            return self._sooner(before, unit, now + seconds)
        found = next((one for one in self._units() if one.name == unit), None)
        if found is None:
            return f"nobody of {unit} is on board"
        if self._moves.order is None and not self._allowance.take(uid, now=now):
            return f"uid {uid} has asked too often: {BURST} at once, one more each minute"
        one = self._begin(found, now + seconds, now)
        if found.turn_seconds is not None and self._moves.order is None:
            one.turn = True
            self._beside(self._give_turn(one, unit))
        else:
            self._moves.rescue(unit, deadline=one.order.deadline)
        return one.order

    def _begin(self, unit: Unit, deadline: float, now: float) -> _Asked:
        node = self._moves.order
        order = Order(
            id=node.id if node is not None else self._new_id(),
            deadline=deadline,
            confidence=Confidence.CERTAIN,
            source="workload",
            kind="leave",
            given=now,
            scope=Scope.WORKLOAD,
        )
        self._forget_some()
        self._asked.pop(unit.name, None)
        one = self._asked[unit.name] = _Asked(order, incident=node is None)
        window = round(deadline - now, 3)
        log.info(
            "order.given", order=order.id, scope=order.scope, unit=unit.name, window_seconds=window
        )
        if one.incident:
            notice = Notice(
                order.source, order.kind, order.id, order.confidence, deadline, now, unit.name
            )
            self._journal.open(order, notice, node=self._node, boot=self._boot)
        facts = {"order": order.id, "scope": order.scope, "confidence": order.confidence.word}
        self._record(one, "order.given", {**facts, "window_seconds": window})
        return one

    def _sooner(self, one: _Asked, unit: str, deadline: float) -> Order:
        if deadline < one.order.deadline:
            amendments = one.order.amendments + 1
            one.order = replace(one.order, deadline=deadline, amendments=amendments)
            window = deadline - one.order.given
            self._record(one, "order.amended", {"order": one.order.id, "window_seconds": window})
            if not one.turn:
                self._moves.rescue(unit, deadline=deadline)
        return one.order

    async def _give_turn(self, one: _Asked, unit: str) -> None:
        began = self._clock.monotonic()
        seconds = max(0.0, one.order.deadline - began)
        self._record(one, "turn.given", {"unit": unit, "seconds": seconds, "priority": 0})
        one.state = "moving"
        result = await self._turns.turn(unit, seconds=seconds, order=one.order.id)
        took = self._clock.monotonic() - began
        self._record(one, "turn.finished", {"unit": unit, "seconds": took, **asdict(result)})
        if result.ok:
            self._settle(one, unit, Kept(unit, None, result.nbytes, took))
        else:
            self._lose(one, unit, result.reason)

    # --- what becomes of it --------------------------------------------------------------

    def record(self, name: str, data: Mapping[str, Any]) -> None:
        """An event of the path, maybe of a unit that has an order of its own."""
        one = self._asked.get(str(data.get("unit")))
        if one is None or one.settled or one.turn:
            return
        if name in {"flush.started", "turn.given"}:
            one.state = "moving"
        if one.incident:
            self._journal.record(one.order.id, name, data)

    def ended(self, outcome: Outcome) -> None:
        """What became of a unit: who is kept has settled, who is lost may be tried once more."""
        one = self._asked.get(outcome.unit)
        if one is None or one.settled or one.turn:
            return
        if isinstance(outcome, Kept):
            self._settle(one, outcome.unit, outcome)
        else:
            one.outcome = one.outcome or outcome

    def idle(self) -> None:
        """The flush has nothing left to do: who was not kept by now is lost."""
        for unit, one in list(self._asked.items()):
            if one.settled or one.turn:
                continue
            told = one.outcome or self._moves.outcomes.get(unit)
            if isinstance(told, Kept):
                self._settle(one, unit, told)
            else:
                self._lose(one, unit, told.reason if told is not None else self._emptiness(unit))

    def shown(self, *, now: float) -> list[dict[str, Any]]:
        """For the status: one per job, as far as it is remembered."""
        return [
            {
                "order": one.order.id,
                "unit": unit,
                "seconds_left": one.order.deadline - now,
                "state": one.state,
                "settled": one.settled,
                **_told(one.outcome if one.settled else None),
            }
            for unit, one in self._asked.items()
        ]

    # --- the inside ----------------------------------------------------------------------

    def _lose(self, one: _Asked, unit: str, reason: str) -> None:
        one.state, one.settled = "lost", True
        one.outcome = Lost(unit, reason)
        log.error("order.lost", order=one.order.id, unit=unit, reason=reason)
        self._finish(one, "0 saved, 1 lost")

    def _settle(self, one: _Asked, unit: str, kept: Kept) -> None:
        one.state, one.settled, one.outcome = "kept", True, kept
        log.info("order.kept", order=one.order.id, unit=unit)
        self._finish(one, "1 saved, 0 lost")

    def _finish(self, one: _Asked, verdict: str) -> None:
        self._count("own_order.ended", {"result": one.state})
        if one.incident:
            self._journal.record(one.order.id, "report.written", {"verdict": verdict})
            self._journal.close(one.order.id)

    def _record(self, one: _Asked, name: str, data: Mapping[str, Any]) -> None:
        self._count(name, data)
        if one.incident:
            self._journal.record(one.order.id, name, data)

    def _emptiness(self, unit: str) -> str:
        found = next((one for one in self._units() if one.name == unit), None)
        return found.empty_because if found is not None else "nobody of it is on board any more"

    def _forget_some(self) -> None:
        over = [unit for unit, one in self._asked.items() if one.settled]
        for unit in over[: max(0, len(self._asked) - _REMEMBERED + 1)]:
            del self._asked[unit]


def _told(outcome: Outcome | None) -> dict[str, Any]:
    kept = outcome if isinstance(outcome, Kept) else None
    return {
        "generation": asdict(kept.generation) if kept and kept.generation else None,
        "nbytes": kept.nbytes if kept else 0,
        "seconds": kept.seconds if kept else 0.0,
        "durable": kept.durable if kept else False,
        "reason": outcome.reason if isinstance(outcome, Lost) else "",
    }

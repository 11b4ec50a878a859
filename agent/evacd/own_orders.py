"""Orders of scope workload: a job asks to have all that it staged here saved, and goes by itself.

They are not the node's order: nothing is cordoned, no departure announced, nobody else told. The
flush saves the job as it saves a dead process's, by a deadline of its own; here is kept what
becomes of it, for the one who waits and for the report. While the node's order runs, such a wish
is part of that, and of its incident.

Its incident is its record as well, on the disk before whoever asked is answered: a daemon that is started
again goes on with it. The job's processes may take a while to come back with their memory.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import structlog

from evacd import own_before
from evacd.allowance import Allowance
from evacd.clock import Clock
from evacd.facts import Kept, Lost, Notice, Order, Outcome, Unit
from evacd.own_before import REMEMBERED, Before, Over, Unclosed
from evacd.own_seams import Moves, OnBoard, Turns
from evacd.report.journal import Journal
from evacd.workloads import Left, TurnResult

log = structlog.get_logger()

# For so long at least, the processes of a job are waited for after a restart: each looks for its daemon
# every 15 seconds. Who hands back slot by slot has something whole first, and its newest a moment later.
COME_BACK_SECONDS = 60.0
_HAND_BACK_SECONDS = 2.0
_LOOK_SECONDS = 0.05

# Incidents that one user may open, or amend: so many at once, and one more every minute. A journal that
# anybody could fill would fill the disk.
BURST, EVERY_SECONDS = 32, 60.0


@dataclass
class _Asked:
    """One job's wish.

    Attributes:
        incident: It has one of its own; else it is part of the node's.
        callers: So many callback workloads have their turn, which decides; 0 where the flush does.
        since: Since when those that have not come back yet are waited for, monotonic seconds; None
            where nobody is.
        gone: Ranks of those callback workloads that have left since, as finished.
    """

    order: Order
    incident: bool
    callers: int = 0
    since: float | None = None
    gone: frozenset[int] = frozenset()
    state: str = "waiting"
    settled: bool = False
    outcome: Outcome | None = None

    @property
    def flushed(self) -> bool:
        """What becomes of it is for the flush to say, and now."""
        return not (self.settled or self.callers)

    @property
    def expected(self) -> int:
        """So many callback workloads have to be on board for a turn of all of them."""
        return self.callers - len(self.gone)


class OwnOrders:
    """All of this node, by unit: one at a time each."""

    def __init__(
        self,
        moves: Moves,
        turns: Turns,
        *,
        aboard: OnBoard,
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
            count: Told each event, by its name in the report.
            beside: Runs the turns of callback workloads, and owns them.
        """
        self._moves = moves
        self._turns = turns
        self._aboard = aboard
        self._journal = journal
        self._clock = clock
        self._new_id = new_id
        self._node = node
        self._boot = boot
        self._count = count
        self._beside = beside
        self._asked: dict[str, _Asked] = {}
        self._allowance: Allowance[int] = Allowance(BURST, EVERY_SECONDS)

    async def moved(self) -> None:
        """Wait for what moves just now, where any has not settled: the next daemon goes on with the rest."""
        while any(not one.settled for one in self._asked.values()):
            if self._moves.settled.is_set() or not self._moves.running:
                break
            await asyncio.sleep(_LOOK_SECONDS)

    # --- what is asked -------------------------------------------------------------------

    def ask(self, unit: str, seconds: float, *, uid: int) -> Order | str:
        """Save *unit* within so many seconds; the order, or why not.

        Args:
            uid: Who asks; may open only so many incidents.
        """
        now = self._clock.monotonic()
        before = self._asked.get(unit)
        if before is not None and not before.settled:
            return self._sooner(before, unit, now + seconds, uid)
        found = self._unit(unit)
        if found is None and not self._aboard.returning(unit):
            return f"nobody of {unit} is on board"
        if self._moves.order is None and not self._allowance.take(uid, now=now):
            return _too_often(uid)
        callers = self._callers(unit) if self._moves.order is None else 0
        one = self._begin(unit, now + seconds, now, callers)
        self._go(one, unit)
        return one.order

    def resume(self, before: Iterable[Before | Over | Unclosed]) -> None:
        """Go on with what an earlier daemon had not settled, and remember what it had.

        Args:
            before: Oldest first.
        """
        now = self._clock.monotonic()
        for one in before:
            if isinstance(one, Over):
                self._close(one)
            elif isinstance(one, Unclosed):
                self._journal.resume(one.id, since_seconds=0.0)
                self._journal.close(one.id)
            elif one.outcome is not None:
                state = "kept" if isinstance(one.outcome, Kept) else "lost"
                ended = _Asked(one.order, True, state=state, settled=True, outcome=one.outcome)
                self._keep(one.unit, ended)
            else:
                self._go_on(one, now)

    def tick(self) -> None:
        """Time has passed: somebody may have come back, or nobody may do so any more."""
        for unit, one in list(self._asked.items()):
            if one.since is not None and not one.settled:
                self._go(one, unit)

    def left(self, one: Left) -> None:
        """A workload is finished: where it is a callback workload, nobody waits for its return any more."""
        asked = self._asked.get(one.unit)
        if not one.calls or asked is None or asked.settled or one.rank in asked.gone:
            return
        if asked.expected > 0:  # whoever comes and leaves for ever fills no journal
            asked.gone |= {one.rank}
            self._record(asked, "workload.left", {"unit": one.unit, "rank": one.rank})

    def _go_on(self, before: Before, now: float) -> None:
        asked = self._asked.get(before.unit)
        if asked is not None and not asked.settled:
            why = f"order {asked.order.id} is for the same"
            self._close(Over(before.order.id, before.unit, why))
            return
        order, unit = before.order, before.unit
        left = order.deadline - now
        log.warning("order.resumed", order=order.id, unit=unit, seconds_left=round(left, 3))
        one = _Asked(order, True, before.callers, since=now, gone=before.gone)
        self._keep(unit, one)
        self._journal.resume(order.id, since_seconds=now - order.given)
        self._record(
            one, "order.given", own_before.given(order, unit, callers=before.callers, now=now)
        )
        self._go(one, unit)

    def _close(self, over: Over) -> None:
        log.error("order.lost", order=over.id, unit=over.unit, reason=over.reason)
        self._journal.resume(over.id, since_seconds=0.0)
        if over.unit:
            self._journal.record(over.id, "flush.lost", {"unit": over.unit, "reason": over.reason})
        self._count("own_order.ended", {"result": "lost"})
        end = own_before.reported(over.unit, Lost(over.unit, over.reason))
        self._journal.finish(over.id, "report.written", end)

    def _go(self, one: _Asked, unit: str) -> None:
        """Carry it out, unless it is better to wait for who comes back."""
        if one.since is not None and self._waits(one, unit, one.since):
            return
        one.since = None
        if one.callers:
            self._beside(self._give_turn(one, unit))
        else:
            self._moves.rescue(unit, deadline=one.order.deadline)

    def _waits(self, one: _Asked, unit: str, since: float) -> bool:
        now = self._clock.monotonic()
        if one.callers:
            # Of a process without slots nobody knows whether it has ended meanwhile. For it nobody waits
            # who is there; where none is, there is nothing to be lost by that.
            back, until = self._aboard.callers(unit), since + COME_BACK_SECONDS
            return back < one.expected and now < (until if back else max(until, one.order.deadline))
        if now >= max(one.order.deadline, since + COME_BACK_SECONDS):
            return False
        found = self._unit(unit)
        whole = found is not None and bool(found.candidates)
        return self._aboard.returning(unit) and not (whole and now >= since + _HAND_BACK_SECONDS)

    def _begin(self, unit: str, deadline: float, now: float, callers: int) -> _Asked:
        node = self._moves.order
        id = node.id if node is not None else self._new_id()
        order = own_before.ordered(id, given=now, deadline=deadline)
        since = now if self._aboard.returning(unit) else None
        one = _Asked(order, node is None, callers, since)
        self._keep(unit, one)
        facts = own_before.given(order, unit, callers=callers, now=now)
        log.info(
            "order.given",
            order=order.id, scope=order.scope, unit=unit, window_seconds=facts["window_seconds"],
        )  # fmt: skip
        if one.incident:
            notice = Notice(
                order.source, order.kind, order.id, order.confidence, deadline, now, unit
            )
            self._journal.open(order, notice, node=self._node, boot=self._boot)
        self._record(one, "order.given", facts)
        return one

    def _sooner(self, one: _Asked, unit: str, deadline: float, uid: int) -> Order | str:
        if deadline < one.order.deadline:
            if one.incident and not self._allowance.take(uid, now=self._clock.monotonic()):
                return _too_often(uid)
            amendments = one.order.amendments + 1
            one.order = replace(one.order, deadline=deadline, amendments=amendments)
            self._record(one, "order.amended", own_before.amended(one.order))
            self._aboard.hurry(one.order, unit)
            if one.flushed and one.since is None:
                self._moves.rescue(unit, deadline=deadline)
        return one.order

    async def _give_turn(self, one: _Asked, unit: str) -> None:
        began = self._clock.monotonic()
        seconds = max(0.0, one.order.deadline - began)
        self._record(one, "turn.given", {"unit": unit, "seconds": seconds, "priority": 0})
        one.state = "moving"
        # As with the flush, an answer that is late still counts.
        patience = max(seconds, COME_BACK_SECONDS)
        back, expected = self._aboard.callers(unit), one.expected
        result = await self._turns.turn(
            unit, seconds=seconds, order=one.order.id, patience=patience
        )
        took = self._clock.monotonic() - began
        if 0 < back < expected:
            # The rest of it is nowhere, however well these did.
            why = "; ".join(filter(None, (f"only {back} of {expected} came back", result.reason)))
            result = TurnResult(False, result.nbytes, why)
        self._record(one, "turn.finished", {"unit": unit, "seconds": took, **asdict(result)})
        if result.ok:
            self._settle(one, unit, Kept(unit, None, result.nbytes, took))
        else:
            self._lose(one, unit, result.reason)

    # --- what becomes of it --------------------------------------------------------------

    def record(self, name: str, data: Mapping[str, Any]) -> None:
        """An event of the path, maybe of a unit that has an order of its own."""
        one = self._asked.get(str(data.get("unit")))
        if one is None or not one.flushed:
            return
        if name in {"flush.started", "turn.given"}:
            one.state = "moving"
        if one.incident:
            self._journal.record(one.order.id, name, data)

    def ended(self, outcome: Outcome) -> None:
        """What became of a unit: who is kept has settled, who is lost may be tried once more."""
        one = self._asked.get(outcome.unit)
        if one is None or not one.flushed:
            return
        if isinstance(outcome, Kept):
            self._settle(one, outcome.unit, outcome)
        elif one.since is None:
            one.outcome = one.outcome or outcome

    def idle(self) -> None:
        """The flush has nothing left to do: who was not kept by now is lost."""
        for unit, one in list(self._asked.items()):
            if not one.flushed or one.since is not None:
                continue
            found = one.outcome or self._moves.outcomes.get(unit)
            if found is None and self._moves.order is None and (callers := self._callers(unit)):
                # The node's order, of which it was a part, was taken back; its own wish was not.
                one.callers = callers
                self._go(one, unit)
            elif isinstance(found, Kept):
                self._settle(one, unit, found)
            else:
                self._lose(one, unit, found.reason if found is not None else self._emptiness(unit))

    def shown(self, *, now: float) -> list[dict[str, Any]]:
        """For the status: one per job, as far as it is remembered."""
        return [
            {
                "order": one.order.id,
                "seconds_left": one.order.deadline - now,
                "state": one.state,
                "settled": one.settled,
                **own_before.told(unit, one.outcome if one.settled else None),
            }
            for unit, one in self._asked.items()
        ]

    # --- the inside ----------------------------------------------------------------------

    def _lose(self, one: _Asked, unit: str, reason: str) -> None:
        one.state, one.settled = "lost", True
        one.outcome = Lost(unit, reason)
        log.error("order.lost", order=one.order.id, unit=unit, reason=reason)
        self._finish(one, unit, one.outcome)

    def _settle(self, one: _Asked, unit: str, kept: Kept) -> None:
        one.state, one.settled, one.outcome = "kept", True, kept
        log.info("order.kept", order=one.order.id, unit=unit)
        self._finish(one, unit, kept)

    def _finish(self, one: _Asked, unit: str, outcome: Outcome) -> None:
        self._count("own_order.ended", {"result": one.state})
        if one.incident:
            self._journal.finish(one.order.id, "report.written", own_before.reported(unit, outcome))

    def _record(self, one: _Asked, name: str, data: Mapping[str, Any]) -> None:
        self._count(name, data)
        if one.incident:
            self._journal.record(one.order.id, name, data)

    def _unit(self, name: str) -> Unit | None:
        return next((one for one in self._aboard.units() if one.name == name), None)

    def _callers(self, unit: str) -> int:
        """How many callback workloads decide; 0 where it is for the flush to."""
        found = self._unit(unit)
        calls = found is not None and found.turn_seconds is not None
        return self._aboard.callers(unit) if calls else 0

    def _emptiness(self, unit: str) -> str:
        found = self._unit(unit)
        return found.empty_because if found is not None else "nobody of it is on board any more"

    def _keep(self, unit: str, one: _Asked) -> None:
        """The last that was asked of *unit*; what was asked longest ago, and has ended, is forgotten."""
        over = [name for name, each in self._asked.items() if each.settled]
        for name in over[: max(0, len(self._asked) - REMEMBERED + 1)]:
            del self._asked[name]
        self._asked.pop(unit, None)
        self._asked[unit] = one


def _too_often(uid: int) -> str:
    return f"uid {uid} has asked too often: {BURST} at once, one more each minute"

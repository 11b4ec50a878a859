"""Turns of callback workloads: told to go, and waited for until they answer or cannot."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from evac.wire import Done


@dataclass(frozen=True)
class TurnResult:
    """How a unit's turn ended.

    Attributes:
        ok: Every workload of the unit said that it is safe.
        nbytes: What they say they wrote.
        reason: Why not, where not ok.
    """

    ok: bool
    nbytes: int
    reason: str


@dataclass(eq=False)
class _Turn:
    """One turn: whose answers are awaited, and those that came.

    Attributes:
        deadline: What those who are asked were told last, as monotonic seconds.
    """

    ranks: Mapping[int, int]
    unit: str
    order: str
    deadline: float
    answers: dict[int, Done] = field(default_factory=dict)
    over: asyncio.Event = field(default_factory=asyncio.Event)


class Turns:
    """All turns in progress; workloads are named by their roster id."""

    def __init__(self) -> None:
        self._turns: dict[int, _Turn] = {}
        self._last = 0

    def begin(self, ranks: Mapping[int, int], *, unit: str, order: str, deadline: float) -> int:
        """A number for a new turn.

        Args:
            ranks: Workload id -> rank, of all who are asked.
            unit: Whose workloads these are.
            order: Id of the order behind it.
            deadline: Monotonic seconds.
        """
        self._last += 1
        self._turns[self._last] = _Turn(dict(ranks), unit, order, deadline)
        return self._last

    def hurry(
        self, order: str, deadline: float, *, unit: str | None = None
    ) -> list[tuple[int, int]]:
        """Turns that *order* is behind end by *deadline*; those that would have ended earlier stay as they are.

        Args:
            unit: Whose turns alone; None for everybody's.

        Returns:
            Who is to be told: the number of a turn, and a workload that has not answered it.
        """
        sooner = {
            number: one
            for number, one in self._turns.items()
            if one.order == order and unit in {None, one.unit} and deadline < one.deadline
        }
        for one in sooner.values():
            one.deadline = deadline
        return [
            (number, who)
            for number, one in sooner.items()
            for who in one.ranks
            if who not in one.answers
        ]

    def answer(self, workload: int, done: Done) -> None:
        """A workload is done; an answer to no turn of its own counts for nothing."""
        turn = self._turns.get(done.turn)
        if turn is not None and workload in turn.ranks and workload not in turn.answers:
            turn.answers[workload] = done
            if len(turn.answers) == len(turn.ranks):
                turn.over.set()

    def cannot(self, workload: int, reason: str) -> None:
        """A workload died or left: it will not answer."""
        for number in self._turns:
            self.refuse(number, workload, reason)

    def refuse(self, turn: int, workload: int, reason: str) -> None:
        """One workload cannot have its turn."""
        self.answer(workload, Done(turn=turn, ok=False, reason=reason))

    async def result(self, turn: int, *, seconds: float) -> TurnResult:
        """Wait until all have answered or *seconds* have passed; ends the turn."""
        one = self._turns[turn]
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await one.over.wait()
        except TimeoutError:
            pass
        finally:
            del self._turns[turn]
        reasons = [
            f"rank {rank}: {why}"
            for workload, rank in sorted(one.ranks.items(), key=lambda pair: pair[1])
            if (why := _failure(one.answers.get(workload), seconds))
        ]
        nbytes = sum(done.nbytes for done in one.answers.values() if done.ok)
        return TurnResult(ok=not reasons, nbytes=nbytes, reason="; ".join(reasons))


def _failure(done: Done | None, seconds: float) -> str:
    if done is None:
        return f"no answer within {seconds:.1f} s"
    return "" if done.ok else done.reason or "failed without a reason"

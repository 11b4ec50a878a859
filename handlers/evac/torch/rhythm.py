"""When to stage: the pace, what the gate arranged, and never between two halves of a step."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from evac._callbacks import RunningOrder
from evac._clock import Monotonic, monotonic
from evac.client import Client
from evac.torch.gate import Gate
from evac.torch.keystore import keystore
from evac.torch.pace import PACE, Pace
from evac.torch.world import World

log = logging.getLogger("evac")

_STAGE, _PLAN = "stage", "plan"
# The first stages make the slots, and say little of the next ones.
_KNOWN = 2
_NO_STORE = (RuntimeError, ValueError, ImportError)


@dataclass(frozen=True)
class Due:
    """What is to be done at the end of a step, on all ranks alike.

    Attributes:
        stage: Stage it.
        plan: Plan the layout anew first, which is a collective.
        unfinished: It would be due, but for what is told here; "" where nothing is amiss.
    """

    stage: bool = False
    plan: bool = False
    unfinished: str = ""


class Rhythm:
    """Feed it each step's end; it says what is due.

    Args:
        unfinished: Why this moment is in the middle of a step; "" where it is not.
    """

    def __init__(
        self,
        pace: Pace,
        world: World,
        unfinished: Callable[[], str],
        *,
        job: str,
        clock: Monotonic = monotonic,
    ) -> None:
        self._pace = pace
        self._world = world
        self._clock = clock
        self._unfinished = unfinished
        self._name = _name(world, job)
        self._gate: Gate | None = None
        self._owed = False
        self._orders: set[str] = set()
        self._count = 0
        self._told = (0, False)

    def follow(self, client: Client) -> None:
        """Stage at the next step's end when this node, or any other of the job's, is to go.

        What is staged already may be moving by then; the newer generation is taken where it
        still fits.
        """
        client.on_order(self._ordered)
        client.on_advice(lambda _advice: self.ask_stage())

    def ask_stage(self) -> None:
        """Have all ranks stage soon; from any thread."""
        self._ask(_STAGE)

    def ask_plan(self) -> None:
        """Have all ranks plan anew soon: the state has outgrown the layout."""
        self._ask(_PLAN)

    def passed(self, step: int, *, planned: bool) -> Due:
        """The training thread has ended *step*.

        Args:
            planned: The layout is.
        """
        plan = self._arranged(step, planned=planned)
        self._owed |= self._pace.due(step, now=self._clock(), planned=planned)
        if not self._owed:
            return Due(plan=plan)
        # Before the layout is planned, a stage is a collective: never on one rank's finding.
        if planned and (unfinished := self._unfinished()):
            return Due(plan=plan, unfinished=unfinished)
        self._owed = False
        return Due(stage=True, plan=plan)

    def asked(self, step: int, *, planned: bool) -> Due:
        """As `passed`, where *step* is to be staged whatever is due."""
        plan = self._arranged(step, planned=planned)
        self._owed = False
        return Due(stage=True, plan=plan)

    def _arranged(self, step: int, *, planned: bool) -> bool:
        """Take in what all ranks agreed on for *step*; whether it is to plan anew."""
        plan = False
        for what in self._open().passed(step):
            if what == _PLAN:
                # Unplanned, all ranks plan at the next stage anyway.
                plan = planned
            elif what.startswith(PACE):
                self._pace.agreed(what)
            else:
                self._owed = True
        return plan

    def owe(self) -> None:
        """What was due could not be staged in the middle of a step: try again at the next one's end.

        Before the layout is planned, all ranks are to say so alike.
        """
        self._owed = True

    def staged(self, stall: float, *, prepared: bool = False) -> str:
        """A stage kept training waiting for *stall* seconds; what a person should know, or "".

        Args:
            prepared: See `Pace.staged`.
        """
        now = self._clock()
        self._count += 1
        # Once it can be known, and again whenever it is another one.
        told = (self._pace.steps, self._count > _KNOWN)
        if self._pace.leads and told[1] and told != self._told and (text := self._pace.told(now)):
            self._told = told
            log.info("%s", text)
        if wish := self._pace.staged(stall, now=now, prepared=prepared):
            self._ask(wish)
        return self._pace.verdict(now) if self._pace.leads else ""

    def close(self) -> None:
        """Arrange nothing more."""
        if self._gate is not None:
            self._gate.close()

    def _ask(self, what: str) -> None:
        if self._gate is not None:
            self._gate.ask(what)

    def _open(self) -> Gate:
        if self._gate is None:
            world = self._world
            store = None
            if self._name:
                try:
                    store = keystore(self._name, own=True)
                except _NO_STORE as error:
                    log.warning("ranks cannot arrange anything between steps: %s", error)
            self._gate = Gate(store, rank=world.rank, world=world.size)
            # What was heard before the first step.
            if self._orders:
                self._gate.ask(_STAGE)
        return self._gate

    def _ordered(self, order: RunningOrder) -> None:
        # An amended order asks for nothing that it did not ask for before.
        if order.id not in self._orders:
            self._orders.add(order.id)
            self.ask_stage()


def _name(world: World, job: str) -> str:
    """What this checkpointer is called on all ranks; "" where they cannot arrange anything.

    One store serves all checkpointers of a process, and each rank makes its own in the same order. It
    counts them in the store: who has been in a world before has counted there, and not here.
    """
    if world.size == 1:
        return ""
    try:
        number = keystore(f"evac/{job}").add(f"made-{world.rank}", 1)
    except _NO_STORE as error:
        log.warning("ranks cannot arrange anything between steps: %s", error)
        return ""
    return f"evac/{job}/{number}"

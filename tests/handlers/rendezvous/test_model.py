"""Agents whose steps are taken in any order, over stores that are lost and cut off: never two jobs out of one.

The reader, the view and the folding are the real ones; stores are dictionaries, and who acts next is for
hypothesis to say. A round *lives* while every one of its agents works in it.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from evac.rendezvous import log
from evac.rendezvous.address import TCPSTORE, Address
from evac.rendezvous.events import (
    Begin,
    Call,
    Confirm,
    Depart,
    Gone,
    Join,
    Leave,
    Met,
    Open,
    encode,
)
from evac.rendezvous.keys import Keys, Refused, Unreachable
from evac.rendezvous.reader import Reader
from evac.rendezvous.state import Agent, State, hosted
from evac.rendezvous.view import View

_EXAMPLES = 1500 if os.environ.get("EVAC_NIGHTLY") == "1" else 50
HOME = Address(TCPSTORE, "home", 1, "evac/run")


@dataclass
class World:
    """Stores by their endpoints, and who cannot reach which."""

    stores: dict[str, dict[str, bytes]] = field(default_factory=dict[str, dict[str, bytes]])
    cuts: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    now: float = 0.0

    def opener(self, who: str) -> Callable[[Address], Keys]:
        return lambda address: Memory(self, who, address.endpoint)


class Memory:
    """See `Keys`."""

    def __init__(self, world: World, who: str, endpoint: str) -> None:
        self._world, self._who, self._endpoint = world, who, endpoint
        self._held = world.stores.get(endpoint)
        self._all()

    def _all(self) -> dict[str, bytes]:
        held = self._world.stores.get(self._endpoint)
        if (self._who, self._endpoint) in self._world.cuts:
            raise Unreachable(self._endpoint, "timed out")
        if held is None or held is not self._held:
            raise Refused(self._endpoint, "refused")
        return held

    def create(self, key: str, value: bytes) -> bytes:
        return self._all().setdefault(key, value)

    def replace(self, key: str, before: bytes, value: bytes) -> bool:
        if self._all().get(key, b"") != before:
            return False
        self._all()[key] = value
        return True

    def put(self, key: str, value: bytes) -> None:
        self._all()[key] = value

    def get(self, keys: Sequence[str]) -> list[bytes | None]:
        return [self._all().get(key) for key in keys]

    def wait(self, key: str) -> None:
        raise AssertionError("a step never waits")

    def delete(self, *keys: str) -> None:
        for key in keys:
            self._all().pop(key, None)

    def clear(self) -> bool:
        return False

    def keep(self) -> None:
        pass

    def close(self) -> None:
        pass


class Alone(Reader):
    """Without threads: what a host does beside is done by the rules."""

    def _beside(self, name: str, do: Callable[..., None], *args: object) -> None:
        pass


class Sim:
    """One agent, in steps: what `EvacHandler` does, without torch."""

    def __init__(self, world: World, name: str, *, hosts: bool = False) -> None:
        self.world, self.hosts = world, hosts
        self.me = Agent(name, f"node-{name}", "boot", f"{name}:1")
        fresh = hosted(State(held=True), self.me) if hosts else State()
        world.stores[self.me.standby] = {}
        self.view = View(HOME, self.me, world.opener(name), fresh)
        self.reader = Alone(
            self.view,
            self._standby,
            lambda: world.now,
            patience_seconds=2.0,
            denied_seconds=5.0,
        )
        self.works = ""
        self.members: frozenset[str] = frozenset()
        self.number = self.before = self.opened = 0
        self.reached: tuple[int, str] = (0, "")
        self.marks = 0
        self.dead = False

    def _standby(self) -> Keys:
        return Memory(self.world, self.me.id, self.me.standby)

    def read(self) -> None:
        self.reader.step()

    def write(self) -> None:
        view = self.view
        if not view.outbox or view.goes or not view.service or view.trouble:
            return
        self.marks += 1
        try:
            keys = view.open(view.address)
            if view.try_append(keys, view.outbox[0], f"{self.me.id}:{self.marks}") is not None:
                said = view.outbox.popleft()
                if isinstance(said, Leave):
                    self.die()
        except Unreachable:
            pass

    def act(self) -> None:
        state, me, view = self.view.state, self.me.id, self.view
        if not view.service or view.outbox:
            return
        rank = state.round.rank(me)
        if self.works:
            inside = state.round.number == self.number and rank is not None
            if not inside or state.over:
                self.works, self.before = "", state.round.number
                if inside:
                    view.say([Met(me, self.number)])
            return
        if not view.stays:
            view.say([Leave(me)])
        elif state.round.number > self.before and rank is not None:
            if self.reached == (state.round.number, state.round.at):
                self.works, self.number = state.round.at, state.round.number
                self.members = frozenset(one.id for one in state.round.agents)
            else:
                self.before = state.round.number
        elif state.forming is not None and (mine := state.forming.rank(me)) is not None:
            number, at = state.forming.number, state.forming.at
            if mine == 0 and self.opened != number:
                self.opened = number
                self.reached = (number, f"{me}:{1000 + number}")
                view.say([Open(me, number, self.reached[1]), Confirm(me, number)])
            elif mine and at and self.reached != (number, at):
                self.reached = (number, at)
                view.say([Confirm(me, number)])
        elif not any(one.id == me for one in state.waiting):
            at, one = self.me.standby, self.me
            hosts = self.hosts
            view.say([Join(me, one.node, one.boot, 1, 4, self.before, at, hosts)])
        elif state.held:
            view.say([Begin(me)])
        elif not state.round.number and not state.called and len(state.waiting) > 1:
            view.say([Call(me)])

    def die(self) -> None:
        self.dead, self.works = True, ""
        self.world.stores.pop(self.me.standby, None)
        if self.hosts:
            self.world.stores.pop(HOME.endpoint, None)


class Job(RuleBasedStateMachine):
    """Four agents, and two who come later."""

    @initialize(embedded=st.booleans())
    def begin(self, embedded: bool) -> None:
        self.world = World({HOME.endpoint: {}})
        self.embedded = embedded
        self.sims = [
            Sim(self.world, name, hosts=embedded and name == "a") for name in ("a", "b", "c", "d")
        ]
        self.sequence = 0
        self.turns(12)

    def one(self, which: int) -> Sim:
        return self.sims[which % len(self.sims)]

    @rule(which=st.integers(0, 5), do=st.sampled_from(["read", "act", "write", "die"]))
    def step(self, which: int, do: str) -> None:
        sim = self.one(which)
        if not sim.dead and (do != "die" or sum(not one.dead for one in self.sims) > 2):
            getattr(sim, do)()

    @rule(count=st.integers(1, 12))
    def turns(self, count: int) -> None:
        for _ in range(count):
            self.world.now += 0.5
            for sim in self.sims:
                for do in (sim.read, sim.act, sim.write, sim.write, sim.read):
                    if not sim.dead:
                        do()

    @rule(which=st.integers(0, 5), word=st.sampled_from(["leaving", "leaving", "staying"]))
    def depart(self, which: int, word: str) -> None:
        """It reaches every store that serves: what one is told, hosts pass on."""
        self.sequence += 1
        node = self.one(which).me.node
        for endpoint in list(self.world.stores):
            keys = Memory(self.world, "evacd", endpoint)
            found = log.snapshot(keys)
            if found is not None:
                log.append(keys, found.at, encode(Depart(word, node, "boot", self.sequence)))

    @rule(which=st.integers(0, 5), other=st.integers(0, 5), whole=st.booleans())
    def cut(self, which: int, other: int, whole: bool) -> None:
        """From one agent to where another would serve; or all is whole again."""
        if whole:
            self.world.cuts.clear()
        elif which % len(self.sims) != other % len(self.sims):
            self.world.cuts.add((self.one(which).me.id, self.one(other).me.standby))

    @rule(side=st.sets(st.integers(0, 3), min_size=1, max_size=3))
    def part(self, side: set[int]) -> None:
        """Neither half reaches where one of the other half would serve."""
        for one in side:
            for other in set(range(4)) - side:
                here, there = self.one(one).me, self.one(other).me
                self.world.cuts |= {(here.id, there.standby), (there.id, here.standby)}

    @rule()
    def lose(self) -> None:
        """A store of its own comes back empty."""
        if not self.embedded:
            self.world.stores[HOME.endpoint] = {}

    @rule(which=st.integers(0, 5), other=st.integers(0, 5))
    def miss(self, which: int, other: int) -> None:
        """Who is dead is found to be; and who never came along when the log moved."""
        sim, gone = self.one(which), self.one(other)
        elsewhere = sim.view.state.host is not None and sim.view.state.term > 0
        apart = elsewhere and gone.view.service != sim.view.service
        if not sim.dead and sim is not gone and (gone.dead or apart) and not sim.view.outbox:
            sim.view.say([Gone(gone.me.id, by=sim.me.node)])

    @rule()
    def miss_all(self) -> None:
        for which in range(len(self.sims)):
            for other in range(len(self.sims)):
                self.miss(which, other)
                if not self.one(which).dead:
                    self.one(which).write()
                    self.one(which).read()

    @rule(name=st.sampled_from(["e", "f"]))
    def come(self, name: str) -> None:
        if all(sim.me.id != name for sim in self.sims):
            self.sims.append(Sim(self.world, name))

    @invariant()
    def one_job(self) -> None:
        works = {sim.me.id: sim.works for sim in self.sims if sim.works}
        lives = {
            sim.works
            for sim in self.sims
            if sim.works and all(works.get(one) == sim.works for one in sim.members)
        }
        assert len(lives) <= 1

    @invariant()
    def nobody_who_departs_is_in_a_round_that_forms(self) -> None:
        for sim in self.sims:
            forming = sim.view.state.forming
            assert forming is None or not any(map(sim.view.state.departs, forming.agents))


Job.TestCase.settings = settings(max_examples=_EXAMPLES, stateful_step_count=25, deadline=None)
TestJob = Job.TestCase


def test_the_model_lives() -> None:
    """All of it comes to pass there: rounds, departures, moves, losses."""
    job = Job()
    job.begin(True)
    job.turns(12)
    (works,) = {sim.works for sim in job.sims}
    assert works
    job.depart(0, "leaving")
    job.turns(30)
    assert [sim.dead for sim in job.sims] == [True, False, False, False]
    assert {sim.works for sim in job.sims[1:]} != {""}
    assert {len(sim.members) for sim in job.sims[1:]} == {3}
    assert {sim.view.state.term for sim in job.sims[1:]} == {1}
    job.one_job()

    job = Job()
    job.begin(False)
    job.turns(12)
    job.lose()
    job.depart(3, "leaving")
    job.turns(30)
    job.depart(3, "leaving")
    job.come("e")
    job.turns(40)
    alive = [sim for sim in job.sims if not sim.dead]
    assert {len(sim.members) for sim in alive if sim.works} == {4}
    assert len(alive) == 4

"""How much of what mattered is saved in a short window, beside the best that anybody could have done.

Random mixes of workloads (sizes, priorities, several generations), windows and links, in simulated
time: the real flush drivers with the real planner on an event loop whose clock jumps. Half of the
kinds of mixes have two stores, which all workloads prefer in the same order. Beside them
the clairvoyant optimum, which knows the link's rate at every moment of the future, and the
fair share: everybody flushes the newest at once and the link is divided among them.

The value of an outcome is lexicographic by priority: no number of lower workloads outweighs a
higher one, and a newer generation outweighs an older one of the same workload. Written as a
fraction with one digit per workload, most urgent first, it is comparable; 1.00 is the optimum's.
What is counted is what was whole when the machine went. Commits cost nothing here, on no side.
"""

import asyncio
import math
import sys
from asyncio import TaskGroup
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fractions import Fraction
from itertools import count
from random import Random
from selectors import DefaultSelector, SelectorKey
from statistics import mean

from harness import Ratio, Variant, main

from evac.generation import Generation
from evacd.facts import Candidate, Confidence, Kept, Kind, Order, Unit
from evacd.flush import Flush
from evacd.flush.save import Saved, Unsaved
from evacd.plan import in_order
from evacd.plan.rate import Rate
from evacd.workloads import Part, TurnResult

MIXES = 200
LANE, OTHER = "link", "second"
# The clouds' own: 30 s, two minutes, and what is left of them when a notice came late.
WINDOWS = (10.0, 25.0, 30.0, 60.0, 120.0)
# What a node's link to its store does, bytes per second.
RATES = (0.1e9, 0.4e9, 1.2e9, 3.0e9)
# A link that varies has another rate every so many seconds.
SEGMENT_SECONDS = 2.0
# A store tells of so many parts of each body.
PARTS = 40
KINDS = ("steady", "varying", "drifting", "two_steady", "two_varying")


# --- a mix ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Link:
    """A link's rate over time.

    Attributes:
        rates: Bytes per second, one for each segment of `SEGMENT_SECONDS`; the last one stays.
        known: What a node had measured before the notice.
    """

    rates: tuple[float, ...]
    known: float

    def carried(self, since: float, until: float) -> float:
        """Bytes that go through between two points in time."""
        total = 0.0
        for index, rate in enumerate(self.rates):
            begins = index * SEGMENT_SECONDS
            ends = begins + SEGMENT_SECONDS if index < len(self.rates) - 1 else float("inf")
            total += rate * max(0.0, min(until, ends) - max(since, begins))
        return total

    def ends(self, since: float, nbytes: float) -> float:
        """When *nbytes* that begin at *since* are through."""
        at, left = since, nbytes
        for index, rate in enumerate(self.rates):
            ends = (index + 1) * SEGMENT_SECONDS if index < len(self.rates) - 1 else float("inf")
            if at >= ends:
                continue
            if left <= rate * (ends - at):
                return at + left / rate
            left -= rate * (ends - at)
            at = ends
        raise AssertionError("the last segment never ends")


@dataclass(frozen=True)
class Mix:
    """One node, and how long it has.

    Attributes:
        links: By lane, the one that all units prefer first.
    """

    units: tuple[Unit, ...]
    window: float
    links: Mapping[str, Link]


def mix(random: Random, kind: str) -> Mix:
    """One node: sizes are drawn so that some, but seldom all of it fits."""
    window, rate = random.choice(WINDOWS), random.choice(RATES)
    number = random.randint(1, 10)
    way = kind.removeprefix("two_")
    links = {LANE: _link(random, rate, window, way)}
    if way != kind:
        second = rate * random.choice((0.2, 0.5, 1.0, 2.0))
        links[OTHER] = _link(random, second, window, way)
    rates = sum(link.known for link in links.values())
    room = window * rates * random.choice((0.5, 1.0, 1.5, 3.0))
    shares = [random.paretovariate(1.2) for _ in range(number)]
    units = []
    for index, share in enumerate(shares):
        nbytes = max(int(room * share / sum(shares)), 1)
        # Some hold a full image and older, smaller ones: deltas, weights only, another layout.
        older = [
            int(nbytes * random.choice((1.0, 1.0, 0.5, 0.2))) for _ in range(random.randint(0, 2))
        ]
        units.append(
            Unit(
                name=f"user/job-{index}",
                priority=random.choice((0, 0, 10, 50, 100)),
                arrived=float(index),
                lanes=tuple(links),
                candidates=tuple(
                    Candidate(Generation(1, 100 - i), n) for i, n in enumerate((nbytes, *older))
                ),
            )
        )
    return Mix(tuple(units), window, links)


def _link(random: Random, rate: float, window: float, kind: str) -> Link:
    """``varying`` comes back to what was measured, ``drifting`` need not.

    The first is a link that is shared: its rate's logarithm is pulled back by a fifth every
    two seconds, and lies 25 % off on average. The second is a throttle that nobody foresaw.
    """
    if kind == "steady":
        return Link((rate,), known=rate)
    pull, noise = (0.8, 0.15) if kind == "varying" else (1.0, 0.2)
    rates, off = [], 0.0
    for _ in range(int(window / SEGMENT_SECONDS) + 1):
        off = min(max(off * pull + random.gauss(0.0, noise), -1.2), 0.5)
        rates.append(rate * math.exp(off))
    return Link(tuple(rates), known=rate)


# --- three ways to use a window ---------------------------------------------------------

Outcome = Mapping[str, Generation]


def clairvoyant(mix: Mix) -> Outcome:
    """The best: it knows how many bytes each link will carry, and fills that greedily.

    That is the lexicographic optimum: only the sum of what is sent over a link counts, and
    whoever is less urgent never makes room for anybody. Over which link somebody goes is kept
    open, until one of the ways is needed.
    """
    ways = {tuple(link.carried(0.0, mix.window) for link in mix.links.values())}
    found = {}
    for unit in in_order(mix.units):
        for candidate in unit.candidates:
            fits = {
                (*way[:at], way[at] - candidate.nbytes, *way[at + 1 :])
                for way in ways
                for at in range(len(way))
                if candidate.nbytes <= way[at]
            }
            if fits:
                ways = fits
                found[unit.name] = candidate.generation
                break
    return found


def at_once(mix: Mix) -> Outcome:
    """Everybody sends the newest to where it prefers, and each gets an equal share of that link."""
    left = {unit.name: float(unit.candidates[0].nbytes) for unit in mix.units}
    found, at = {}, 0.0
    while left:
        least = min(left.values())
        at = mix.links[LANE].ends(at, least * len(left))
        if at > mix.window:
            break
        for name in [name for name, nbytes in left.items() if nbytes <= least]:
            del left[name]
            found[name] = next(u for u in mix.units if u.name == name).candidates[0].generation
        left = {name: nbytes - least for name, nbytes in left.items()}
    return found


def evacuated(mix: Mix) -> Outcome:
    """What evacd's own planner and drivers save."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(_evacuate(mix))


async def _evacuate(mix: Mix) -> Outcome:
    aboard = Aboard(mix)
    flush = Flush(
        aboard,
        aboard,
        lanes=mix.links,
        assumed=1.0,
        reserve=0.0,
        commit_seconds=0.0,
        clock=LoopClock(),
        record=lambda name, data: None,
        ended=lambda outcome: None,
        idle=lambda: None,
    )
    for lane, link in mix.links.items():
        flush.rates[lane] = Rate(link.known, measured=True)
    order = Order("o", mix.window, Confidence.CERTAIN, "bench", "preempted", given=0.0)
    async with TaskGroup() as tasks:
        drivers = [tasks.create_task(flush.drive(lane)) for lane in mix.links]
        flush.evacuate(order)
        # A hair later: what ends at the very moment of the deadline has made it.
        await asyncio.sleep(mix.window * (1 + 1e-9))
        for driver in drivers:
            driver.cancel()
    return {
        one.unit: one.generation
        for one in flush.outcomes.values()
        if isinstance(one, Kept) and one.generation is not None
    }


class Aboard:
    """Workloads and stores of a mix: as fast as their links are at that moment."""

    def __init__(self, mix: Mix) -> None:
        self._units = {unit.name: unit for unit in mix.units}
        self._links = mix.links
        self._held = ("", Generation(0, 0))

    def units(self) -> tuple[Unit, ...]:
        """See `OnBoard`."""
        return tuple(self._units.values())

    @contextmanager
    def hold(self, unit: str, generation: Generation) -> Iterator[tuple[Part, ...]]:
        """See `OnBoard`."""
        self._held = (unit, generation)
        yield ()

    def mark_durable(self, unit: str, generation: Generation, store: str) -> None:
        """See `OnBoard`."""
        old = self._units[unit]
        newer = tuple(c for c in old.candidates if c.generation > generation)
        self._units[unit] = replace(old, candidates=newer, durable=generation)

    async def turn(self, unit: str, **_: object) -> TurnResult:
        """See `OnBoard`."""
        raise AssertionError("there are no callback workloads here")

    async def save(
        self,
        parts: Sequence[Part],
        *,
        lane: str,
        order: str,
        kind: Kind = "full",
        progress: Callable[[int], None] | None = None,
    ) -> Saved | Unsaved:
        """See `Saves`."""
        name, generation = self._held
        candidates = self._units[name].candidates
        nbytes = next(c.nbytes for c in candidates if c.generation == generation)
        assert progress is not None
        began = now = asyncio.get_running_loop().time()
        told = 0
        for part in range(1, PARTS + 1):
            moved = nbytes * part // PARTS
            ends = self._links[lane].ends(began, moved)
            await asyncio.sleep(ends - now)
            progress(moved - told)
            now, told = ends, moved
        return Saved(lane, nbytes, whole=True, place=None)


# --- simulated time ---------------------------------------------------------------------


class _Jumping(DefaultSelector):
    """Waits for nothing: where the loop would sleep, time has passed."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        """Jump to the next thing that is to happen."""
        ready = super().select(0)
        if not ready and timeout is not None:
            self.now += timeout
        return ready


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop that is never idle."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Simulated seconds since it was made."""
        return self._jumping.now


class LoopClock:
    """The simulated time as a `Clock`."""

    def monotonic(self) -> float:
        """See `Clock`."""
        return asyncio.get_running_loop().time()

    def utc(self) -> datetime:
        """See `Clock`."""
        return datetime.now(UTC)


# --- figures ----------------------------------------------------------------------------


def value(mix: Mix, outcome: Outcome) -> Fraction:
    """Lexicographic: one digit per workload, the most urgent one first."""
    base = 1 + max(len(unit.candidates) for unit in mix.units)
    total = Fraction(0)
    for place, unit in enumerate(in_order(mix.units), start=1):
        generations = [candidate.generation for candidate in unit.candidates]
        saved = outcome.get(unit.name)
        digit = len(generations) - generations.index(saved) if saved in generations else 0
        total += Fraction(digit, base**place)
    return total


def figures(way: Callable[[Mix], Outcome], seed: int) -> Mapping[str, float]:
    """One round: so many mixes with each kind of link."""
    found: dict[str, float] = {}
    for kind in KINDS:
        random = Random(f"{kind} {seed}")
        ratios, same, saved, most = [], 0, 0, 0
        for _ in range(MIXES):
            one = mix(random, kind)
            best, mine = clairvoyant(one), way(one)
            optimum = value(one, best)
            ratios.append(float(value(one, mine) / optimum) if optimum else 1.0)
            same += mine == best
            saved += len(mine)
            most += len(best)
        found |= {
            f"{kind}_value": mean(ratios),
            f"{kind}_worst": min(ratios),
            f"{kind}_same_choice": same / MIXES,
            f"{kind}_workloads": saved / most,
        }
    return found


def variants() -> Sequence[Variant]:
    """Each sees the same mixes in the same round."""

    def variant(name: str, way: Callable[[Mix], Outcome]) -> Variant:
        seeds = count()
        return Variant(name, lambda: figures(way, next(seeds)))

    return [
        variant("evac", evacuated),
        variant("clairvoyant", clairvoyant),
        variant("everyone at once", at_once),
    ]


if __name__ == "__main__":
    sys.exit(
        main(
            "window",
            variants(),
            [
                Ratio("steady", "steady_value", "evac", "clairvoyant", 1.0),
                Ratio("varying", "varying_value", "evac", "clairvoyant", 0.95),
                Ratio("drifting", "drifting_value", "evac", "clairvoyant", 0.95),
                Ratio("two_steady", "two_steady_value", "evac", "clairvoyant", 1.0),
                Ratio("two_varying", "two_varying_value", "evac", "clairvoyant", 0.95),
                Ratio("steady_vs_at_once", "steady_value", "evac", "everyone at once", 1.0),
                Ratio("varying_vs_at_once", "varying_value", "evac", "everyone at once", 1.0),
            ],
        )
    )

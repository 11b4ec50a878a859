"""What the node knows of itself before the day: what is at risk, and how old what is safe is."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from evac.generation import Generation
from evacd.clock import Clock
from evacd.evacuation import Evacuation
from evacd.facts import Lost, Unit
from evacd.plan.risk import Risk, UnitRisk, risk
from evacd.quiet import Ages


class Readiness:
    """Asks the planner what a notice would mean now; changes nothing.

    Args:
        window: Seconds that the cloud gives, from its notice on.
        reserve: Seconds before the deadline that no step is planned into.
        dead: Lanes of which it is known that they take nothing, and why.
    """

    def __init__(
        self,
        evacuation: Evacuation,
        clock: Clock,
        *,
        window: Callable[[], float],
        reserve: float,
        dead: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._evacuation = evacuation
        self._clock = clock
        self._window = window
        self._reserve = reserve
        self._dead = dead
        self._ages = Ages()
        self._looked: tuple[Unit, ...] | None = None
        # What was found last, and of what: seconds on end nothing changes, and many ask.
        self._found: tuple[tuple[Unit, ...], object, Risk] | None = None

    def look(self) -> None:
        """Something may have been staged, or have become durable."""
        units = self._evacuation.way.units()
        if units is not self._looked:
            self._ages.look(units, now=self._clock.monotonic())
            self._looked = units

    def risk(self, window: float) -> Risk:
        """What would be lost if a notice with *window* seconds came now."""
        flush, units = self._evacuation.flush, self._evacuation.way.units()
        # Nothing in it is a point in time, so it stays true as long as these are the same.
        of = window, dict(flush.rates), dict(flush.commits), dict(self._dead()), self._lost()
        known = None if flush.running else self._found
        if known is None or known[0] is not units or known[1] != of:
            known = units, of, self._risk(window)
            self._found = None if flush.running else known
        return known[2]

    def _risk(self, window: float) -> Risk:
        flush = self._evacuation.flush
        way = self._evacuation.way
        found = risk(
            [flush.routed(unit) for unit in way.units()],
            window_seconds=window,
            rates={lane: rate.bytes_per_second for lane, rate in flush.rates.items()},
            reserve=self._reserve,
            commit_seconds=flush.commits,
            now=self._clock.monotonic(),
            dead=self._dead(),
            lost=self._lost(),
        )
        # What moves is no less at risk for being half written, only sooner written.
        whole = way.not_durable()
        units = [replace(one, at_risk_bytes=whole.get(one.unit, 0)) for one in found.units]
        return replace(found, units=tuple(units))

    def _lost(self) -> dict[str, str]:
        """Who is lost under the running order, as far as is known, and why."""
        flush = self._evacuation.flush
        if flush.order is None:
            return {}
        return {one.unit: one.reason for one in flush.outcomes.values() if isinstance(one, Lost)}

    def window(self) -> float:
        """Seconds that are reckoned with: what an order leaves, or else what the cloud gives."""
        order = self._evacuation.flush.order
        return self._window() if order is None else order.deadline - self._clock.monotonic()

    def shown(self) -> Mapping[str, Any]:
        """Of this moment, as JSON takes it."""
        self.look()
        found = self.risk(self.window())
        ages = self._ages.seconds(now=self._clock.monotonic())
        return {
            "window_seconds": found.window_seconds,
            "margin_seconds": found.margin_seconds,
            "at_risk_bytes": found.at_risk_bytes,
            "lost": [unit.unit for unit in found.lost],
            "units": [_shown(unit, ages.get(unit.unit)) for unit in found.units],
        }


def _shown(unit: UnitRisk, age: float | None) -> dict[str, Any]:
    return {
        "unit": unit.unit,
        "newest_step": _step(unit.newest),
        "durable_step": _step(unit.durable),
        "durable_age_seconds": age,
        "at_risk_bytes": unit.at_risk_bytes,
        "at_risk_steps": unit.at_risk_steps,
        "margin_seconds": unit.margin_seconds,
        "lost": unit.lost,
        "weights_only": unit.weights_only,
        "reason": unit.reason,
    }


def _step(generation: Generation | None) -> int | None:
    return None if generation is None else generation.step

"""What `evac status` shows of the order and the flush."""

from dataclasses import asdict
from typing import Any

from evac.store import is_durable
from evacd.evacuation import Evacuation
from evacd.facts import Kept
from evacd.flush.running import Running
from evacd.order import shown


def status_of(evacuation: Evacuation, *, now: float) -> dict[str, Any]:
    """All of it, JSON-able; *now* is in monotonic seconds."""
    order = evacuation.flush.order
    moving = {one.step.lane: _moving(one, now) for one in evacuation.flush.running}
    rates = evacuation.flush.rates_now(now)
    return {
        "order": None
        if order is None
        else {
            "id": order.id,
            "source": order.source,
            "kind": order.kind,
            "confidence": order.confidence.word,
            "seconds_left": order.deadline - now,
            "settled": evacuation.flush.settled.is_set(),
        },
        "leaving": evacuation.own.shown(now=now),
        "cordons": evacuation.leaving.shown(),
        "notices": shown(evacuation.standing, now=now),
        "outcomes": [
            {"unit": unit, "kept": isinstance(outcome, Kept), **asdict(outcome)}
            for unit, outcome in evacuation.flush.outcomes.items()
        ],
        "lanes": [
            {
                "store": lane,
                "bytes_per_second": rates[lane],
                "measured": rate.measured,
                "durable": is_durable(lane),
                "moving": moving.get(lane),
            }
            for lane, rate in evacuation.flush.rates.items()
        ],
    }


def _moving(one: Running, now: float) -> dict[str, Any]:
    """What is under way on a lane."""
    return {
        "unit": one.step.unit,
        "step": one.step.generation.step if one.step.generation else None,
        "kind": one.step.kind,
        "left_bytes": one.left,
        "ends_in": one.ends(now) - now,
    }

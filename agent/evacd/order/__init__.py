"""Many notices become one order: pure, fed with facts, answers with facts.

A planned notice that would make the machine go earlier than the running order says joins
that order; one that would do so later waits on. A planned notice without a usable time can
be planned to nothing, so it only advises until it gets a time or becomes certain.
"""

from evacd.order.machine import (
    Advised,
    Amended,
    Given,
    Machine,
    StoodDown,
    Transition,
    Waiting,
    Withdrawn,
)
from evacd.order.standing import Standing, shown
from evacd.order.table import NEXT, Event, State

__all__ = [
    "NEXT",
    "Advised",
    "Amended",
    "Event",
    "Given",
    "Machine",
    "Standing",
    "State",
    "StoodDown",
    "Transition",
    "Waiting",
    "Withdrawn",
    "shown",
]

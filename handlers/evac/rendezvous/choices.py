"""Which generation the nodes of a job that leave go with: what follows from their departures. Pure.

Half of a generation is worth nothing, and nodes that leave at once may hold different ones as their
newest. The log orders what they say: an entry is written by compare-and-set, so one of them is first, and
its generation is the job's choice. The others read it back with their own entry, and follow.

A later one that goes with an older generation cannot follow: what it holds, the first holds, too,
for ranks keep step, so the older one is the choice from then on. Turned down: that the first one's stands
whatever comes, which is never whole where one of the others does not hold it.

The incarnation is the choice's epoch. A new world takes a higher one when it resumes, and what is said of
that begins a new choice; until then, whoever leaves next still goes with the one that stands.
Turned down: a key of its own beside the log, which would have to move with it (`succession`), and an
epoch by rounds: a round stands long before the job has anything to lose in it.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeAlias

from evac.generation import Generation
from evac.rendezvous.events import LEAVING, STAYING, Depart

# By the job's prefix in each store: the departure that made its choice.
Choices: TypeAlias = Mapping[str, Depart]

NO_CHOICES: Choices = MappingProxyType({})
# Jobs that share one log; the oldest choice gives way.
_MOST = 64


def generation_of(choice: Depart) -> Generation:
    """What was chosen."""
    return Generation(choice.incarnation, choice.step)


def chosen(choices: Choices, event: Depart) -> Choices:
    """*choices* once *event* has been read; the very same where it changes nothing."""
    if event.word == STAYING:
        return _without(choices, event)
    if event.word != LEAVING or not event.job or event.step < 0 or event.incarnation < 0:
        return choices
    before = choices.get(event.job)
    if before is not None and not _takes_its_place(event, before):
        return choices
    known = {job: one for job, one in choices.items() if job != event.job}
    for oldest in list(known)[: max(len(known) + 1 - _MOST, 0)]:
        del known[oldest]
    return MappingProxyType({**known, event.job: event})


def _takes_its_place(event: Depart, before: Depart) -> bool:
    if event.incarnation != before.incarnation:
        return event.incarnation > before.incarnation
    return event.step < before.step


def _without(choices: Choices, event: Depart) -> Choices:
    """Whoever stays after all has chosen for nobody; a word of no job is about the whole node."""
    gone = [
        job
        for job, one in choices.items()
        if (one.node, one.boot) == (event.node, event.boot) and event.job in ("", job)
    ]
    if not gone:
        return choices
    return MappingProxyType({job: one for job, one in choices.items() if job not in gone})

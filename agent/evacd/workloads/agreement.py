"""The generation that a job's nodes have agreed on: pinned here until the job has resumed. Pure.

Who leaves flushes its part of it, and who stays keeps its own, for the new world to begin with. It
need not be complete here yet: ranks of several nodes stage a step some moments apart.
"""

from collections.abc import Mapping

from evac.generation import Generation
from evacd.workloads.job import Job
from evacd.workloads.policy import Refusal
from evacd.workloads.roster import Roster


def agree(roster: Roster, unit: str, generation: Generation, *, until: float) -> Refusal | None:
    """Pin *generation* in place of what was agreed on before; why not, where it is of no use.

    Args:
        until: When the pin ends by itself; monotonic seconds.
    """
    job = roster.jobs.get(unit)
    if job is None:
        return Refusal(f"nobody of {unit} is on board")
    if job.is_durable(generation):
        return Refusal(f"{job.durable} is durable already")
    common = [one for one, _ in job.common()]
    if common and common[0].incarnation > generation.incarnation:
        return Refusal(f"the job has resumed since: {common[0]} was staged")
    before = job.agreed
    if before is not None and before in common and generation not in common:
        return Refusal(f"{generation} is not complete here, and {before} was agreed on")
    job.agreed, job.agreed_until = generation, until
    roster.told.changed(unit)
    return None


def disagree(roster: Roster, unit: str, generation: Generation | None = None) -> None:
    """The pin ends: on *generation*, where one is named, and on no other."""
    job = roster.jobs.get(unit)
    if job is None or job.agreed is None or generation not in (None, job.agreed):
        return
    job.agreed = None
    roster.told.changed(unit)
    roster.tidy()


def expire(roster: Roster, *, now: float) -> None:
    """End what has been pinned for too long: nobody has resumed, and others want the memory."""
    for job in list(roster.jobs.values()):
        if job.agreed is not None and now >= job.agreed_until:
            disagree(roster, job.name)


def shown(jobs: Mapping[str, Job]) -> list[dict[str, object]]:
    """For the status: one for each job that has one; ``held`` is whether it is complete here."""
    return [
        {
            "unit": job.name,
            "step": job.agreed.step,
            "incarnation": job.agreed.incarnation,
            "held": any(one == job.agreed for one, _ in job.common()),
        }
        for job in jobs.values()
        if job.agreed is not None
    ]

"""Each job as the planner sees it, made anew only where something of it has changed. Pure.

All units are looked at before each step of a flush, and few of them have changed. As long as none
has, the very same tuple is told, so that whoever reckons with it can see that at once.
"""

from collections.abc import Mapping

from evac.store.location import is_of_job
from evacd.facts import Unit
from evacd.workloads.job import Job


class Told:
    """What was told of the roster's jobs.

    Args:
        jobs: As they are now, in the order of their arrival; whoever changes one says so.
    """

    def __init__(self, jobs: Mapping[str, Job]) -> None:
        self._jobs = jobs
        self._lanes: tuple[str, ...] = ()
        self._news: dict[str, None] = {}
        self._units: dict[str, Unit] = {}
        self._all: tuple[Unit, ...] = ()

    def changed(self, job: str) -> None:
        """Something has of which its unit is made."""
        self._news[job] = None

    def gone(self, job: str) -> None:
        """There is no such job any more; one of its name is another."""
        self._news.pop(job, None)
        if self._units.pop(job, None) is not None:
            self._all = tuple(self._units.values())

    def units(self, lanes: tuple[str, ...]) -> tuple[Unit, ...]:
        """One per job, in the order of their arrival.

        Args:
            lanes: Of the node; one to the job's own peers only where the job has named some.
        """
        if lanes != self._lanes:
            self._lanes = lanes
            self._news |= dict.fromkeys(self._jobs)
        if self._news:
            units = {n: self._unit(self._jobs[n]) for n in self._news if n in self._jobs}
            self._news.clear()
            if any(self._units.get(name) != unit for name, unit in units.items()):
                self._units |= units
                self._all = tuple(self._units.values())
        return self._all

    def _unit(self, job: Job) -> Unit:
        if any(member.peers for member in job.members):
            return job.unit(self._lanes)
        return job.unit(tuple(lane for lane in self._lanes if not is_of_job(lane)))

"""What `evac status` shows of the workloads: plain JSON values."""

from collections.abc import Iterator

from evacd.workloads.agreement import shown
from evacd.workloads.job import Job, Slot, Workload
from evacd.workloads.regions import Regions
from evacd.workloads.roster import Roster


def snapshot(roster: Roster, regions: Regions) -> dict[str, object]:
    """Workloads, dead ones that are remembered included, and the memory's budget."""
    return {
        "workloads": [
            _workload(workload, roster.jobs[workload.unit], regions)
            for workload in roster.workloads.values()
        ],
        "pins": shown(roster.jobs),
        "intervals": [*_intervals(roster)],
        "memory": {"budget": roster.ledger.budget, "used": roster.ledger.used},
    }


def _intervals(roster: Roster) -> Iterator[dict[str, object]]:
    """Of each job that says how often it stages: its first rank here that lives."""
    for job in roster.jobs.values():
        told = [one for one in job.members if one.alive and one.interval is not None]
        if told:
            interval = min(told, key=lambda one: one.rank).interval
            assert interval is not None
            yield {"unit": job.name, **interval.document(), "verdict": interval.verdict()}


def _workload(workload: Workload, job: Job, regions: Regions) -> dict[str, object]:
    return {
        "id": workload.id,
        "job": workload.job,
        "unit": workload.unit,
        "rank": workload.rank,
        "world": workload.world,
        "priority": workload.priority,
        "mode": workload.mode.value,
        "pid": workload.process.pid,
        "uid": workload.process.uid,
        "alive": workload.alive,
        "slots": [_slot(slot, job, regions) for slot in workload.slots.values()],
    }


def _slot(slot: Slot, job: Job, regions: Regions) -> dict[str, object]:
    """``durable``: it, or a newer generation of the job, is; ``pinned``: its nodes agreed on it."""
    sums = regions.sums(slot)
    return {
        "slot": slot.number,
        "state": slot.state.value,
        "step": slot.generation.step if slot.generation else None,
        "incarnation": slot.generation.incarnation if slot.generation else None,
        "nbytes": slot.nbytes,
        "held": slot.holds > 0,
        "spilled": slot.spilled,
        "durable": job.is_durable(slot.generation),
        "pinned": slot.generation is not None and slot.generation == job.agreed,
        "chunks": sums.total if sums else 0,
        "summed": sums.ready if sums else 0,
    }

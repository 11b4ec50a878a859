"""Whether this node goes with what a job's nodes have agreed on, and why not. Pure."""

from evac.generation import Generation
from evacd.facts import Kept, Outcome, Unit

# Steps that are named where the agreed one is missing.
_MOST_NAMED = 4


def supersedes(heard: Generation, before: Generation | None) -> bool:
    """Whether *heard* is news, where *before* was agreed on; as `evac.rendezvous.choices` has it.

    Of two stores of one job one may know less.
    """
    if before is None or heard.incarnation != before.incarnation:
        return before is None or heard.incarnation > before.incarnation
    return heard.step < before.step


def objection(unit: Unit, agreed: Generation) -> str:
    """Why *unit* cannot go with *agreed* as it is now; "" where it can."""
    if unit.turn_seconds is not None:
        return "it flushes by itself"
    if unit.durable is not None and agreed <= unit.durable:
        return "" if agreed == unit.durable else f"{unit.durable} is durable already"
    full = [one.generation for one in unit.candidates if one.kind == "full"]
    if agreed in full:
        return ""
    if full and full[0].incarnation > agreed.incarnation:
        return f"the job has resumed since: {full[0]} was staged"
    have = ", ".join(f"step {one.step}" for one in full[:_MOST_NAMED])
    return f"not complete here{f', but {have}' if have else ''}"


def missed(agreed: Generation, outcome: Outcome, *, failed: str = "") -> str:
    """Why *agreed*, which was here, is not what was saved in the end; "" where it is.

    Args:
        failed: What was said of tries that failed.
    """
    if isinstance(outcome, Kept) and (
        outcome.generation == agreed
        or (outcome.durable and outcome.generation is not None and agreed < outcome.generation)
    ):
        return ""
    instead = (
        f"; {outcome.generation} was saved instead"
        if isinstance(outcome, Kept) and outcome.generation is not None
        else ""
    )
    return f"{failed or 'it did not fit in the window'}{instead}"

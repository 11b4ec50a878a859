"""Has the job ended for an agent that wants to be in its next round? Pure.

A job's name is used again: by a scheduler that runs it anew, in the store of its last run. So what a run that
has ended left there must end nobody's next one well that has not trained at all.
"""

from enum import Enum

from evac.rendezvous.state import State


class Ending(Enum):
    """What an agent does that finds the job ended, or not."""

    NONE = "take part"
    WAIT = "wait for those who are ending"
    AGAIN = "run the job again"
    NOT_NEEDED = "end well"
    CLOSED = "fail"


def well(state: State) -> bool:
    """Whether the job has ended, and all of its last round have finished."""
    awaited = {agent.id for agent in state.round.agents if not state.departs(agent)}
    return state.closed and not state.failed and bool(state.finished) and awaited <= state.finished


def broken(state: State) -> bool:
    """Whether the job has ended, and not well: somebody failed, or went without a word."""
    if state.failed or not state.round.agents:
        return state.closed
    silent = state.lost - state.finished
    return state.closed and any(
        one.id in silent and not state.departs(one) for one in state.round.agents
    )


def ending(state: State, epoch: int | None, *, worked: bool, deserted: bool) -> Ending:
    """What follows for one agent.

    Args:
        epoch: The run of the job in which it has joined; None where it has not yet.
        worked: It was in a round.
        deserted: When it came, the job had ended, and nobody of it was there any more.
    """
    if epoch is not None and state.epoch != epoch:
        return Ending.CLOSED  # the others went on without it
    if not state.closed:
        return Ending.NONE
    if epoch is not None and (worked or broken(state)):
        return Ending.CLOSED
    if epoch is not None:
        return Ending.NOT_NEEDED if well(state) else Ending.WAIT
    if not state.deserted:
        return Ending.WAIT
    # It came while they were ending, or when they were gone.
    return Ending.NOT_NEEDED if well(state) and not deserted else Ending.AGAIN

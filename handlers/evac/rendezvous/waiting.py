"""What an agent waits for, in words. Pure."""

from evac.rendezvous.rounds import State


def waits_for(state: State, trouble: str) -> str:
    """One line for the log of whoever waits for a round.

    Args:
        trouble: Why the store cannot be reached; "" while it can.
    """
    if trouble:
        return f"waiting for the rendezvous store: {trouble}"
    here = len(state.waiting)
    if state.closed:
        return "waiting for the agents of the job's last run to end"
    if state.round.number and not state.over:
        return f"waiting for room: all {len(state.round.agents)} places of the job are taken"
    if state.short:
        return (
            f"waiting for {state.short} more node(s): {here} here, --nnodes wants at least "
            f"{state.minimum}; start a replacement"
        )
    names = ", ".join(sorted({agent.node for agent in state.missing}))
    return f"waiting for the agents on {names or 'more nodes'} ({here} here)"

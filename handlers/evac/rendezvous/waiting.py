"""What an agent waits for, in words. Pure."""

from collections.abc import Set

from evac.rendezvous.state import Round, State


def waits_for(state: State, trouble: str, unreached: str = "") -> str:
    """One line for the log of whoever waits for a round.

    Args:
        trouble: Why the store cannot be reached; "" while it can.
        unreached: Why this agent cannot reach the first rank of the round that forms; "" while it can.
    """
    if trouble:
        return f"waiting for the rendezvous store: {trouble}"
    here = len(state.waiting)
    if state.closed:
        return "waiting for the agents of the job's last run to end"
    if state.forming is not None:
        return _forms(state.forming, state.confirmed, unreached)
    if state.round.number and not state.over:
        return f"waiting for room: all {len(state.round.agents)} places of the job are taken"
    if state.short:
        return (
            f"waiting for {state.short} more node(s): {here} here, --nnodes wants at least "
            f"{state.minimum}; start a replacement"
        )
    names = ", ".join(sorted({agent.node for agent in state.missing}))
    return f"waiting for the agents on {names or 'more nodes'} ({here} here)"


def _forms(forming: Round, confirmed: Set[str], unreached: str) -> str:
    if not forming.at:
        return f"waiting for {forming.agents[0].node} to serve the store of round {forming.number}"
    late = ", ".join(sorted({one.node for one in forming.agents if one.id not in confirmed}))
    why = f"; from here: {unreached}" if unreached else ""
    return f"waiting for {late} to reach the store of round {forming.number} at {forming.at}{why}"

"""What follows from the log: who is in which round, and whether it is over. Pure.

Every agent reads the same entries in the same order and folds them with `after`, so that all come
to the same rounds without asking each other, and nobody leads::

    join ... join -> forming -> open, confirm ... confirm -> stands -> over -> met, join ... -> forming

A round forms as soon as there is nobody to wait for: all of the last round who still live and do
not depart have joined: no spare takes the place of one that is only slow. (The first one waits for
a last call, as torchrun's own does.) It stands once all of it have confirmed; until then the loss of
one dissolves it, and the others form the next, without joining anew. Where it is given up, another serves
the next one's store, if nobody has reached the first rank; else the others go without who has not. It is
over when one of it departs or is lost, has joined anew, or when somebody waits for whom there is room.

The job is over once an agent has closed it; it was run well if all of its last round have closed it
so. Whoever comes once all of that round have ended or are gone runs it again: another epoch, which a
word of the last one does not close. Who leaves with its node closes nothing, whatever becomes of its
workers.

Where the log lies is told in `services`.
"""

from collections.abc import Iterable, Set
from dataclasses import replace
from types import MappingProxyType

from evac.rendezvous.choices import chosen
from evac.rendezvous.events import (
    STAYING,
    Anew,
    Begin,
    Call,
    Close,
    Confirm,
    Depart,
    Dissolve,
    Event,
    Gone,
    Join,
    Leave,
    Met,
    Moved,
    Open,
)
from evac.rendezvous.state import MOST_TERMS, Agent, Round, State, hosted

# Departures that are remembered; the oldest give way. A job has fewer nodes that left.
_MOST_DEPARTURES = 4096
_MOST_ROUNDS = 2**40
_NONE: frozenset[str] = frozenset()


def after(state: State, event: Event) -> State:
    """*state* once *event* has been read."""
    match event:
        case Join():
            state = _joined(state, event)
        case Leave(agent):
            # It has not gone another way: it has ended.
            electors = tuple(one for one in state.electorate if one.id != agent)
            state = _without(replace(state, electorate=electors), agent)
        case Gone(agent):
            state = _gone(state, agent)
        case Depart():
            state = _departed(state, event)
        case Call() if not state.round.number:
            state = replace(state, called=True)
        case Open(agent, number, at):
            forming = state.forming
            if forming and forming.number == number and not forming.at and forming.rank(agent) == 0:
                state = replace(state, forming=replace(forming, at=at))
        case Confirm(agent, number):
            state = _confirmed(state, agent, number)
        case Dissolve(agent, number):
            state = _given_up(state, agent, number)
        case Met(agent, number):
            if number == state.round.number and state.round.rank(agent) is not None:
                state = replace(state, met=state.met | {agent})
        case Close():
            state = _closed(state, event)
        case Anew() if state.deserted:
            # Numbers go on, so that nobody takes a round of this run for one of the last.
            state = replace(
                state, closed=False, failed=False, finished=_NONE, epoch=state.epoch + 1,
                round=Round(), forming=None, confirmed=_NONE, waiting=(), lost=_NONE, met=_NONE,
                refused=_NONE, called=False, electorate=(),
            )  # fmt: skip
        case Begin():
            state = replace(state, held=False)
        case Moved(_, _, term):
            if max(state.term, state.moved.term if state.moved else -1) < term < MOST_TERMS:
                state = replace(state, moved=event)
        case _:
            pass
    return _formed(state)


def _joined(state: State, event: Join) -> State:
    if not 1 <= event.minimum <= event.maximum:
        return state
    agent = Agent(event.agent, event.node, event.boot, event.standby)
    if event.hosts and not state.term:
        state = hosted(state, agent)
    # An agent that comes from another service of the log may know of later rounds.
    state = replace(state, last=max(state.last, min(event.seen, _MOST_ROUNDS)))
    if state.departs(agent) or (state.forming and state.forming.rank(agent.id) is not None):
        return state
    late = event.seen < state.round.number and agent.id not in state.lost
    if late and state.round.rank(agent.id) is not None:
        return state
    if not (state.survivors or state.forming or state.waiting):
        # The first one's word holds: a later one's would change what those who train were told.
        state = replace(state, minimum=event.minimum, maximum=event.maximum)
    others = tuple(one for one in state.waiting if one.id != agent.id)
    waiting = state.waiting if len(others) < len(state.waiting) else (*others, agent)
    return replace(
        state, waiting=waiting, lost=state.lost - {agent.id}, refused=state.refused - {agent.id}
    )


def _closed(state: State, event: Close) -> State:
    agent = state.agent(event.agent)
    if event.epoch != state.epoch:
        return state
    if agent is not None and state.departs(agent):
        return _without(state, event.agent)
    if event.well:
        return replace(state, closed=True, finished=state.finished | {event.agent})
    return replace(state, closed=True, failed=True)


def _gone(state: State, id: str) -> State:
    """It went without a word: whatever it said of its workers, nobody knows how it ended."""
    return _without(replace(state, finished=state.finished - {id}), id)


def _without(state: State, id: str) -> State:
    if id == state.host_agent:
        state = replace(state, host_left=True)
    if state.round.rank(id) is not None:
        state = replace(state, lost=state.lost | {id})
    state = replace(state, waiting=tuple(one for one in state.waiting if one.id != id))
    return _dissolved(state, {id})


def _quorate(state: State, agents: Iterable[Agent]) -> bool:
    """Whether most of those are among *agents* who may have gone another way; of halves, the first's."""
    electors = [one.id for one in state.electorate if not state.departs(one)]
    here = {agent.id for agent in agents}.intersection(electors)
    return 2 * len(here) > len(electors) or (
        2 * len(here) == len(electors) and (not electors or electors[0] in here)
    )


def _departed(state: State, event: Depart) -> State:
    key = (event.node, event.boot)
    before = state.departures.get(key)
    late = before is not None and before.sequence > event.sequence
    # Words about several jobs of a node are in no order among each other.
    if late and before is not None and event.job in ("", before.job):
        return state
    state = replace(state, choices=chosen(state.choices, event))
    if late:
        return state
    known = {k: v for k, v in state.departures.items() if k != key}
    for oldest in list(known)[: max(len(known) + 1 - _MOST_DEPARTURES, 0)]:
        del known[oldest]
    state = replace(state, departures=MappingProxyType({**known, key: event}))
    if event.word == STAYING:
        return state
    state = replace(state, waiting=tuple(one for one in state.waiting if not state.departs(one)))
    forming = state.forming.agents if state.forming else ()
    return _dissolved(state, {one.id for one in forming if state.departs(one)})


def _dissolved(state: State, without: Set[str]) -> State:
    """Without these in it, the round that is forming does not come to stand."""
    forming = state.forming
    if forming is None or not any(one.id in without for one in forming.agents):
        return state
    back = tuple(one for one in forming.agents if one.id not in without)
    return replace(state, forming=None, confirmed=_NONE, waiting=(*back, *state.waiting))


def _given_up(state: State, agent: str, number: int) -> State:
    forming = state.forming
    if forming is None or forming.number != number or forming.rank(agent) is None:
        return state
    first, *others = forming.agents
    late = frozenset(one.id for one in others if one.id not in state.confirmed)
    if late and len(late) < len(others):
        return _dissolved(replace(state, lost=state.lost | late, refused=late), late)
    state = _dissolved(replace(state, lost=state.lost | {first.id}), {first.id})
    return replace(state, waiting=(*state.waiting, first))


def _confirmed(state: State, agent: str, number: int) -> State:
    forming = state.forming
    if forming is None or forming.number != number or forming.rank(agent) is None:
        return state
    confirmed = state.confirmed | {agent}
    if len(confirmed) < len(forming.agents) or not forming.at:
        return replace(state, confirmed=confirmed)
    return replace(
        state, round=forming, forming=None, confirmed=_NONE, lost=_NONE, met=_NONE, refused=_NONE,
        called=False, electorate=(),
    )  # fmt: skip


def _formed(state: State) -> State:
    """Let the next round form, if there is nobody to wait for."""
    waiting = state.waiting
    if state.forming or state.closed or not waiting or len(waiting) < state.minimum:
        return state
    if state.moved or state.held or state.missing or (state.round.number and not state.over):
        return state
    if not (state.round.number or state.called or len(waiting) >= state.maximum):
        return state
    # Ranks stay what they were as far as they can: the first rank's data is the warmest.
    last = [one.id for one in state.round.agents if one.id not in state.lost]
    ordered = sorted(waiting, key=lambda a: last.index(a.id) if a.id in last else len(last))
    agents = tuple(ordered[: state.maximum])
    if not _quorate(state, agents):
        return state
    number = max(state.last, state.round.number) + 1
    chosen = {agent.id for agent in agents}
    return replace(
        state,
        last=number,
        forming=Round(number, agents),
        confirmed=_NONE,
        waiting=tuple(agent for agent in waiting if agent.id not in chosen),
    )

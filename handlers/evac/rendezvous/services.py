"""Which service of the job's log counts, when its store was lost or its host leaves. Pure.

A log is served by one store at a time: one *service* of it, with a term and a name of its own. Its
numbers begin at `first_entry` of its term, so that no entry of one service is taken for one of another.
The snapshot in a store names the service that counts there; whoever finds another one than its own
there goes by what is there. The rules:

1. A store of its own (`evac store`, etcd) that has come back empty, or with less than somebody knows
   (`outranks`), is given what that agent knows, as a service of the next term, by compare-and-set: one
   agent wins, the others take what it wrote. What the last service had heard of departures is said again.
2. A host that leaves is followed by the first survivor that can serve (`State.successors`). That one says
   so in the old log first (`Moved`), behind all that it has read: so of two there is a first, whoever
   reads the old log finds it, a departure that was taken back in time keeps the log where it is, and no
   round forms behind it, also where the host stays after all. Only where the old log cannot be
   reached any more does it begin without.
3. A service that has just moved is *on trial*. Its first round must have in it most of those who
   may have gone another way (`State.electorate`: the survivors; of two halves the first's), and until it
   stands everybody looks round, and leaves it for a service that counts more (`leads`): one that has
   stood, or one on trial of a later term. Who has confirmed a round on trial is bound to it while it forms.
   So where half of the nodes cannot reach the other half, one half goes on at most. The price: where both
   the notice's host and most others vanish at once, nobody goes on, as without us.
4. Agents look for the log at the endpoint that they were given. Where that is served again once the log
   is elsewhere (a pod that comes back under its old name), whoever serves the log writes there where it
   is (`signposts`). A new log at an agent's own store is held until there was time for that.

What is not covered: a departure that is taken back while the host and a half of the others can reach each
other, but not the rest.
"""

from collections.abc import Iterable
from dataclasses import replace

from evac.rendezvous.events import Depart, Moved
from evac.rendezvous.state import Agent, State, hosted

_ENTRIES = 2**32


def first_entry(term: int) -> int:
    """Number of the first entry of a service of that term."""
    return term * _ENTRIES


def outranks(mine: State, found: State) -> bool:
    """Whether what a store of its own holds gives way to what an agent knows."""
    if found.moved or mine.host is not None:
        return False
    return (mine.term, mine.last) > (found.term, found.last)


def renewed(mine: State, found: State | None) -> State:
    """*mine* as it goes on in the same store, which holds no more than *found*."""
    term = max(mine.term, found.term if found else 0) + 1
    return replace(mine, term=term, moved=None)


def taken_over(state: State, agent: Agent, term: int, origin: str) -> State:
    """*state* as *agent* serves it on, on trial.

    Args:
        origin: Where the log lay, ``host:port``; kept from the first time on.
    """
    return replace(
        hosted(state, agent),
        term=term,
        moved=None,
        held=False,
        origin=state.origin or origin,
        parent=state.parent if state.electorate else state.term,
        electorate=state.electorate or state.survivors or state.waiting,
    )


def next_term(state: State) -> int:
    """Of whoever takes over from the service of *state*."""
    return max(state.term, state.moved.term if state.moved else 0) + 1


def leads(found: State, mine: State, *, bound: bool) -> bool:
    """Whether an agent leaves its service for another one, in another place.

    Args:
        bound: It has confirmed a round that forms in its own, which is on trial.
    """
    if not found.electorate:
        return found.term > (mine.parent if mine.electorate else mine.term)
    if mine.electorate:
        return found.term > mine.term and not bound
    return found.parent >= mine.term


def untold(mine: State, found: State) -> Iterable[Depart]:
    """What *mine* has heard of departures and *found* has not."""
    for key, event in mine.departures.items():
        known = found.departures.get(key)
        if known is None or known.sequence < event.sequence:
            yield event


def signposts(found: State | None, here: Moved) -> bool:
    """Whether what lies at the old place says already that the log is *here*."""
    said = found.moved if found else None
    return said is not None and said.term >= here.term

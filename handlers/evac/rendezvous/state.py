"""All that a job's log has said so far, and what can be read off it. Pure; what becomes of it: `rounds`."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from evac.rendezvous.choices import NO_CHOICES, Choices
from evac.rendezvous.events import STAYING, Depart, Moved

# A log's entries are numbered by its service's term, and then from 0.
MOST_TERMS = 2**20
_NONE: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Agent:
    """One torchrun agent; see `events.Join`."""

    id: str
    node: str
    boot: str
    standby: str = ""


@dataclass(frozen=True)
class Round:
    """Agents in the order of their ranks.

    Attributes:
        number: Rises from round to round, also over rounds that never stood.
        at: ``host:port`` of the round's own store; "" until the first rank serves it.
    """

    number: int = 0
    agents: tuple[Agent, ...] = ()
    at: str = ""

    def rank(self, agent: str) -> int | None:
        """The rank of an agent; None if it is not in."""
        return next((n for n, one in enumerate(self.agents) if one.id == agent), None)


@dataclass(frozen=True)
class State:
    """All that the log has said so far.

    Attributes:
        round: The last that stood; number 0 before the first.
        forming: The one that is about to stand.
        confirmed: Who has confirmed `forming`.
        waiting: Who has joined for the next one, in the order of their joins.
        lost: Of `round`, who has left or is gone, or held up the round that was forming.
        refused: Who could not reach the first rank of a round that was forming.
        met: Of `round`, who knows that it is over.
        departures: By (node, boot): the last word of each node that leaves.
        choices: By job: the departure that chose the generation that all who leave go with.
        host: (node, boot) of the agent that serves this log; None where no agent does.
        host_agent: Its id.
        host_left: It said that it goes, without its node's being announced: it was told to end.
        called: Last call is over.
        epoch: Rises each time that the job is run again.
        finished: Who has closed the job well.
        failed: Somebody has closed it otherwise.
        term: Of this service of the log; see `services`.
        parent: Where `electorate` is not empty: the last term in which a round stood.
        electorate: Most of these must be in the first round of this service.
        moved: Where the log goes on; nothing more follows from this one.
        held: No round forms before the host has said `Begin`.
        origin: ``host:port`` at which agents look for this log, where it is served elsewhere.
    """

    minimum: int = 1
    maximum: int = 1
    last: int = 0
    round: Round = Round()
    forming: Round | None = None
    confirmed: frozenset[str] = _NONE
    waiting: tuple[Agent, ...] = ()
    lost: frozenset[str] = _NONE
    refused: frozenset[str] = _NONE
    met: frozenset[str] = _NONE
    departures: Mapping[tuple[str, str], Depart] = field(
        default_factory=lambda: MappingProxyType({})
    )
    choices: Choices = field(default_factory=lambda: NO_CHOICES)
    host: tuple[str, str] | None = None
    host_agent: str = ""
    host_left: bool = False
    called: bool = False
    closed: bool = False
    epoch: int = 0
    finished: frozenset[str] = _NONE
    failed: bool = False
    term: int = 0
    parent: int = 0
    electorate: tuple[Agent, ...] = ()
    moved: Moved | None = None
    held: bool = False
    origin: str = ""

    def departs(self, agent: Agent) -> bool:
        """Whether the agent's node leaves."""
        return self.leaves(agent.node, agent.boot)

    def leaves(self, node: str, boot: str) -> bool:
        """Whether that node leaves."""
        found = self.departures.get((node, boot))
        return found is not None and found.word != STAYING

    @property
    def survivors(self) -> tuple[Agent, ...]:
        """Of the round, who still lives and does not depart."""
        return tuple(a for a in self.round.agents if a.id not in self.lost and not self.departs(a))

    @property
    def leavers(self) -> tuple[Agent, ...]:
        """Of the round, who departs and has not left yet."""
        return tuple(a for a in self.round.agents if a.id not in self.lost and self.departs(a))

    @property
    def missing(self) -> tuple[Agent, ...]:
        """For whom the next round waits."""
        here = {agent.id for agent in self.waiting}
        return tuple(agent for agent in self.survivors if agent.id not in here)

    @property
    def over(self) -> bool:
        """Whether the round is."""
        if not self.round.agents:
            return False
        if self.met or self.forming or len(self.survivors) < len(self.round.agents):
            return True
        back = any(self.round.rank(agent.id) is not None for agent in self.waiting)
        return back or (bool(self.waiting) and len(self.round.agents) < self.maximum)

    def has_met(self, agents: Iterable[Agent]) -> bool:
        """Whether each of these knows that the round is over."""
        know = self.met | {agent.id for agent in self.waiting}
        return all(agent.id in know for agent in agents)

    @property
    def deserted(self) -> bool:
        """Whether the job has ended, and nobody of its last round is left."""
        return self.closed and all(agent.id in self.lost for agent in self.round.agents)

    @property
    def short(self) -> int:
        """How many nodes are missing to the minimum of the next round."""
        return max(self.minimum - len(self.waiting), 0)

    @property
    def moves(self) -> bool:
        """Who serves this log leaves."""
        if self.host is None or self.closed:
            return False
        return self.host_left or self.leaves(*self.host)

    def agent(self, id: str) -> Agent | None:
        """Who that is; None where nobody of that name has a part in it."""
        forming = self.forming.agents if self.forming else ()
        every = (*self.round.agents, *forming, *self.waiting)
        return next((one for one in every if one.id == id), None)

    def successors(self) -> tuple[Agent, ...]:
        """Who may serve the log when its host leaves; the first that can, does."""
        known = {
            a.id: a for a in (*self.round.agents, *(self.forming or Round()).agents, *self.waiting)
        }
        return tuple(
            agent for agent in known.values()
            if agent.standby and agent.id not in self.lost and not self.departs(agent)
            and agent.id != self.host_agent
        )  # fmt: skip


def hosted(state: State, agent: Agent) -> State:
    """The same, *agent* serving the log."""
    return replace(state, host=(agent.node, agent.boot), host_agent=agent.id, host_left=False)

"""The log goes to another machine when the one that serves it leaves: who has it now, who is left behind.

See `services` for the rules; here is what is looked at and written in stores.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from secrets import token_hex
from threading import Thread

from evac.rendezvous import log
from evac.rendezvous.address import Address, split_endpoint
from evac.rendezvous.events import Depart, Event, Moved, decode, encode
from evac.rendezvous.keys import Keys, Refused, Unreachable
from evac.rendezvous.services import leads, next_term, signposts
from evac.rendezvous.snapshot import Snapshot, dump
from evac.rendezvous.state import Agent, State

logger = logging.getLogger("evac")

# Who is asked; the first survivors come first.
_ASKED = 8


def orphaned(state: State, error: Unreachable) -> bool:
    """Whether the agent that served the log has ended without a word, as far as *error* tells.

    A machine that is silent may live, and serve others: nobody takes that one's place.
    """
    hosted = state.host is not None and not state.moves and not state.closed
    return hosted and isinstance(error, Refused)


def place(address: Address, endpoint: str) -> Address:
    """The job's keys in the store at *endpoint*, which is like the one at *address*."""
    host, port = split_endpoint(endpoint, 0)
    return replace(address, host=host, port=port)


@dataclass(frozen=True)
class Aim:
    """Where the log is expected next.

    Attributes:
        agent: Who serves it there; "" where it is a store of its own.
        at: ``host:port``.
        term: Of its service there, at least.
        said: It stands in the old log.
    """

    agent: str
    at: str
    term: int
    said: bool


def aim(state: State, given_up: Collection[str], *, forced: bool = False) -> Aim | None:
    """Where whoever leaves the service of *state* goes; None where nobody takes over.

    Args:
        given_up: Agents that were waited for long enough.
        forced: The host has vanished without a word.
    """
    moved = state.moved
    leaves = state.moves or forced
    if moved is not None and not (leaves and moved.agent in given_up):
        return Aim(moved.agent, moved.at, moved.term, said=True)
    left = [one for one in state.successors() if one.id not in given_up] if leaves else []
    return Aim(left[0].id, left[0].standby, next_term(state), said=False) if left else None


def look(open_keys: Callable[[Address], Keys], address: Address) -> Snapshot | None:
    """The last snapshot that lies there; None where there is none, or nobody answers."""
    try:
        keys = open_keys(address)
        try:
            return log.snapshot(keys)
        finally:
            keys.close()
    except Unreachable:
        return None


def look_round(
    open_keys: Callable[[Address], Keys], address: Address, mine: State, me: str, *, bound: bool
) -> tuple[Agent, Snapshot] | None:
    """Who of the others serves the log in a way that counts more, and from where on.

    Only where it lies with an agent: another store is waited for.
    """
    if mine.host is None:
        return None
    every = {one.id: one for one in (*mine.electorate, *mine.successors()) if one.standby}
    for agent in list(every.values())[:_ASKED]:
        if agent.id == me:
            continue
        found = look(open_keys, place(address, agent.standby))
        if (
            found is not None
            and found.state.host_agent == agent.id
            and leads(found.state, mine, bound=bound)
        ):
            return agent, found
    return None


def bid_farewell(
    open_keys: Callable[[Address], Keys],
    address: Address,
    number: int,
    events: Iterable[Event],
    *,
    mark: str,
) -> None:
    """Write to the log that was left, for those who leave with its host, from entry *number* on.

    Nobody waits for it: that host may be gone already.
    """
    said = [encode(event, mark=mark) for event in events]
    told = (open_keys, address, number, said)
    Thread(target=_farewell, args=told, name="evac-rdzv-bye", daemon=True).start()


def _farewell(
    open_keys: Callable[[Address], Keys], address: Address, number: int, said: Sequence[bytes]
) -> None:
    try:
        old = open_keys(address)
        try:
            for text in said:
                number = log.append(old, number, text)
        finally:
            old.close()
    except Unreachable as error:
        logger.debug("the former host does not listen any more: %s", error)


def forward(
    old: Keys, number: int, say: Callable[[Event], None], ended: Callable[[], bool]
) -> None:
    """Pass on which other nodes leave, for as long as the store that was left lives.

    Their evacd may know that one only.
    """
    try:
        while not ended():
            for text in log.read_on(old, number):
                number += 1
                if isinstance(event := decode(text), Depart):
                    say(event)
            old.wait(log.entry(number))
    except Unreachable:
        pass
    finally:
        old.close()


def signpost(keys: Keys, here: Moved, told: str) -> str:
    """Say at a place where agents look for the log that it is *here*.

    Args:
        told: Name of the service there that has been told; what this returned the last time.
    """
    text, found = log.find(keys)
    if found is None:
        state = State(term=here.term, moved=here)
        made = Snapshot(0, 0, state, token_hex(4))
        return made.service if keys.replace(log.SNAPSHOT, text, dump(made)) else told
    if found.service != told and not signposts(found.state, here):
        log.append(keys, found.at, encode(here, mark=token_hex(4)))
    return found.service

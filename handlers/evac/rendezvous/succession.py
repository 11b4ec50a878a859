"""The log goes to another machine when the one that serves it leaves: who has it now, who is left behind.

The first survivor that can serves it on from a snapshot (`rounds.State.successors`). Nobody has to be
told: all who stay have read the same departure. For those who have not, `served_by` asks around.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from threading import Thread

from evac.rendezvous import log
from evac.rendezvous.address import Address, split_endpoint
from evac.rendezvous.events import Depart, Event, decode, encode
from evac.rendezvous.keys import Keys, Refused, Unreachable
from evac.rendezvous.rounds import Agent, State

logger = logging.getLogger("evac")

# Who is asked; the first survivors come first.
_ASKED = 8


def orphaned(state: State, error: Unreachable) -> bool:
    """Whether the agent that served the log has ended without a word, as far as *error* tells.

    A machine that is silent may live, and serve others: nobody takes that one's place.
    """
    hosted = state.host is not None and not state.moves and not state.closed
    return hosted and isinstance(error, Refused)


def place(address: Address, agent: Agent) -> Address:
    """Where *agent* would serve the log that lies at *address*."""
    host, port = split_endpoint(agent.standby, 0)
    return replace(address, host=host, port=port)


def served(open_keys: Callable[[Address], Keys], address: Address) -> State | None:
    """The state from which the log is served there; None where it is not, or not yet."""
    try:
        keys = open_keys(address)
        try:
            found = log.snapshot(keys)
        finally:
            keys.close()
    except Unreachable:
        return None
    return found.state if found else None


def served_by(
    open_keys: Callable[[Address], Keys], address: Address, state: State, *, but: str
) -> tuple[Agent, State] | None:
    """Who of the others serves the log by now, and from which state.

    Only where it lies with an agent: another store is waited for.
    """
    for agent in state.successors()[:_ASKED] if state.host else ():
        if agent.id == but:
            continue
        found = served(open_keys, place(address, agent))
        if found is not None and found.host == (agent.node, agent.boot):
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

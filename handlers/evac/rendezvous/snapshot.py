"""A `State` as JSON, for whoever comes late and need not read the whole log. Pure."""

import json
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from evac.rendezvous.address import is_endpoint
from evac.rendezvous.events import Depart, Moved, read
from evac.rendezvous.state import MOST_TERMS, Agent, Round, State

# More than any job writes from one round to the next.
_MOST_ENTRIES = 1 << 20


@dataclass(frozen=True)
class Snapshot:
    """The state after all entries before `at`.

    Attributes:
        since: The first entry that has not been deleted.
        service: Which one of the log; no two are called alike.
    """

    at: int
    since: int
    state: State
    service: str = ""


def dump(snapshot: Snapshot) -> bytes:
    """As it lies in the store."""
    state = snapshot.state
    document = {
        "at": snapshot.at,
        "since": snapshot.since,
        "service": snapshot.service,
        "minimum": state.minimum,
        "maximum": state.maximum,
        "last": state.last,
        "round": asdict(state.round),
        "forming": asdict(state.forming) if state.forming else None,
        "confirmed": sorted(state.confirmed),
        "waiting": [asdict(agent) for agent in state.waiting],
        "lost": sorted(state.lost),
        "refused": sorted(state.refused),
        "met": sorted(state.met),
        "departures": [asdict(event) for event in state.departures.values()],
        "choices": [asdict(event) for event in state.choices.values()],
        "host": list(state.host) if state.host else None,
        "host_agent": state.host_agent,
        "host_left": state.host_left,
        "called": state.called,
        "closed": state.closed,
        "epoch": state.epoch,
        "finished": sorted(state.finished),
        "failed": state.failed,
        "term": state.term,
        "parent": state.parent,
        "electorate": [asdict(agent) for agent in state.electorate],
        "moved": asdict(state.moved) if state.moved else None,
        "held": state.held,
        "origin": state.origin,
    }
    return json.dumps(document, separators=(",", ":")).encode()


def load(text: bytes) -> Snapshot | None:
    """Read it; None where it is none."""
    try:
        document = json.loads(text)
        departures = [_made(Depart, one) for one in document["departures"]]
        choices = [_made(Depart, one) for one in document.get("choices", ())]
        state = State(
            minimum=int(document["minimum"]),
            maximum=int(document["maximum"]),
            last=int(document["last"]),
            round=_round(document["round"]),
            forming=_round(document["forming"]) if document["forming"] else None,
            confirmed=frozenset(map(str, document["confirmed"])),
            waiting=tuple(_made(Agent, one) for one in document["waiting"]),
            lost=frozenset(map(str, document["lost"])),
            refused=frozenset(map(str, document.get("refused", ()))),
            met=frozenset(map(str, document["met"])),
            departures=MappingProxyType({(one.node, one.boot): one for one in departures}),
            choices=MappingProxyType({one.job: one for one in choices}),
            host=_pair(document["host"]) if document["host"] else None,
            host_agent=str(document.get("host_agent", "")),
            host_left=bool(document.get("host_left", False)),
            called=bool(document["called"]),
            closed=bool(document["closed"]),
            epoch=int(document["epoch"]),
            finished=frozenset(map(str, document["finished"])),
            failed=bool(document["failed"]),
            term=int(document["term"]),
            parent=int(document["parent"]),
            electorate=tuple(_made(Agent, one) for one in document["electorate"]),
            moved=_made(Moved, document["moved"]) if document["moved"] else None,
            held=bool(document["held"]),
            origin=_endpoint(document["origin"]),
        )
        at, since = int(document["at"]), int(document["since"])
        service = str(document["service"])
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
        return None
    # Whoever compacts the log deletes what lies between.
    if not 0 <= since <= at <= since + _MOST_ENTRIES or not 0 <= state.term < MOST_TERMS:
        return None
    return Snapshot(at, since, state, service)


def _round(document: Any) -> Round:
    agents = tuple(_made(Agent, one) for one in document["agents"])
    return Round(int(document["number"]), agents, _endpoint(document["at"]))


def _endpoint(text: Any) -> str:
    if not isinstance(text, str) or (text and not is_endpoint(text)):
        raise ValueError("no address of a store")
    return text


def _pair(document: Any) -> tuple[str, str]:
    node, boot = document
    return str(node), str(boot)


def _made(kind: type[Any], document: Any) -> Any:
    made = read(kind, document)
    if made is None:
        raise ValueError(f"no {kind.__name__}")
    return made

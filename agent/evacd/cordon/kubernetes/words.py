"""What the cluster is told of an order: a node condition and events. Pure.

Sources: kubernetes.io/docs/reference/node/node-status (conditions), …/reference/kubernetes-api/
cluster-resources/event-v1. Read 2026-10.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from evacd.cordon.kubernetes.marks import CONDITION
from evacd.facts import Order

# Namespace of what is told about things that are in none.
EVENTS = "/api/v1/namespaces/default/events"
_MOST_MESSAGE = 1000


def reason_of(text: str) -> str:
    """*text* as a reason: one word in CamelCase, as conditions and events want it."""
    words = re.split(r"[^A-Za-z0-9]+", text)
    plain = "".join(word[:1].upper() + word[1:] for word in words)
    return plain[:100] if plain[:1].isalpha() else f"Notice{plain}"[:100]


def told(order: Order, *, utc: datetime, seconds_left: float, boot: str) -> str:
    """One sentence that says by when and why, and under which boot: `boot_told` reads it."""
    ends = _time(utc + timedelta(seconds=max(seconds_left, 0.0)))
    return (
        f"{order.source} says that this machine goes ({order.kind}, {order.confidence.word}): "
        f"deadline {ends}, {max(seconds_left, 0.0):.1f} s left; order {order.id}, boot {boot}"
    )


def boot_told(node: Mapping[str, Any]) -> str | None:
    """The boot under which our condition was set and not taken back; None where it is not so."""
    status = node.get("status")
    found = status.get("conditions") if isinstance(status, Mapping) else None
    for each in found if isinstance(found, list) else []:
        if (
            isinstance(each, Mapping)
            and each.get("type") == CONDITION
            and each.get("status") == "True"
        ):
            boot = re.search(r"boot ([0-9A-Za-z-]+)$", str(each.get("message", "")))
            return boot[1] if boot else None
    return None


def leaving(
    aliases: Iterable[str],
    *,
    reason: str,
    message: str,
    utc: datetime,
    going: bool,
    turned: bool = True,
) -> dict[str, Any]:
    """A strategic merge patch of the status: conditions are merged by their type.

    Args:
        turned: Their status is another one than before; else only its words are.
    """
    one = {
        "status": "True" if going else "False",
        "reason": reason_of(reason),
        "message": message[:_MOST_MESSAGE],
        "lastHeartbeatTime": _time(utc),
    }
    if turned:
        one["lastTransitionTime"] = _time(utc)
    return {"status": {"conditions": [{"type": kind, **one} for kind in (CONDITION, *aliases)]}}


def event(
    node: str, uid: str, *, order: str, reason: str, message: str, utc: datetime, warning: bool
) -> dict[str, Any]:
    """An event of the node. Its name is the same when it is told again, which is refused then."""
    name = re.sub(r"[^a-z0-9.-]", "-", f"{node}.{order or 'restart'}.{reason}".lower())
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name[:253].strip("-."), "namespace": "default"},
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid or node},
        "reason": reason,
        "message": message[:_MOST_MESSAGE],
        "type": "Warning" if warning else "Normal",
        "firstTimestamp": _time(utc),
        "lastTimestamp": _time(utc),
        "count": 1,
        "source": {"component": "evacd", "host": node},
        "reportingComponent": "evacd",
        "reportingInstance": node,
    }


def _time(utc: datetime) -> str:
    return utc.strftime("%Y-%m-%dT%H:%M:%SZ")

"""What closes a node and what opens it again, as patches of its object. Pure.

The object itself remembers what we did, because it outlives this pod and its disk: the
annotation ``evac/cordon`` holds the order, the boot and whether the node was cordoned before.
Somebody else's cordon, and taints other than ours, are never undone.

``spec.taints`` is one value to a merge patch: whoever writes it writes all of it. So such a
patch names the version of the node that it was made from, and the server refuses it with 409
where anything has changed since (kubernetes.io/docs/reference/using-api/api-concepts, read
2026-10). Turned down: a JSON patch that tests the old list; it is refused with 422, which is
also what a patch gets that is wrong.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

TAINT = "evac/leaving"
ANNOTATION = "evac/cordon"
CONDITION = "EvacLeaving"

Node: TypeAlias = Mapping[str, Any]
Patch: TypeAlias = dict[str, Any]

# Marks of handlers that cordon or drain nodes themselves; from their own sources, read 2026-11.
_OTHERS = {
    "aws-node-termination-handler/": "aws-node-termination-handler",
    "karpenter.sh/disrupted": "Karpenter",
    "weave.works/kured-": "kured",
    "dgxc.nvidia.com/nvsentinel-state": "NVSentinel",
    "quarantineHealthEvent": "NVSentinel",
    "medik8s.io/": "medik8s",
    "remediation.medik8s.io/": "medik8s",
    "cloud.google.com/active-node-maintenance": "GKE's node maintenance",
    "ToBeDeletedByClusterAutoscaler": "cluster-autoscaler",
    "cloud.google.com/impending-node-termination": "GKE's termination handler",
    "aks-node-termination-handler": "aks-node-termination-handler",
}


@dataclass(frozen=True)
class Mark:
    """What we remember on the node.

    Attributes:
        order: Id of the order under which it was closed.
        boot: Kernel boot id of then.
        cordoned_before: It was closed before we came: not ours to open.
    """

    order: str
    boot: str
    cordoned_before: bool


def mark_of(node: Node) -> Mark | None:
    """What we wrote on it; None where we did not, or nobody can read it."""
    text = _part(node, "metadata", "annotations").get(ANNOTATION)
    try:
        found: Any = json.loads(text) if isinstance(text, str) else None
        return Mark(str(found["order"]), str(found["boot"]), found["cordoned_before"] is True)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def closing(node: Node, order: str, boot: str) -> Patch:
    """Cordon it, and remember how it was. Touches no list, so it can do without a version."""
    before = mark_of(node)
    # Open in spite of our mark: whoever had closed it has taken that back, or ours.
    was = is_cordoned(node) and (before is None or before.cordoned_before)
    text = json.dumps(asdict(Mark(order, boot, was)))
    return {
        "metadata": {"annotations": {ANNOTATION: text}},
        "spec": {"unschedulable": True},
    }


def tainting(node: Node, value: str) -> Patch | None:
    """Add our taint to those that are there; None where it is among them."""
    if _has_taint(node):
        return None
    ours = {"key": TAINT, "value": taint_value(value), "effect": "NoSchedule"}
    return {"spec": {"taints": [*_taints(node), ours]}}


def reopening(node: Node) -> Patch | None:
    """Undo what we did, and only that; None where there is nothing of ours."""
    mark = mark_of(node)
    remembered = ANNOTATION in _part(node, "metadata", "annotations")
    if not remembered and not _has_taint(node):
        return None
    spec: Patch = {}
    if _has_taint(node):
        left = [each for each in _taints(node) if not _is_ours(each)]
        spec["taints"] = left or None
    # Without a mark that can be read nobody knows whose cordon it is: a closed node costs
    # money, an opened one costs whoever closed it more.
    if mark is not None and not mark.cordoned_before:
        spec["unschedulable"] = None
    patch: Patch = {"metadata": {"annotations": {ANNOTATION: None}}}
    return {**patch, "spec": spec} if spec else patch


def at_version(patch: Patch, node: Node) -> Patch:
    """The same patch, refused with 409 where the node is no longer as it was seen."""
    version = _part(node, "metadata").get("resourceVersion")
    return {**patch, "metadata": {**patch.get("metadata", {}), "resourceVersion": version}}


def still_open(node: Node) -> str:
    """What keeps new work from being kept off, for the report; "" where it is closed."""
    wrong = []
    if not is_cordoned(node):
        wrong.append("it is not unschedulable")
    if not _has_taint(node):
        wrong.append(f"it has no taint {TAINT}")
    return " and ".join(wrong)


def is_cordoned(node: Node) -> bool:
    """Its spec says that it is unschedulable."""
    return _part(node, "spec").get("unschedulable") is True


def is_ours(node: Node, boot: str) -> bool:
    """It is closed, and remembers that this boot's daemon closed it."""
    mark = mark_of(node)
    return is_cordoned(node) and mark is not None and mark.boot == boot


def others(node: Node) -> tuple[str, ...]:
    """Other handlers that have left their marks here: two that act get in each other's way."""
    keys = [str(each.get("key", "")) for each in _taints(node)]
    keys += _part(node, "metadata", "labels")
    keys += _part(node, "metadata", "annotations")
    found = {name for key in keys for start, name in _OTHERS.items() if key.startswith(start)}
    return tuple(sorted(found))


def uid_of(node: Node) -> str:
    """metadata.uid; "" where it is missing."""
    return str(_part(node, "metadata").get("uid", ""))


def taint_value(text: str) -> str:
    """*text* as the value of a taint: at most 63 of the characters that a label's may have."""
    plain = re.sub(r"[^A-Za-z0-9_.-]", "-", text)[:63]
    return re.sub(r"^[^A-Za-z0-9]+|[^A-Za-z0-9]+$", "", plain)


def _part(node: Node, *path: str) -> Mapping[str, Any]:
    found: Any = node
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _taints(node: Node) -> list[Mapping[str, Any]]:
    found = _part(node, "spec").get("taints")
    return [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []


def _has_taint(node: Node) -> bool:
    return any(_is_ours(each) for each in _taints(node))


def _is_ours(taint: Mapping[str, Any]) -> bool:
    return taint.get("key") == TAINT and taint.get("effect") == "NoSchedule"

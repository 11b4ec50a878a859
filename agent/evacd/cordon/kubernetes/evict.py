"""Pods are evicted last, and only where that is asked for: what is to be saved is saved by then.

Evicting honours disruption budgets: 429 says that one forbids it for now, and it is asked for
again until the time is over, ever less often: a budget may stand for the hour that an order has.
Source: kubernetes.io/docs/concepts/scheduling-eviction/api-eviction, read 2026-11. A pod under two
budgets is refused with 500 for as long as it is; so no pod that is refused may keep others from
being asked for.
"""

import asyncio
from asyncio import TaskGroup
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from evacd.cordon.kubernetes.asking import Asking, Pauses, Refused, helps
from evacd.kube import Failed

_AT_ONCE = 16
_AT_ONE_TIME = 50
# The pod was written to meanwhile, or is another one by now.
_CHANGED = 409


@dataclass(frozen=True)
class Pod:
    """One that may be evicted."""

    namespace: str
    name: str
    uid: str


@dataclass
class Evicted:
    """What became of them; begins with the worst and improves."""

    left: dict[Pod, str] = field(default_factory=dict)
    gone: int = 0
    # Nobody knows of the pods before that.
    listed: bool = False

    @property
    def wrong(self) -> str | None:
        """Why pods are left, by the first few of them; None where there are none."""
        if not self.left:
            return None
        shown = [f"{p.namespace}/{p.name} ({why})" for p, why in list(self.left.items())[:3]]
        return f"{len(self.left)} pods not evicted: {', '.join(shown)}"


def evictable(pods: object, *, node: str) -> Iterator[Pod]:
    """Out of a list of pods, those that an eviction moves elsewhere. Pure.

    Left out: what a DaemonSet would put back, this daemon among it, what the kubelet runs from
    a file, and what has ended.
    """
    items = pods.get("items") if isinstance(pods, Mapping) else None
    for item in items if isinstance(items, list) else []:
        meta, spec = _part(item, "metadata"), _part(item, "spec")
        owners = meta.get("ownerReferences")
        kinds = [_part(each).get("kind") for each in owners] if isinstance(owners, list) else []
        if (
            spec.get("nodeName") == node
            and "DaemonSet" not in kinds
            and "kubernetes.io/config.mirror" not in _part(meta, "annotations")
            and _part(item, "status").get("phase") not in ("Succeeded", "Failed")
        ):
            yield Pod(str(meta["namespace"]), str(meta["name"]), str(meta.get("uid", "")))


async def evict(asking: Asking, node: str, result: Evicted) -> None:
    """Evict what can be; the caller limits the time, and then *result* has what is left.

    Raises:
        Refused: The pods cannot be listed.
    """
    pods = await _listed(asking, node)
    result.left, result.listed = dict.fromkeys(pods, "not reached"), True
    room = asyncio.Semaphore(_AT_ONCE)

    async def one(pod: Pod) -> None:
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            # Of this pod, and not of one that has its name by then.
            "deleteOptions": {"preconditions": {"uid": pod.uid}} if pod.uid else {},
        }
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/eviction"
        # At most as kubectl's drain has it; the server asks for 10 s where a budget's own state is behind.
        pauses = Pauses(0.5, most=5.0, obeyed=10.0)
        while (why := await _once(asking, room, path, body)) is not None:
            result.left[pod] = why.reason
            if not (helps(why) or why.status == _CHANGED):
                return
            await asyncio.sleep(pauses.after(why))
        del result.left[pod]
        result.gone += 1

    async with TaskGroup() as tasks:
        for pod in pods:
            tasks.create_task(one(pod))


async def _listed(asking: Asking, node: str) -> tuple[Pod, ...]:
    # In parts: some nodes have hundreds, and no answer of many MiB is taken.
    params = {"fieldSelector": f"spec.nodeName={node}", "limit": str(_AT_ONE_TIME)}
    found: list[Pod] = []
    while True:
        part = await asking.ask("GET", "/api/v1/pods", params=params)
        found += evictable(part, node=node)
        if not (more := _part(part, "metadata").get("continue")):
            return tuple(found)
        params["continue"] = str(more)


async def _once(asking: Asking, room: asyncio.Semaphore, path: str, body: object) -> Failed | None:
    async with room:
        try:
            await asking.ask("POST", path, body=body, again=False)
        except Refused as refused:
            failed = refused.failed
            if failed.status == 404 or (failed.status == _CHANGED and "UID in" in failed.message):
                return None  # it is gone; another one may have its name
            # An API server that has too much to do says 429 as well.
            budget = failed.status == 429 and "budget" in failed.message
            return replace(
                failed, reason="a disruption budget forbids it" if budget else str(refused)
            )
    return None


def _part(thing: object, key: str = "") -> Mapping[str, Any]:
    found = thing.get(key) if key and isinstance(thing, Mapping) else thing
    return found if isinstance(found, Mapping) else {}

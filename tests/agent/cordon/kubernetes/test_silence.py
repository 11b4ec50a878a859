"""What one request meets keeps no other one: each line of a node goes on by itself, and says how it stands."""

import asyncio
import os
from asyncio import TaskGroup
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trustme
from structlog.testing import capture_logs

from evacd.clock import SystemClock
from evacd.cordon.kubernetes.marks import TAINT
from evacd.facts import Confidence, Kept, Order
from evacd.kube import Limits
from evacd.leaving import Leaving
from evacd.report.journal import Journal
from evacd.report.standing_file import StandingFile
from tests.agent.cordon.kubernetes.conftest import NODE, ORDER, Cluster, Make, Node, close
from tests.kube.discovery import PODS
from tests.kube.server import CORDONED, Fault

STATUS, EVENTS = f"/nodes/{NODE}/status", "/namespaces/default/events"
# For each a request that no server would ever answer otherwise.
FAULTS: Mapping[str, Mapping[str, Any]] = {
    "silent": {"slow": 1e6},
    "half": {"half": True},
    "reset": {"status": -1},
    "busy": {"status": 429, "retry_after": 1},
    "broken": {"status": 500},
    "conflict": {"status": 409},
    "forbidden": {"status": 403},
}
NIGHTLY = os.environ.get("EVAC_NIGHTLY") == "1"
# The others differ from these in what the client sees of them, which its own tests hold.
USUAL = FAULTS if NIGHTLY else ("silent", "half", "forbidden")
LIMIT = 60.0


class Scene:
    """A node with its two lines as the daemon runs them, and an order under which it leaves."""

    def __init__(self, node: Node, leaving: Leaving, told: list[tuple[str, str]]) -> None:
        self.node = node
        self.leaving = leaving
        self.told = told
        now = SystemClock().monotonic()
        self.order = Order("o-1", now + 30.0, Confidence.CERTAIN, "gcp", "preempted", given=now)

    def flushed(self) -> None:
        """Everything is saved."""
        self.leaving.emptied(self.order, [Kept("alice/gpt", None, 10, 0.1)])

    def line(self, name: str) -> dict[str, Any]:
        (found,) = [each for each in self.leaving.shown() if each["name"] == name]
        return found


async def until(what: str, true: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT):
        while not true():  # noqa: ASYNC110 - a server's storage tells nobody
            await asyncio.sleep(0.01)
    assert true(), what


@asynccontextmanager
async def leaving(node: Node, home: Path) -> AsyncIterator[Scene]:
    """The node begins to leave; ended at once when the block has."""
    clock, told = SystemClock(), list[tuple[str, str]]()
    journal = Journal(home / "incidents.sqlite", clock)
    file = StandingFile(home / "standing.json", clock)
    try:
        async with TaskGroup() as beside:
            scene = Scene(
                node,
                Leaving(
                    cordons=[node.cordon, node.telling],
                    announcers=[],
                    journal=journal,
                    file=file,
                    clock=clock,
                    node=NODE,
                    boot="boot-1",
                    beside=beside,
                    count=lambda name, data: told.append((name, data["name"])),
                ),
                told,
            )
            scene.leaving.begin(scene.order)
            yield scene
            scene.leaving.stop()
    finally:
        file.stop()
        journal.stop()


@pytest.fixture
async def pods(cluster: Cluster) -> None:
    for name in ("train-0", "train-1"):
        pod = {"metadata": {"name": name}, "spec": {"nodeName": NODE}, "status": {}}
        await cluster.kube.storage.create(PODS, "team", pod)


def left(cluster: Cluster) -> set[str]:
    return {each["metadata"]["name"] for each in cluster.kube.storage.list(PODS)}


def reasons(cluster: Cluster) -> set[str]:
    return {each["reason"] for each in cluster.events()}


@pytest.mark.parametrize("fault", USUAL)
@pytest.mark.parametrize(("method", "path"), [("PATCH", STATUS), ("POST", EVENTS)])
async def test_what_is_only_told_holds_neither_the_cordon_nor_an_eviction_back(
    cluster: Cluster, make: Make, tmp_path: Path, pods: None, method: str, path: str, fault: str
) -> None:
    cluster.kube.faults = [Fault(method, path, **FAULTS[fault])]
    # Ten minutes in which whatever waited for it would be seen to wait.
    node = make(evict_pods=True, told_seconds=600.0)

    async with leaving(node, tmp_path) as scene:
        scene.flushed()
        await until("the pods are evicted", lambda: not left(cluster))
        assert CORDONED in cluster.taints
        assert ("cordon.closed", "kubernetes") in scene.told
        assert scene.line("kubernetes")["done"]
        if fault not in ("forbidden", "conflict"):  # of an event that means that it was told before
            assert not scene.line("kubernetes-telling")["done"]

        scene.leaving.stay(scene.order, "cancelled")
        await until("the node is open", lambda: "unschedulable" not in cluster.node["spec"])


@pytest.mark.parametrize(
    "method_path", [("PATCH", STATUS), ("POST", EVENTS)][: 2 if NIGHTLY else 1], ids=str
)
async def test_what_could_not_be_told_says_why_and_is_told_once_there_is_an_answer(
    cluster: Cluster, make: Make, tmp_path: Path, method_path: tuple[str, str]
) -> None:
    cluster.kube.faults = [Fault(*method_path, slow=1e6)]
    step = "condition" if "status" in method_path[1] else "event"

    async with leaving(make(told_seconds=1.5), tmp_path) as scene:
        await until("it says so", lambda: bool(scene.line("kubernetes-telling")["reason"]))
        line = scene.line("kubernetes-telling")
        assert f"{step}: not done within 1.5 s" in line["reason"]
        assert (line["wished"], line["done"], line["closes"]) == ("closed", False, False)
        # The other one of them has not waited for it.
        other = ["NoticeReceived" in reasons(cluster), "EvacLeaving" in cluster.conditions()]
        assert other == [step == "condition", step == "event"]

        cluster.kube.faults = []
        await until("it is told", lambda: ("cordon.told", "kubernetes-telling") in scene.told)
        assert scene.line("kubernetes-telling")["reason"] == ""
        assert cluster.conditions()["EvacLeaving"] == "True"
        assert "NoticeReceived" in reasons(cluster)


@pytest.mark.parametrize("method", ["GET", "PATCH"] if NIGHTLY else ["PATCH"])
async def test_a_cordon_without_an_answer_is_told_on_the_node_and_nobody_is_evicted_meanwhile(
    cluster: Cluster, make: Make, tmp_path: Path, pods: None, method: str
) -> None:
    """A pod that is evicted from a node that is still open may land there again."""
    spoilt = [Fault(method, STATUS, times=0), Fault(method, f"/api/v1/nodes/{NODE}", slow=1e6)]
    if method == "PATCH":
        spoilt[0] = Fault(method, STATUS)  # the status' path holds the node's
    cluster.kube.faults = spoilt
    node = make(evict_pods=True, timeout_seconds=1.5, told_seconds=20.0)

    async with leaving(node, tmp_path) as scene:
        scene.flushed()
        await until("it is told", lambda: {"NoticeReceived", "CordonError"} <= reasons(cluster))
        await until("the condition is, too", lambda: "EvacLeaving" in cluster.conditions())
        line = scene.line("kubernetes")
        assert (line["wished"], line["done"], line["closes"]) == ("closed", False, True)
        assert "cordon: not done within 1.5 s" in line["reason"]
        assert left(cluster) == {"train-0", "train-1"}

        cluster.kube.faults = []
        await until("the pods are evicted", lambda: not left(cluster))
        assert ("cordon.closed", "kubernetes") in scene.told
        assert scene.line("kubernetes")["reason"] == ""
        await until("that is told as well", lambda: "Cordon" in reasons(cluster))


@pytest.mark.parametrize("fault", sorted(set(USUAL) - {"forbidden", "conflict"}))
async def test_pods_that_nobody_lists_are_told_of(cluster: Cluster, make: Make, fault: str) -> None:
    cluster.kube.faults = [Fault("GET", "/api/v1/pods", **FAULTS[fault])]
    cordon = make(evict_pods=True, timeout_seconds=0.7).cordon
    order = Order("o-1", 1030.0, Confidence.CERTAIN, "gcp", "preempted", given=1000.0)

    wrong = await cordon.emptied(order, kept=1, lost=0, seconds_left=0.1)

    assert wrong is not None
    assert wrong.startswith("no pod evicted: not listed within 0.7 s")


@pytest.mark.parametrize("fault", ["silent", "half"])
async def test_an_eviction_without_an_answer_keeps_no_other_one(
    cluster: Cluster, make: Make, pods: None, fault: str
) -> None:
    cluster.kube.faults = [Fault("POST", "/train-0/eviction", **FAULTS[fault])]
    cordon = make(evict_pods=True).cordon
    order = Order("o-1", 1030.0, Confidence.CERTAIN, "gcp", "preempted", given=1000.0)

    async with TaskGroup() as tasks:
        # Ten minutes in which whatever waited for it would be seen to wait.
        emptied = tasks.create_task(cordon.emptied(order, kept=1, lost=0, seconds_left=600.0))
        await until("the other is evicted", lambda: "train-1" not in left(cluster))
        emptied.cancel()


@pytest.mark.parametrize(
    ("method", "fault"),
    [
        ("GET", {"half": True}),
        ("PATCH", {"slow": 1e6}),
        ("PATCH", {"status": -1, "after": True}),
        ("POST", {"half": True}),
    ],
)
async def test_what_has_no_whole_answer_is_asked_again(
    cluster: Cluster, make: Make, method: str, fault: Mapping[str, Any]
) -> None:
    cluster.kube.faults = [Fault(method, times=1, **fault)]

    assert await close(make()) is None
    assert CORDONED in cluster.taints
    assert cluster.conditions()["EvacLeaving"] == "True"
    assert reasons(cluster) == {"NoticeReceived"}


@pytest.mark.parametrize("method", ["GET", "PATCH"])
async def test_one_of_several_servers_that_is_silent_costs_a_moment(
    cluster: Cluster, make: Make, method: str
) -> None:
    """Whatever waited for it would wait for ten minutes."""
    cluster.kube.faults = [Fault(method, slow=1e6, times=1)]
    patient = Limits(connect=1.0, read=600.0)
    cordon = make(limits=patient, timeout_seconds=600.0, second_after_seconds=0.3).cordon

    async with asyncio.timeout(LIMIT):
        assert await cordon.close(ORDER, seconds_left=30.0) is None
    assert CORDONED in cluster.taints
    assert cluster.taints.count(TAINT) == 1


async def test_an_authority_that_the_kubelet_replaces_is_read_anew(
    cluster: Cluster, make: Make
) -> None:
    ours = cluster.access.ca_file.read_bytes()
    trustme.CA().cert_pem.write_to_path(cluster.access.ca_file)
    node = make(timeout_seconds=60.0)

    async with TaskGroup() as tasks:
        with capture_logs() as logs:
            closing = tasks.create_task(close(node))
            await until("it was refused", lambda: bool(logs))
        cluster.access.ca_file.write_bytes(ours)
    assert closing.result() is None
    assert "certificate is not to be trusted" in logs[0]["reason"]


async def test_a_cancel_is_told_by_what_became_of_the_cordon(
    cluster: Cluster, make: Make, tmp_path: Path
) -> None:
    async with leaving(make(), tmp_path) as scene:
        await until("it is closed", lambda: ("cordon.closed", "kubernetes") in scene.told)
        await until("it is told", lambda: ("cordon.told", "kubernetes-telling") in scene.told)
        scene.leaving.amended(replace(scene.order, amendments=1))
        scene.leaving.stay(scene.order, "cancelled by gcp")
        await until("that is told", lambda: "Uncordon" in reasons(cluster))

        assert cluster.conditions()["EvacLeaving"] == "False"
        assert {each["wished"] for each in scene.leaving.shown()} == {"open"}

"""A real evacd on a node of the tests' cluster, with the rights that the chart gives, seen by kubectl."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from evac.show import render_status
from tests.agent.daemon.nodes import Node, node_at, until
from tests.agent.daemon.test_notice import Cloud
from tests.kube.cluster import CHART, Cluster

TAINT = "evac/leaving"


@pytest.fixture(scope="module")
def installed(cluster: Cluster) -> Cluster:
    cluster.helm(
        "install", "evac", str(CHART), "--namespace", "evac", "--create-namespace",
        "--set", "stores={s3://bucket/prefix}", "--set", "cordon.conditions={Terminating}",
    )  # fmt: skip
    return cluster


class Pod:
    """evacd as its pod on gpu-7 would be started."""

    def __init__(self, cluster: Cluster, node: Node, home: Path) -> None:
        self.cluster = cluster
        self.node = node
        self.account = home / "account"
        cluster.account(self.account, namespace="evac", name="evac", node="gpu-7")

    def start(self, *flags: str) -> Node:
        return self.node.start(
            "--node-account", str(self.account),
            "--cordon-kubernetes-conditions", "Terminating",
            *flags,
            environ={**self.cluster.environ, "NODE_NAME": "gpu-7"},
        )  # fmt: skip

    @property
    def object(self) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.get("node", "gpu-7")
        return found

    @property
    def closed(self) -> bool:
        spec = self.object["spec"]
        keys = [each["key"] for each in spec.get("taints", [])]
        return spec.get("unschedulable") is True and TAINT in keys

    @property
    def open(self) -> bool:
        spec = self.object["spec"]
        return not spec.get("unschedulable") and not spec.get("taints")


@pytest.fixture
def pod(installed: Cluster, tmp_path: Path) -> Iterator[Pod]:
    for node in node_at(tmp_path / "node"):
        pod = Pod(installed, node, tmp_path)
        yield pod
        node.close()
    installed.tell("fault", faults=[])
    installed.kubectl("uncordon", "gpu-7")
    installed.kubectl("annotate", "node", "gpu-7", "evac/cordon-")
    if not pod.open:
        installed.kubectl("taint", "nodes", "gpu-7", f"{TAINT}-")


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    cloud = Cloud()
    yield cloud
    cloud.close()


def test_a_preempted_node_is_closed_before_its_flush_is_over(pod: Pod, cloud: Cloud) -> None:
    node = pod.start(*cloud.flags)
    # Its turn lasts as long as its window: the flush cannot be over before.
    hung = node.workload("index", mode="callback", need_seconds=8.0, behave="hang")
    hung.do("connect")
    node.staged(5, job="staged")

    cloud.do("preempt")
    node.event("turn.given")
    node.event("cordon.closed")

    assert pod.closed
    names = [event.name for event in node.events()]
    before = names[: names.index("cordon.closed")]
    node.event("cordon.told")
    assert not {"flush.finished", "report.written"} & set(before)
    conditions = {each["type"]: each for each in pod.object["status"]["conditions"]}
    assert conditions["EvacLeaving"]["status"] == conditions["Terminating"]["status"] == "True"
    assert "gcp/preempted says" in conditions["EvacLeaving"]["message"]
    events = pod.cluster.kubectl("describe", "node", "gpu-7")
    assert "NoticeReceived" in events


def test_a_cancel_opens_it_and_tells_so(pod: Pod) -> None:
    node = pod.start()
    node.staged(3)
    node.drain()
    node.event("cordon.closed")
    assert pod.closed

    node.cancel()
    node.event("cordon.reopened")
    assert pod.open

    def stays() -> bool:
        found = {each["type"]: each["status"] for each in pod.object["status"]["conditions"]}
        return (found["EvacLeaving"], found["Terminating"]) == ("False", "False")

    until("the conditions are taken back", stays)
    until("that is told", lambda: "Uncordon" in pod.cluster.kubectl("describe", "node", "gpu-7"))


def test_a_cancel_that_no_server_answers_opens_it_once_one_does(pod: Pod) -> None:
    node = pod.start("--cordon-kubernetes-timeout-seconds", "1")
    node.drain()
    node.event("cordon.closed")
    pod.cluster.tell("fault", faults=[{"status": 503}])

    node.cancel()
    node.event("cordon.failed")
    pod.cluster.tell("fault", faults=[])
    until("the node is open", lambda: pod.open)
    node.event("cordon.reopened")


def test_another_s_cordon_outlives_our_cancel(pod: Pod) -> None:
    pod.cluster.kubectl("cordon", "gpu-7")
    node = pod.start()
    node.drain()
    node.event("cordon.closed")
    node.cancel()
    node.event("cordon.reopened")

    assert pod.object["spec"]["unschedulable"] is True
    assert TAINT not in json.dumps(pod.object["spec"])


def test_after_a_reboot_the_node_says_itself_that_it_was_ours(pod: Pod) -> None:
    """Its disk is new as well: nothing but the node's object remembers."""
    mark = {"order": "x-1", "boot": "another-boot", "cordoned_before": False}
    pod.cluster.kubectl("annotate", "node", "gpu-7", f"evac/cordon={json.dumps(mark)}")
    pod.cluster.kubectl("cordon", "gpu-7")
    pod.cluster.kubectl("taint", "nodes", "gpu-7", f"{TAINT}=x:NoSchedule")

    pod.start()
    until("the node is open", lambda: pod.open)


def test_a_restart_in_the_same_boot_keeps_it_closed_until_all_is_calm(
    pod: Pod, cloud: Cloud
) -> None:
    pod.start(*cloud.flags).staged(3)
    cloud.do("preempt")
    pod.node.event("cordon.closed")
    pod.node.kill()

    pod.start(*cloud.flags)
    pod.node.settled()
    assert pod.closed
    cloud.do("clear")
    until("the node is open", lambda: pod.open)


def test_karpenter_s_taint_is_a_notice_and_its_going_a_cancel(pod: Pod) -> None:
    node = pod.start()
    node.staged(3)
    pod.cluster.kubectl("taint", "nodes", "gpu-7", "karpenter.sh/disrupted:NoSchedule")

    assert node.settled()["root/job"]["kept"]
    assert node.status()["order"]["kind"] == "karpenter/disrupt"
    node.event("cordon.closed")
    assert pod.closed

    pod.cluster.kubectl("taint", "nodes", "gpu-7", "karpenter.sh/disrupted-")
    until("the node is open", lambda: pod.open)


def test_aks_s_condition_is_a_notice_with_its_date(pod: Pod) -> None:
    node = pod.start()
    node.staged(3)
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=25), usegmt=True)
    condition = {
        "type": "PreemptionScheduled",
        "status": "True",
        "reason": "SpotEvictionIncoming",
        "message": f"Preempt Scheduled: {date}. For more information, see x. EventId: y",
    }
    patch = json.dumps({"status": {"conditions": [condition]}})
    pod.cluster.kubectl("patch", "node", "gpu-7", "--subresource=status", "-p", patch)

    assert node.settled()["root/job"]["kept"]
    assert node.status()["order"]["kind"] == "aks/preempt"
    assert 0 < node.event("order.given").data["window_seconds"] <= 25

    gone = json.dumps({"status": {"conditions": [{**condition, "status": "False"}]}})
    pod.cluster.kubectl("patch", "node", "gpu-7", "--subresource=status", "-p", gone)
    until("the node is open", lambda: pod.open)


def test_pods_go_last_as_their_budget_allows_and_a_shorter_deadline_waits_for_none(
    pod: Pod,
) -> None:
    pod.cluster.helm(
        "upgrade", "evac", str(CHART), "--namespace", "evac", "--reuse-values",
        "--set", "cordon.evict=true",
    )  # fmt: skip
    for name in ("free", "held"):
        meta = {"name": name, "namespace": "team", "labels": {"app": name}}
        inside = {"nodeName": "gpu-7", "containers": [{"name": "c", "image": "i"}]}
        each = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": inside, "status": {}}
        pod.cluster.tell("create", object=each)
    meta = {"name": "held", "namespace": "team"}
    allowed = {"selector": {"matchLabels": {"app": "held"}}}
    budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": meta}
    status = {"disruptionsAllowed": 0}
    pod.cluster.tell("create", object={**budget, "spec": allowed, "status": status})

    def pods() -> set[str]:
        found = pod.cluster.get("pods", "-n", "team")["items"]
        return {each["metadata"]["name"] for each in found}

    node = pod.start("--cordon-kubernetes-evict")
    node.staged(3)
    # Both leave more time than this test has.
    node.drain(seconds=3600.0)
    assert node.settled()["root/job"]["kept"]
    until("what may go has gone", lambda: pods() == {"held"})

    node.drain(seconds=1800.0)
    until(
        "that is told", lambda: "NoticeAmended1" in pod.cluster.kubectl("describe", "node", "gpu-7")
    )
    pod.cluster.kubectl("delete", "pdb", "held", "-n", "team")
    until("the other has gone, too", lambda: not pods())


@pytest.mark.parametrize("fault", [{"status": 503}, {"slow": 60.0}, {"status": 401}])
def test_an_api_server_in_trouble_costs_the_flush_nothing_and_is_told(
    pod: Pod, fault: dict[str, Any]
) -> None:
    node = pod.start("--cordon-kubernetes-timeout-seconds", "1")
    node.staged(9)
    pod.cluster.tell("fault", faults=[fault])

    node.drain(seconds=20.0)
    outcomes = node.settled()

    assert outcomes["root/job"]["kept"]
    for name, said in (("kubernetes", "cordon: "), ("kubernetes-telling", "condition: ")):
        line = until("it is told", partial(wrong, node, name))
        assert line.startswith(f"{said}not done within 1 s")
    node.event("cordon.failed")
    names = [event.name for event in node.events()]
    assert names.index("flush.finished") < names.index("cordon.failed")
    assert "cordon   kubernetes  NOT CLOSED: cordon: not done within 1 s" in render_status(
        node.status()
    )
    pod.cluster.tell("fault", faults=[])


def wrong(node: Node, name: str) -> str | None:
    """What the status says of this cordon."""
    (line,) = [each for each in node.status()["cordons"] if each["name"] == name]
    return line["reason"] or None


def test_a_status_that_nobody_answers_for_holds_no_eviction_back(pod: Pod) -> None:
    pod.cluster.helm(
        "upgrade", "evac", str(CHART), "--namespace", "evac", "--reuse-values",
        "--set", "cordon.evict=true",
    )  # fmt: skip
    meta = {"name": "free", "namespace": "team", "labels": {"app": "free"}}
    inside = {"nodeName": "gpu-7", "containers": [{"name": "c", "image": "i"}]}
    each = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": inside, "status": {}}
    pod.cluster.tell("create", object=each)
    pod.cluster.tell("fault", faults=[{"method": "PATCH", "path": "/status", "slow": 1e6}])

    # Ten minutes in which whatever waited for it would be seen to wait.
    node = pod.start("--cordon-kubernetes-evict", "--cordon-kubernetes-timeout-seconds", "600")
    node.staged(3)
    node.drain(seconds=3600.0)

    until("the pod is evicted", lambda: not pod.cluster.get("pods", "-n", "team")["items"])
    assert pod.closed
    assert node.settled()["root/job"]["kept"]
    assert "kubernetes-telling  NOT TOLD yet" in render_status(node.status())
    node.cancel()
    until("the node is open", lambda: pod.open)

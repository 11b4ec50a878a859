"""What evacd's service account may do once the chart is installed: to its own node, and little more."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kube.access import service_account
from tests.kube.cluster import CHART, Cluster
from tests.kube.serve import kubeconfig

As = Callable[..., str]
CLOSED = '{"spec": {"unschedulable": true}}'


@pytest.fixture(scope="module")
def installed(cluster: Cluster) -> Cluster:
    cluster.helm(
        "install", "evac", str(CHART), "--namespace", "evac", "--create-namespace",
        "--set", "stores={s3://bucket/prefix}",
    )  # fmt: skip
    return cluster


@pytest.fixture
def as_evacd(installed: Cluster, tmp_path: Path) -> As:
    """Runs kubectl with the token that the kubelet of a node gives evacd's pod."""

    def run(*arguments: str, node: str = "gpu-7", fails: bool = False, stdin: str = "") -> str:
        token = f"evacd-on-{node}"
        installed.user(token, service_account("evac", "evac", node=node))
        url = f"https://127.0.0.1:{installed.port}"
        config = tmp_path / "kubeconfig"
        config.write_text(json.dumps(kubeconfig(url, installed.folder / "ca.crt", token)))
        return installed.kubectl("--kubeconfig", str(config), *arguments, fails=fails, stdin=stdin)

    return run


def test_it_cordons_and_taints_its_own_node(installed: Cluster, as_evacd: As) -> None:
    as_evacd("cordon", "gpu-7")
    as_evacd("taint", "nodes", "gpu-7", "evac/leaving=x:NoSchedule")

    assert installed.get("node", "gpu-7")["spec"]["unschedulable"] is True
    as_evacd("taint", "nodes", "gpu-7", "evac/leaving-")
    as_evacd("uncordon", "gpu-7")


def test_another_node_is_out_of_its_reach(installed: Cluster, as_evacd: As) -> None:
    said = as_evacd("patch", "node", "gpu-8", "-p", CLOSED, fails=True)

    assert "may change no other node than its own" in said
    assert "unschedulable" not in installed.get("node", "gpu-8")["spec"]


def test_a_token_that_names_no_node_may_change_none(as_evacd: As) -> None:
    said = as_evacd("patch", "node", "gpu-7", "-p", CLOSED, node="", fails=True)
    assert "token names no node" in said


def test_it_changes_no_labels(as_evacd: As) -> None:
    said = as_evacd("label", "node", "gpu-7", "pool=other", fails=True)
    assert "may not change a node's labels" in said


def test_it_evicts_nobody_by_a_taint(as_evacd: As) -> None:
    said = as_evacd("taint", "nodes", "gpu-7", "a=b:NoExecute", fails=True)
    assert "may not evict by a NoExecute taint" in said


def test_another_s_no_execute_taint_is_not_in_its_way(installed: Cluster, as_evacd: As) -> None:
    installed.kubectl("taint", "nodes", "gpu-7", "other=x:NoExecute")
    as_evacd("cordon", "gpu-7")

    as_evacd("uncordon", "gpu-7")
    installed.kubectl("taint", "nodes", "gpu-7", "other-")


@pytest.mark.parametrize(
    ("patch", "said", "below"),
    [
        (
            '{"spec": {"taints": [{"key": "other", "value": "x", "effect": "NoSchedule"}]}}',
            "no taints but its own",
            "",
        ),
        (
            '{"metadata": {"annotations": {"cluster-autoscaler.kubernetes.io/scale-down-disabled": "true"}}}',
            "no annotation but evac/cordon",
            "",
        ),
        ('{"metadata": {"finalizers": ["evac/stays"]}}', "not change a node's finalizers", ""),
        (
            '{"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "y"}]}}',
            "not change a node's owners",
            "",
        ),
        ('{"spec": {"podCIDR": "10.0.0.0/24"}}', "nothing of a node's spec but", ""),
        ('{"status": {"capacity": {"cpu": "512"}}}', "nothing of a node's status but", "status"),
        (
            '{"status": {"conditions": [{"type": "Ready", "status": "False"}]}}',
            "no conditions but its own",
            "status",
        ),
    ],
)
def test_of_its_own_node_it_changes_what_a_cordon_needs_and_no_more(
    installed: Cluster, as_evacd: As, patch: str, said: str, below: str
) -> None:
    before = installed.get("node", "gpu-7")
    flags = [f"--subresource={below}"] if below else []

    assert said in as_evacd("patch", "node", "gpu-7", "-p", patch, *flags, fails=True)
    assert installed.get("node", "gpu-7") == before


def test_it_takes_no_taint_of_another_s_away(installed: Cluster, as_evacd: As) -> None:
    installed.kubectl("taint", "nodes", "gpu-7", "other=x:NoSchedule")
    said = as_evacd("taint", "nodes", "gpu-7", "other-", fails=True)

    assert "may change no taints but its own" in said
    installed.kubectl("taint", "nodes", "gpu-7", "other-")


def test_it_sets_its_own_condition(installed: Cluster, as_evacd: As) -> None:
    ours = {"type": "EvacLeaving", "status": "True", "reason": "X", "message": "it goes"}
    patch = json.dumps({"status": {"conditions": [ours]}})
    as_evacd("patch", "node", "gpu-7", "-p", patch, "--subresource=status")
    found = installed.get("node", "gpu-7")["status"]["conditions"]

    assert [each["type"] for each in found] == ["Ready", "EvacLeaving"]


def checked(cluster: Cluster, account: Path, *flags: str) -> dict[str, str]:
    """What ``evacd check`` finds of Kubernetes, on gpu-7."""
    done = subprocess.run(
        [
            sys.executable, "-m", "evacd", "check", "--json", "--cloud", "none",
            "--store", "file:///tmp", "--node-watch", "off", "--shutdown-watch", "off",
            "--node-account", str(account), "--cordon-kubernetes-timeout-seconds", "2", *flags,
        ],
        env={**os.environ, **cluster.environ, "NODE_NAME": "gpu-7"},
        stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    (found,) = [e for e in json.loads(done.stdout)["findings"] if e["name"] == "kubernetes"]
    return {key: str(value) for key, value in found.items()}


def test_evacd_check_says_that_its_rights_are_enough(installed: Cluster, home: Path) -> None:
    account = installed.account(home / "account", namespace="evac", name="evac", node="gpu-7")
    before = installed.get("node", "gpu-7")

    found = checked(installed, account)
    assert (found["verdict"], found["detail"]) == ("ok", "this node may be closed when it leaves")
    assert installed.get("node", "gpu-7") == before


@pytest.mark.parametrize(
    ("node", "flags", "said"),
    [
        ("gpu-8", (), "may change no other node than its own"),
        ("gpu-7", ("--cordon-kubernetes-evict",), "pods: HTTP 403"),
    ],
)
def test_evacd_check_names_the_right_that_it_lacks(
    installed: Cluster, home: Path, node: str, flags: tuple[str, ...], said: str
) -> None:
    account = installed.account(home / "account", namespace="evac", name="evac", node=node)

    found = checked(installed, account, *flags)
    assert found["verdict"] == "fail"
    assert said in found["detail"]
    assert "container/README.md" in found["cure"]


def event(node: str, namespace: str = "default") -> str:
    thing = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"about-{node}", "namespace": namespace},
        "involvedObject": {"kind": "Node", "name": node},
        "reason": "NoticeReceived",
        "message": "it goes",
        "type": "Warning",
    }
    return json.dumps(thing)


def test_it_tells_of_its_own_node_only(as_evacd: As) -> None:
    as_evacd("create", "-f", "-", stdin=event("gpu-7"))

    said = as_evacd("create", "-f", "-", stdin=event("gpu-8"), fails=True)
    assert "may tell of no other thing" in said
    said = as_evacd("create", "-f", "-", stdin=event("gpu-7", "evac"), fails=True)
    assert "cannot create resource" in said


@pytest.mark.parametrize(
    "what",
    [
        ("get", "secrets", "-A"),
        ("get", "pods", "-A"),
        ("get", "configmaps", "-n", "evac"),
        ("delete", "node", "gpu-7"),
        ("delete", "daemonset", "evac", "-n", "evac"),
    ],
    ids=" ".join,
)
def test_nothing_else_is_given(as_evacd: As, what: tuple[str, ...]) -> None:
    assert "is forbidden" in as_evacd(*what, fails=True)


def noted(cluster: Cluster) -> list[str]:
    """The commands of helm's notes, without kubectl's name."""
    lines = cluster.helm("get", "notes", "evac", "--namespace", "evac").splitlines()
    return [
        line.strip().removeprefix("kubectl ") for line in lines if line.startswith("  kubectl ")
    ]


def test_the_commands_of_the_notes_are_ones_that_kubectl_takes(installed: Cluster) -> None:
    commands = noted(installed)

    assert [each.split()[2] for each in commands] == ["get", "exec", "exec"]
    # In the tests' cluster no pod runs, into which one could go.
    assert "evac" in installed.kubectl(*commands[0].split())


def test_the_plain_manifest_is_applied(installed: Cluster) -> None:
    said = installed.kubectl("apply", "-f", str(CHART.parents[1] / "evac.yaml"))
    assert "daemonset.apps/evac" in said


def test_an_upgrade_and_an_uninstall_leave_nothing(cluster: Cluster, installed: Cluster) -> None:
    installed.helm(
        "upgrade", "evac", str(CHART), "--namespace", "evac",
        "--set", "stores={s3://bucket/other}", "--set", "cordon.evict=true",
    )  # fmt: skip
    text = json.dumps(installed.get("daemonset", "evac", "-n", "evac"))
    assert "s3://bucket/other" in text
    # An upgrade reaches no pod that runs, and says so.
    *_, old = noted(installed)
    assert "controller-revision-hash" in old
    installed.kubectl(*old.split())

    installed.helm("uninstall", "evac", "--namespace", "evac")
    left = "daemonset,serviceaccount,configmap,clusterrole,validatingadmissionpolicy"
    assert installed.get(left, "-A")["items"] == []

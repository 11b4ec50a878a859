"""The tests' API server, held to what real kubectl expects of one."""

import json
import subprocess
import uuid

import pytest

from tests.kube.cluster import Cluster, program


@pytest.fixture
def name(cluster: Cluster) -> str:
    """A node of the test's own."""
    name = f"node-{uuid.uuid4().hex[:8]}"
    cluster.node(name, pool="a")
    return name


@pytest.mark.parametrize(
    ("kind", "patch", "taints"),
    [
        ("merge", '{"spec": {"taints": [{"key": "n", "effect": "NoSchedule"}]}}', ["n"]),
        ("strategic", '{"spec": {"taints": [{"key": "n", "effect": "NoSchedule"}]}}', ["n"]),
        (
            "json",
            '[{"op": "test", "path": "/spec/taints/0/key", "value": "old"},'
            ' {"op": "add", "path": "/spec/taints/-", "value": {"key": "n", "effect": "NoSchedule"}}]',
            ["old", "n"],
        ),
    ],
)
def test_each_kind_of_patch_does_with_a_list_what_it_should(
    cluster: Cluster, name: str, kind: str, patch: str, taints: list[str]
) -> None:
    cluster.kubectl("taint", "node", name, "old=x:NoSchedule")
    cluster.kubectl("patch", "node", name, "--type", kind, "--patch", patch)

    assert [each["key"] for each in cluster.get("node", name)["spec"]["taints"]] == taints


def test_conditions_are_merged_by_their_type(cluster: Cluster, name: str) -> None:
    for status in ("True", "False"):
        patch = {"status": {"conditions": [{"type": "New", "status": status}]}}
        cluster.kubectl("patch", "node", name, "--subresource=status", "-p", json.dumps(patch))

    found = cluster.get("node", name)["status"]["conditions"]
    assert [(each["type"], each["status"]) for each in found] == [
        ("Ready", "True"),
        ("New", "False"),
    ]


def test_a_stale_version_is_a_conflict(cluster: Cluster, name: str) -> None:
    stale = cluster.get("node", name)
    cluster.kubectl("label", "node", name, "pool=b", "--overwrite")

    said = cluster.kubectl("replace", "-f", "-", stdin=json.dumps(stale), fails=True)
    assert "the object has been modified" in said


def test_a_field_that_is_none_is_refused(cluster: Cluster) -> None:
    thing = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "wrong", "namespace": "default"},
        "dta": {},
    }
    said = cluster.kubectl("create", "-f", "-", stdin=json.dumps(thing), fails=True)
    assert "strict decoding error" in said
    assert "dta" in said


def test_labels_and_fields_select(cluster: Cluster, name: str) -> None:
    def names(*flags: str) -> set[str]:
        return {each["metadata"]["name"] for each in cluster.get("nodes", *flags)["items"]}

    assert name in names("--selector", "pool=a")
    assert name not in names("--selector", "pool notin (a)")
    assert names("--field-selector", f"metadata.name={name}") == {name}


def test_a_cordoned_node_is_tainted_as_the_controller_does(cluster: Cluster, name: str) -> None:
    cluster.kubectl("cordon", name)
    (taint,) = cluster.get("node", name)["spec"]["taints"]
    assert taint["key"] == "node.kubernetes.io/unschedulable"

    cluster.kubectl("uncordon", name)
    assert not cluster.get("node", name)["spec"].get("taints")


def test_a_watch_tells_changes_as_they_come(cluster: Cluster, name: str) -> None:
    watch = subprocess.Popen(
        [
            str(program("kubectl")), "--kubeconfig", str(cluster.kubeconfig), "get", "node", name,
            "--watch", "--output", "jsonpath={.metadata.labels.pool}{'\\n'}",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        assert watch.stdout
        assert watch.stdout.readline() == "a\n"
        cluster.kubectl("label", "node", name, "pool=b", "--overwrite")
        assert watch.stdout.readline() == "b\n"
    finally:
        watch.kill()
        watch.communicate()


def test_a_drain_evicts_and_a_budget_forbids_it(cluster: Cluster, name: str) -> None:
    cluster.tell(
        "create",
        object={
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p", "namespace": "team", "labels": {"app": "p"}},
            "spec": {"nodeName": name, "containers": [{"name": "c", "image": "i"}]},
            "status": {"phase": "Running"},
        },
    )
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "p", "namespace": "team"},
        "spec": {"selector": {"matchLabels": {"app": "p"}}},
        "status": {"disruptionsAllowed": 0},
    }
    cluster.tell("create", object=budget)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}}
    path = "/api/v1/namespaces/team/pods/p/eviction"
    said = cluster.kubectl(
        "create", "--raw", path, "-f", "-", stdin=json.dumps(eviction), fails=True
    )
    assert "violate" in said

    cluster.kubectl("delete", "pdb", "p", "-n", "team")
    assert "evicted" in cluster.kubectl("drain", name, "--force", "--timeout=20s")
    assert cluster.get("pods", "-n", "team")["items"] == []


def test_a_token_that_nobody_has_is_refused(cluster: Cluster) -> None:
    said = cluster.kubectl("--token", "stranger", "get", "nodes", fails=True)
    assert "Unauthorized" in said or "must be logged in" in said

"""The tests' API server, held to what Kubernetes' own Python client expects of one."""

from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes import client, config, watch

from tests.kube.cluster import Cluster


@pytest.fixture
def api(cluster: Cluster) -> Iterator[client.CoreV1Api]:
    # Its types are not whole: what has none is taken as it comes.
    untyped: Any = config
    with untyped.new_client_from_config(str(cluster.kubeconfig)) as made:
        yield client.CoreV1Api(made)


def spec(thing: Any) -> dict[str, Any]:
    found: dict[str, Any] = thing.to_dict()["spec"]
    return found


def test_it_reads_and_patches_nodes(api: client.CoreV1Api) -> None:
    names = {node["metadata"]["name"] for node in api.list_node().to_dict()["items"]}
    assert {"gpu-7", "gpu-8"} <= names

    api.patch_node("gpu-7", {"spec": {"unschedulable": True}})
    assert spec(api.read_node("gpu-7"))["unschedulable"] is True
    api.patch_node("gpu-7", {"spec": {"unschedulable": None}})
    assert spec(api.read_node("gpu-7"))["unschedulable"] is None


def test_a_stale_write_is_a_conflict(api: client.CoreV1Api) -> None:
    stale = api.read_node("gpu-8")
    api.patch_node("gpu-8", {"metadata": {"labels": {"a": "b"}}})

    with pytest.raises(client.ApiException) as caught:
        api.replace_node("gpu-8", stale)
    assert (caught.value.status, caught.value.reason) == (409, "Conflict")


def test_it_watches_from_a_version(api: client.CoreV1Api) -> None:
    version = api.list_node().to_dict()["metadata"]["resource_version"]
    api.patch_node("gpu-8", {"metadata": {"labels": {"watched": "yes"}}})

    made: Any = watch.Watch
    stream = made().stream(api.list_node, resource_version=version, timeout_seconds=20)
    seen = next(iter(stream))
    assert (seen["type"], seen["object"].metadata.labels["watched"]) == ("MODIFIED", "yes")


def test_it_evicts(api: client.CoreV1Api) -> None:
    inside = client.V1PodSpec(containers=[client.V1Container(name="c", image="i")])
    meta = client.V1ObjectMeta(name="p")
    api.create_namespaced_pod("team", client.V1Pod(metadata=meta, spec=inside))
    api.create_namespaced_pod_eviction("p", "team", client.V1Eviction(metadata=meta))

    assert api.list_namespaced_pod("team").items == []

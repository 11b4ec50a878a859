"""The chart and the plain manifest: what they make of their values, and what of it is right."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # it ships none
import pytest
import yaml

from evacd.config import load, unread
from evacd.config.table import SETTINGS
from evacd.config.variables import OTHERS
from tests.kube.answers import SCHEMAS
from tests.kube.cluster import CHART, ROOT, program

Objects = dict[str, dict[str, Any]]
STORE = "stores={s3://bucket/prefix,file:///mnt/nfs}"
# Values of each kind beside the default ones.
VALUES = {
    "default": (),
    "monitored": ("podMonitor.enabled=true", "podMonitor.labels.team=a"),
    "evicting": ("cordon.evict=true", "cordon.conditions={GCESpotPreempting,Terminating}"),
    "report-only": ("cordon.kubernetes=report-only", "hostShutdown=false"),
    "bare": (
        "networkPolicy.enabled=false",
        "admissionPolicy.enabled=false",
        "priorityQuota.enabled=false",
        "cordon.kubernetes=off",
    ),
    "mounted": (
        "extraVolumes[0].name=nfs",
        "extraVolumes[0].nfs.server=nas",
        "extraVolumes[0].nfs.path=/x",
        "extraVolumeMounts[0].name=nfs",
        "extraVolumeMounts[0].mountPath=/mnt/nfs",
        "envFrom[0].secretRef.name=keys",
        "env[0].name=AWS_REGION",
        "env[0].value=eu-west-1",
        "nodeSelector.pool=spot",
        "imagePullSecrets[0].name=registry",
        "serviceAccount.annotations.a=b",
        "podAnnotations.a=b",
        "podLabels.a=b",
    ),
}


def helm(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(program("helm")), *arguments],
        capture_output=True,
        text=True,
        timeout=30,
    )


def rendered(*values: str, store: str = STORE) -> Objects:
    sets = [part for value in (store, *values) for part in ("--set", value)]
    done = helm("template", "evac", str(CHART), "--namespace", "evac", *sets)
    assert done.returncode == 0, done.stderr
    return objects(done.stdout)


def objects(text: str) -> Objects:
    found = [each for each in yaml.safe_load_all(text) if each]
    by_name = {f"{each['kind']}/{each['metadata']['name']}": each for each in found}
    assert len(by_name) == len(found)
    return by_name


def pod(made: Objects) -> dict[str, Any]:
    spec: dict[str, Any] = made["DaemonSet/evac"]["spec"]["template"]["spec"]
    return spec


def environ(made: Objects) -> dict[str, str]:
    entries = pod(made)["containers"][0]["env"]
    return {each["name"]: each.get("value", "gpu-7") for each in entries}


@pytest.fixture(scope="module")
def made(binaries: None) -> Callable[[str], Objects]:
    """What each set of values makes; each is rendered once."""
    known: dict[str, Objects] = {}

    def of(name: str) -> Objects:
        if name not in known:
            known[name] = rendered(*VALUES[name])
        return known[name]

    return of


def test_helm_has_no_complaint(binaries: None) -> None:
    done = helm("lint", "--strict", str(CHART), "--set", STORE)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", VALUES)
def test_what_is_made_is_valid(made: Callable[[str], Objects], name: str) -> None:
    for what, thing in made(name).items():
        if not what.startswith("PodMonitor/"):
            kubernetes_validate.validate(thing, SCHEMAS, strict=True)


@pytest.mark.parametrize("name", VALUES)
def test_what_the_daemon_is_told_are_settings_that_it_has(
    made: Callable[[str], Objects], name: str, tmp_path: Path
) -> None:
    told = environ(made(name)) | {"EVAC_HTTP_ADDRESS": "127.0.0.1"}
    config = tmp_path / "evac.toml"
    config.write_text(made(name)["ConfigMap/evac"]["data"]["evac.toml"])
    loaded = load(config, told, {})

    assert not list(unread(told))
    assert {key for key in told if key.startswith("EVAC_")} <= {each.env for each in SETTINGS}
    assert loaded.store.targets == ("s3://bucket/prefix", "file:///mnt/nfs")
    assert loaded.memory.budget.nbytes == 32 * 2**30


def test_settings_of_the_site_reach_the_daemon(binaries: None, tmp_path: Path) -> None:
    text = "[policy]\nmax_priority = 7\n[policy.users.ann]\nmax_priority = 5\n"
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"stores": ["s3://b/p"], "config": text}))
    done = helm("template", "evac", str(CHART), "--values", str(values))
    config = tmp_path / "evac.toml"
    config.write_text(objects(done.stdout)["ConfigMap/evac"]["data"]["evac.toml"])

    policy = load(config, {}, {}).policy
    assert policy.max_priority == 7
    assert policy.users[0].max_priority == 5


def test_it_comes_to_every_node_of_its_pools_whatever_taints_that_has(
    made: Callable[[str], Objects],
) -> None:
    assert pod(made("default"))["tolerations"] == [{"operator": "Exists"}]
    assert pod(made("default"))["priorityClassName"] == "system-node-critical"


def test_it_goes_to_spot_nodes_unless_told_otherwise(made: Callable[[str], Objects]) -> None:
    node = pod(made("default"))["affinity"]["nodeAffinity"]
    terms = node["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    keys = {each["matchExpressions"][0]["key"] for each in terms}

    assert {"cloud.google.com/gke-spot", "eks.amazonaws.com/capacityType"} < keys
    assert "affinity" not in pod(made("mounted"))
    assert pod(made("mounted"))["nodeSelector"] == {"pool": "spot"}


def test_it_sees_whose_each_pid_is_and_the_node_s_own_network(
    made: Callable[[str], Objects],
) -> None:
    assert pod(made("default"))["hostPID"] is True
    assert pod(made("default"))["hostNetwork"] is True
    assert pod(made("default"))["dnsPolicy"] == "ClusterFirstWithHostNet"


def test_memory_is_asked_for_and_limited_by_what_slots_and_daemon_take(
    made: Callable[[str], Objects],
) -> None:
    resources = pod(made("default"))["containers"][0]["resources"]

    assert resources["requests"]["memory"] == resources["limits"]["memory"] == "33280Mi"
    assert "cpu" not in resources["limits"]


def test_an_update_does_not_end_a_pod_that_holds_staged_memory(
    made: Callable[[str], Objects],
) -> None:
    assert made("default")["DaemonSet/evac"]["spec"]["updateStrategy"] == {"type": "OnDelete"}


def test_it_may_do_little_on_the_host(made: Callable[[str], Objects]) -> None:
    (container,) = pod(made("default"))["containers"]
    context = container["securityContext"]

    assert context["readOnlyRootFilesystem"] is True
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"]["drop"] == ["ALL"]
    written = {each["mountPath"] for each in container["volumeMounts"] if not each.get("readOnly")}
    assert written == {"/run/evac", "/var/lib/evac", "/tmp"}


def test_its_probes_ask_the_pages_that_can_fail(made: Callable[[str], Objects]) -> None:
    for name, host in (("default", "127.0.0.1"), ("monitored", None)):
        (container,) = pod(made(name))["containers"]
        probes = container["livenessProbe"]["httpGet"], container["readinessProbe"]["httpGet"]
        assert [each["path"] for each in probes] == ["/healthz", "/readyz"]
        assert {each.get("host") for each in probes} == {host}


def test_rights_are_no_more_than_what_is_used(made: Callable[[str], Objects]) -> None:
    def verbs(name: str) -> dict[str, list[str]]:
        rules = made(name)["ClusterRole/evac"]["rules"]
        return {rule["resources"][0]: rule["verbs"] for rule in rules}

    reads = ["get", "list", "watch"]
    assert verbs("default") == {"nodes": [*reads, "patch"], "nodes/status": ["patch"]}
    assert verbs("report-only") == {"nodes": reads, "nodes/status": ["patch"]}
    assert verbs("bare") == {"nodes": reads}
    assert verbs("evicting") == {
        "nodes": [*reads, "patch"],
        "nodes/status": ["patch"],
        "pods": ["list"],
        "pods/eviction": ["create"],
    }


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("cordon.kubernetes=maybe", "/cordon/kubernetes"),
        ("memory.budgetGiB=0", "/memory/budgetGiB"),
        ("memory.budget=1", "memory"),
        ("stores={bucket}", "/stores/0"),
        ("image.digest=latest", "/image/digest"),
        ("tolerations=none", "tolerations"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(binaries: None, value: str, said: str) -> None:
    done = helm("template", "evac", str(CHART), "--set", STORE, "--set", value)
    assert done.returncode != 0
    assert said in done.stderr


def test_without_a_store_nothing_is_installed(binaries: None) -> None:
    done = helm("template", "evac", str(CHART))
    assert done.returncode != 0
    assert "name one that outlives the node" in done.stderr


def test_the_plain_manifest_is_the_chart_s(binaries: None) -> None:
    done = subprocess.run(
        [str(ROOT / "container/manifest")], capture_output=True, text=True, check=True
    )
    assert done.stdout == (ROOT / "container/evac.yaml").read_text(), "make manifest"


EXAMPLES = sorted((ROOT / "container/examples").glob("*.yaml"))


@pytest.mark.parametrize("path", [*EXAMPLES, ROOT / "container/evac.yaml"], ids=lambda p: p.name)
def test_a_manifest_is_valid(path: Path) -> None:
    found = [each for each in yaml.safe_load_all(path.read_text()) if each]
    assert found
    for each in found:
        kubernetes_validate.validate(each, SCHEMAS, strict=True)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_an_example_is_a_workload_with_the_socket_and_a_name(path: Path) -> None:
    text = path.read_text()
    pods = [
        each["spec"]["template"]["spec"]
        for each in yaml.safe_load_all(text)
        if each["kind"] in ("Job", "Deployment")
    ]

    assert pods
    for spec in pods:
        (container,) = spec["containers"]
        mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
        paths = {
            each["name"]: each["hostPath"]["path"] for each in spec["volumes"] if "hostPath" in each
        }
        assert mounts["evac"] == paths["evac"] == "/run/evac"
        assert {"EVAC_JOB", "EVAC_NAMESPACE"} <= {each["name"] for each in container["env"]}
    known = {each.env for each in SETTINGS} | set(OTHERS)
    assert set(re.findall(r"EVAC_[A-Z_]+", text)) <= known

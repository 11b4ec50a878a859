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
    "site": (
        "seLinuxOptions.type=spc_t",
        "appArmorProfile.type=Unconfined",
        "securityContext.runAsNonRoot=false",
        "memory.budgetGiB=600",
        "memory.peersGiB=100",
        "memory.overheadMiB=1024",
        "dnsPolicy=Default",
        "priorityClassName=high",
        "priorityQuota.pods=7",
        "gpuOnly=false",
        "arch={amd64,arm64}",
    ),
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
    assert loaded.memory.budget.nbytes == (600 if name == "site" else 32) * 2**30
    # No share of a node's memory, of which the pod's limit knows nothing.
    assert loaded.peer.budget.nbytes == (100 * 2**30 if name == "site" else 2**20)


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
    found = [
        {each["key"]: each.get("values") for each in term["matchExpressions"]} for term in terms
    ]

    keys = set().union(*found)
    assert {"cloud.google.com/gke-spot", "eks.amazonaws.com/capacityType"} < keys
    # Without a GPU nothing stages gigabytes, and the image is no Windows one.
    gpus = {"cloud.google.com/gke-accelerator", "nvidia.com/gpu.present"}
    for term in found:
        assert (term["kubernetes.io/os"], term["kubernetes.io/arch"]) == (["linux"], ["amd64"])
        assert len(term) == 4
        assert not gpus.isdisjoint(term) or any("gpu" in k or "accelerator" in k for k in term)
    assert "affinity" not in pod(made("mounted"))
    assert pod(made("mounted"))["nodeSelector"] == {"pool": "spot"}


def test_it_has_a_token_where_a_site_mounts_none_of_itself(made: Callable[[str], Objects]) -> None:
    assert pod(made("default"))["automountServiceAccountToken"] is True


def test_it_sees_whose_each_pid_is_and_the_node_s_own_network(
    made: Callable[[str], Objects],
) -> None:
    assert pod(made("default"))["hostPID"] is True
    assert pod(made("default"))["hostNetwork"] is True
    assert pod(made("default"))["dnsPolicy"] == "ClusterFirstWithHostNet"


def test_memory_is_asked_for_and_limited_by_all_that_is_charged_to_the_pod(
    made: Callable[[str], Objects],
) -> None:
    """Slots, other nodes' bytes, the kernel's own for each GiB of them (test_memory.py), and evacd."""
    for name, limit, peers in (
        ("default", 32 * 1029 + 512, "1MiB"),
        ("site", 700 * 1029 + 1024, "100GiB"),
    ):
        resources = pod(made(name))["containers"][0]["resources"]
        assert resources["requests"]["memory"] == resources["limits"]["memory"] == f"{limit}Mi"
        assert "cpu" not in resources["limits"]
        assert environ(made(name))["EVAC_PEER_BUDGET"] == peers


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
    assert written == {"/run/evac", "/run/evac-admin", "/var/lib/evac", "/tmp"}


def test_of_the_host_s_run_it_sees_no_more_than_the_bus_and_what_logind_says(
    made: Callable[[str], Objects],
) -> None:
    def paths(name: str) -> set[str]:
        return {v["hostPath"]["path"] for v in pod(made(name))["volumes"] if "hostPath" in v}

    assert paths("default") - paths("report-only") == {"/run/dbus", "/run/systemd"}
    assert "/run" not in paths("default")


def test_no_workload_that_mounts_the_sockets_folder_finds_the_admin_s_there(
    made: Callable[[str], Objects],
) -> None:
    admin = Path(environ(made("default"))["EVAC_ADMIN_SOCKET"])
    (container,) = pod(made("default"))["containers"]
    (mount,) = [m for m in container["volumeMounts"] if m["mountPath"] == str(admin.parent)]
    (volume,) = [v for v in pod(made("default"))["volumes"] if v["name"] == mount["name"]]

    assert "emptyDir" in volume
    assert not str(admin).startswith("/run/evac/")


def test_what_a_site_s_security_wants_is_a_value(made: Callable[[str], Objects]) -> None:
    (container,) = pod(made("site"))["containers"]
    context = container["securityContext"]

    assert context["seLinuxOptions"] == {"type": "spc_t"}
    assert context["appArmorProfile"] == {"type": "Unconfined"}
    assert context["runAsNonRoot"] is False
    assert pod(made("site"))["dnsPolicy"] == "Default"
    assert pod(made("site"))["priorityClassName"] == "high"
    assert made("site")["ResourceQuota/evac"]["spec"]["hard"] == {"pods": "7"}


def test_in_kube_system_no_quota_counts_everybody_s_pods(binaries: None) -> None:
    done = helm("template", "evac", str(CHART), "--namespace", "kube-system", "--set", STORE)
    assert done.returncode == 0, done.stderr
    assert "ResourceQuota/evac" not in objects(done.stdout)


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
    # To undo what it closed before it only told.
    assert verbs("report-only") == verbs("default")
    assert "Role/evac" in made("default")
    assert "Role/evac" not in made("bare")
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
        ("cordon.conditions={Ready}", "/cordon/conditions/0"),
        ("podLabels.app\\.kubernetes\\.io/name=x", "app.kubernetes.io/name"),
        ("env[0].name=EVAC_STORE", "/env/0/name"),
        ("httpPort=80", "/httpPort"),
        ("arch={riscv64}", "/arch/0"),
        ("cpu.request=lots", "/cpu/request"),
        ("env[0].name=A,env[0].value=1", "/env/0/value"),
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
        if each["kind"] in ("Job", "StatefulSet")
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
        # Root of the pod could put a socket of its own in evacd's place; connecting writes nothing.
        assert all(
            each.get("readOnly") for each in container["volumeMounts"] if each["name"] == "evac"
        )
        assert {each["hostPath"]["type"] for each in spec["volumes"] if "hostPath" in each} == {
            "DirectoryOrCreate"
        }
        hook = container["lifecycle"]["preStop"]["exec"]["command"]
        assert hook[:3] == ["evac", "leave", "--within"]
        assert spec["terminationGracePeriodSeconds"] > int(hook[3])
    known = {each.env for each in SETTINGS} | set(OTHERS)
    assert set(re.findall(r"EVAC_[A-Z_]+", text)) <= known


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_an_example_goes_to_spot_nodes_with_evacd_whatever_their_cloud_taints(
    made: Callable[[str], Objects], path: Path
) -> None:
    def spot(spec: dict[str, Any]) -> set[str]:
        node = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        return {each["matchExpressions"][0]["key"] for each in node["nodeSelectorTerms"]}

    for each in yaml.safe_load_all(path.read_text()):
        if "template" in each["spec"]:
            spec = each["spec"]["template"]["spec"]
            assert spot(spec) <= spot(pod(made("default")))
            tolerated = {one["key"] for one in spec["tolerations"] if one["operator"] == "Exists"}
            assert {
                "cloud.google.com/gke-spot", "kubernetes.azure.com/scalesetpriority"
            } < tolerated  # fmt: skip

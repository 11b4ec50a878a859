"""The image, built and run for real as the chart's DaemonSet would run it, with workloads in other pods.

The tests' cluster is the API server, `evacd simulate` the cloud; the folders of the host are a
test's own.
"""

import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from evac import incident
from evac.admin import read_status
from tests.agent.daemon import worker as worker_module
from tests.agent.daemon.nodes import until
from tests.agent.daemon.test_notice import Cloud
from tests.container.podman import IMAGE, LIMITS, PODS, Podman
from tests.kube.cluster import CHART, ROOT, Cluster
from tests.services.process import script
from tests.services.skipping import or_skip

TEAM_UID = 12345


@pytest.fixture(scope="module")
def podman(binaries: None) -> Iterator[Podman]:
    with or_skip():
        podman = Podman()
    try:
        podman.build()
        yield podman
    finally:
        podman.close()


class Host:
    """The folders of a node, as the DaemonSet's hostPath volumes name them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "mnt"
        self.store.mkdir()
        for path in ("/run/evac", "/var/lib/evac", "/var/log/pods", "/run"):
            self.path(path).mkdir(parents=True, exist_ok=True)
        self.socket = self.path("/run/evac") / "evacd.sock"

    def path(self, path: str) -> Path:
        return self.folder / path.lstrip("/")


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Kubelet:
    """Starts the pod that the DaemonSet's template describes, by podman's means."""

    def __init__(self, podman: Podman, host: Host, account: Path, made: dict[str, Any]) -> None:
        self.podman = podman
        self.host = host
        self.account = account
        self.made = made
        self.spec = made["DaemonSet"]["spec"]["template"]["spec"]
        (self.container,) = self.spec["containers"]
        self.port = self.container["ports"][0]["hostPort"]

    def run(self, **environ: str) -> None:
        """Start it; a variable takes the place of the template's."""
        given = {each["name"]: each.get("value", "gpu-7") for each in self.container["env"]}
        context = self.container["securityContext"]
        capabilities = context["capabilities"]
        flags = [
            "--network=host", "--pid=host", "--name=evacd", "--detach",
            f"--user={context['runAsUser']}",
            *[f"--cap-drop={each}" for each in capabilities["drop"]],
            *[f"--cap-add={each}" for each in capabilities["add"]],
            *(["--read-only", "--read-only-tmpfs=false"] if context["readOnlyRootFilesystem"] else []),
            *([] if context["allowPrivilegeEscalation"] else ["--security-opt=no-new-privileges"]),
            *self._limit(),
            *[f"--env={name}={value}" for name, value in {**given, **environ}.items()],
            *self._volumes(),
            f"--volume={self.host.store}:/mnt/store",
            f"--volume={self.account}:/var/run/secrets/kubernetes.io/serviceaccount:ro",
        ]  # fmt: skip
        assert self.spec["hostNetwork"]
        assert self.spec["hostPID"]
        self.podman.do("run", *LIMITS, *flags, IMAGE, *self.container["args"])

    def _limit(self) -> Iterator[str]:
        """The pod's memory limit, where this machine can limit any: see test_memory.py."""
        if "memory" in self.podman.do("info", "--format", "{{.Host.CgroupControllers}}"):
            limit = self.container["resources"]["limits"]["memory"]
            yield f"--memory={limit.removesuffix('Mi')}m"

    def _volumes(self) -> Iterator[str]:
        config = self.host.folder / "config"
        config.mkdir(exist_ok=True)
        for name, text in self.made["ConfigMap"]["data"].items():
            (config / name).write_text(text)
        volumes = {each["name"]: each for each in self.spec["volumes"]}
        for mount in self.container["volumeMounts"]:
            volume = volumes[mount["name"]]
            mode = ":ro" if mount.get("readOnly") else ""
            if "emptyDir" in volume:
                yield f"--tmpfs={mount['mountPath']}"
                continue
            source = config if "configMap" in volume else self.host.path(volume["hostPath"]["path"])
            yield f"--volume={source}:{mount['mountPath']}{mode}"

    def probe(self, which: str) -> int:
        """The status that a probe of the template gets."""
        get = self.container[which]["httpGet"]
        try:
            url = f"http://{get['host']}:{self.port}{get['path']}"
            with urllib.request.urlopen(url, timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def logs(self) -> str:
        """What it has said; its container's standard error is its log."""
        done = subprocess.run(
            [*self.podman.base, "logs", "evacd"], capture_output=True, text=True, timeout=30
        )
        return done.stderr


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    cloud = Cloud()
    yield cloud
    cloud.close()


@pytest.fixture(scope="module")
def kubelet(
    podman: Podman, cluster: Cluster, cloud: Cloud, tmp_path_factory: pytest.TempPathFactory
) -> Kubelet:
    """A node where evacd runs in its container, and is ready."""
    folder = tmp_path_factory.mktemp("host")
    said = cluster.helm(
        "install", "evac", str(CHART), "--namespace", "evac", "--create-namespace",
        "--set", "stores={file:///mnt/store}", "--set", "memory.budgetGiB=1",
        "--set", f"httpPort={free_port()}", "--set", "cloud=gcp", "--set", "hostShutdown=false",
        "--set-string", "config=[policy.namespaces.team-a]\nmax_priority = 50\nprefix = \"research\"\n",
    )  # fmt: skip
    assert "deployed" in said
    text = cluster.helm("get", "manifest", "evac", "--namespace", "evac")
    made = {each["kind"]: each for each in yaml.safe_load_all(text) if each}
    account = cluster.account(folder / "account", namespace="evac", name="evac", node="gpu-7")
    kubelet = Kubelet(podman, Host(folder), account, made)
    kubelet.run(
        EVAC_METADATA_URL=cloud.url,
        EVAC_QUIET="false",
        # The store is a folder here, and that is meant.
        EVAC_STORE_IS_DURABLE="true",
        **cluster.environ,
    )

    def ready() -> bool:
        running = podman.do("inspect", "--format", "{{.State.Running}}", "evacd") == "true"
        assert running, kubelet.logs()
        return kubelet.probe("readinessProbe") == 200

    until("evacd is ready", ready)
    return kubelet


class Workload:
    """A worker in a container of a pod, told what to do on its standard input."""

    def __init__(self, podman: Podman, host: Host, name: str, **settings: Any) -> None:
        self.uid = str(uuid.uuid4())
        (host.path("/var/log/pods") / f"team-a_{name}_{self.uid}").mkdir()
        code = Path(worker_module.__file__)
        self.process = subprocess.Popen(
            [
                *podman.base, "run", *LIMITS, "--interactive", f"--name={name}", "--network=none",
                f"--user={TEAM_UID}", "--cap-drop=all", "--security-opt=no-new-privileges",
                f"--cgroup-parent={PODS}/kubepods/burstable/pod{self.uid}",
                f"--volume={host.path('/run/evac')}:/run/evac:ro",
                f"--volume={code}:/{code.name}:ro", "--entrypoint=/opt/evac/bin/python", IMAGE,
                f"/{code.name}", json.dumps({"socket": "/run/evac/evacd.sock", **settings}),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    def say(self, what: str, **arguments: Any) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps({"do": what, **arguments}) + "\n")
        self.process.stdin.flush()

    def do(self, what: str, **arguments: Any) -> dict[str, Any]:
        self.say(what, **arguments)
        assert self.process.stdout
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer


@contextmanager
def in_pod(kubelet: Kubelet, name: str, **settings: Any) -> Iterator[Workload]:
    workload = Workload(kubelet.podman, kubelet.host, name, **settings)
    try:
        yield workload
    finally:
        kubelet.podman.do("rm", "--force", "--time", "0", name, check=False)
        workload.process.communicate()


def test_the_containerfile_is_as_it_should_be() -> None:
    hadolint = script("hadolint", cure="make setup")
    done = subprocess.run(
        [hadolint, str(ROOT / "container/Containerfile")], capture_output=True, text=True
    )
    assert done.stdout == ""


@pytest.mark.skipif(os.environ.get("EVAC_NIGHTLY") != "1", reason="half a minute: make nightly")
def test_two_builds_make_the_same(podman: Podman) -> None:
    def layers() -> str:
        return podman.do("inspect", "--format", "{{.RootFS.Layers}}", IMAGE)

    before = layers()
    podman.build("--no-cache")
    assert layers() == before


def test_its_probes_answer_and_its_log_is_json(kubelet: Kubelet) -> None:
    assert kubelet.probe("livenessProbe") == 200
    lines = kubelet.logs().splitlines()
    assert "daemon.started" in [json.loads(line)["event"] for line in lines]


def test_people_ask_it_from_within(kubelet: Kubelet) -> None:
    said = kubelet.podman.do("exec", "evacd", "evac", "status", "--json")
    assert json.loads(said)["node"] == "gpu-7"


def test_a_namespace_has_its_prefix_and_no_more_than_its_priority(kubelet: Kubelet) -> None:
    with in_pod(kubelet, "greedy", job="greedy", priority=51) as greedy:
        greedy.say("connect")
        said = "the highest that namespace team-a may ask for"
        until("it is refused", lambda: said in kubelet.logs())


def test_a_pod_that_is_stopped_is_saved_by_its_hook(kubelet: Kubelet) -> None:
    """As the examples have it, by the socket's folder that is mounted read-only."""
    stateful = yaml.safe_load_all((ROOT / "container/examples/server.yaml").read_text())
    (spec,) = [each["spec"]["template"]["spec"] for each in stateful if "template" in each["spec"]]
    hook = spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    with in_pod(kubelet, "server-0", job="server-0", priority=5) as server:
        assert server.do("connect")["connected"]
        assert server.do("reserve") == {}
        assert server.do("stage", step=3) == {}
        kubelet.podman.do("exec", "--env", "EVAC_JOB=server-0", "server-0", *hook)

    (kept,) = kubelet.host.store.rglob("server-0/step-*/*.manifest.json")
    assert kept.parent.name == "step-3.1"


def test_a_preempted_node_saves_what_another_pod_has_staged(
    kubelet: Kubelet, cluster: Cluster, cloud: Cloud
) -> None:
    with ExitStack() as pods:
        train = pods.enter_context(in_pod(kubelet, "train-0", job="train", priority=50))
        assert train.do("connect")["connected"]
        assert train.do("reserve") == {}
        assert train.do("stage", step=7) == {}
        status = until(
            "it is staged",
            lambda: [
                each
                for each in read_status(kubelet.host.socket, timeout=5.0)["workloads"]
                if each["unit"].endswith("/train")
                and any(slot["state"] == "complete" for slot in each["slots"])
            ],
        )
        assert status[0]["unit"] == "research/train"
        # Hung for good: nothing of it is needed any more.
        kubelet.podman.do("kill", "--signal", "STOP", "train-0")

        cloud.do("preempt")
        journal = kubelet.host.path("/var/lib/evac") / "incidents.sqlite"

        def told(name: str) -> bool:
            found = incident.load(journal) if journal.exists() else ()
            return bool(found) and name in [event.name for event in found[-1].events]

        until("the flush is over", lambda: told("report.written"))
        until("the node is closed", lambda: told("cordon.closed"))
        until("the node says why", lambda: told("cordon.told"))

    kept = sorted(
        path.relative_to(kubelet.host.store)
        for path in kubelet.host.store.rglob("train/*/*.manifest.json")
    )
    assert [str(each.parent) for each in kept] == ["research/train/step-7.1"]
    assert os.stat(kubelet.host.store / kept[0]).st_uid == TEAM_UID
    node = cluster.get("node", "gpu-7")
    assert node["spec"]["unschedulable"] is True
    assert "evac/leaving" in json.dumps(node["spec"]["taints"])
    assert "NoticeReceived" in cluster.kubectl("describe", "node", "gpu-7")


def test_the_report_is_read_from_the_host_with_evacd_dead(kubelet: Kubelet) -> None:
    kubelet.podman.do("kill", "evacd")
    journal = kubelet.host.path("/var/lib/evac") / "incidents.sqlite"
    done = subprocess.run(
        [sys.executable, "-m", "evac", "report", "--journal", str(journal)],
        capture_output=True,
        text=True,
    )
    assert "cordon" in done.stdout, done.stderr

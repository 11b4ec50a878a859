"""README's installation on Kubernetes, run as it is written, against the tests' cluster."""

import subprocess

import pytest

from tests.container.readme import commands
from tests.kube.cluster import ROOT, Cluster, program


def test_the_commands_install_it(cluster: Cluster) -> None:
    helm, kubectl = program("helm"), program("kubectl")
    assert helm
    assert kubectl
    # An image has no place to be pushed to here; that it is built and runs, test_image.py holds.
    written = [each for each in commands() if not each.startswith("podman ")]
    assert [each.split()[0] for each in written] == ["kubectl", "kubectl", "helm", "kubectl"]

    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(written)],
        cwd=ROOT,
        env={
            "PATH": f"{helm.rpartition('/')[0]}:{kubectl.rpartition('/')[0]}:/usr/bin:/bin",
            "HOME": str(cluster.folder),
            "KUBECONFIG": str(cluster.kubeconfig),
        },
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 0, done.stderr
    assert "STATUS: deployed" in done.stdout
    made = cluster.get("daemonset", "evac", "--namespace", "evac")
    (container,) = made["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example/evac:0.1.0"
    stores = {each["name"]: each.get("value") for each in container["env"]}["EVAC_STORE"]
    assert stores == "s3://bucket/checkpoints"


@pytest.mark.parametrize("name", ["evac.yaml", "examples/job.yaml", "examples/torchrun.yaml"])
def test_what_it_links_to_is_there(name: str) -> None:
    text = (ROOT / "container/README.md").read_text()
    assert f"({name})" in text
    assert (ROOT / "container" / name).exists()

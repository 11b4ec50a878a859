"""The tests' API server as kubectl, helm and evacd see it: a process, and files that lead to it."""

import json
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from ssl import create_default_context
from typing import Any

from tests.kube.access import User, service_account
from tests.kube.serve import ADMIN

ROOT = Path(__file__).parents[2]
CHART = ROOT / "container/chart/evac"
_BIN = ROOT / ".venv/kube/bin"
_LIMIT = 30.0


def program(name: str) -> str | None:
    """Where helm or kubectl is; None where tests/container/prepare could not bring it."""
    ours = _BIN / name
    return str(ours) if ours.exists() else shutil.which(name)


class Cluster:
    """One API server in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = int((folder / "port").read_text())
        self.kubeconfig = folder / "kubeconfig"
        self._trust = create_default_context(cafile=folder / "ca.crt")

    def tell(self, do: str, **word: Any) -> Any:
        """A word to the server itself, not to its API; see `tests.kube.serve`."""
        request = urllib.request.Request(
            f"https://127.0.0.1:{self.port}/tests",
            data=json.dumps({"do": do, **word}).encode(),
            headers={"Authorization": f"Bearer {ADMIN}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, context=self._trust, timeout=_LIMIT) as answer:
            return json.load(answer)

    def node(self, name: str, **labels: str) -> None:
        """Add a node."""
        self.tell(
            "create",
            object={
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": name, "labels": labels},
                "spec": {},
                "status": {"conditions": [{"type": "Ready", "status": "True"}]},
            },
        )

    def user(self, token: str, user: User) -> None:
        """Let *token* stand for *user*."""
        as_json = {"name": user.name, "groups": list(user.groups), "extra": dict(user.extra)}
        self.tell("token", token=token, user=as_json)

    def account(self, folder: Path, *, namespace: str, name: str, node: str) -> Path:
        """A service account's files as the kubelet of *node* mounts them."""
        folder.mkdir(parents=True, exist_ok=True)
        token = f"token-of-{namespace}-{name}-on-{node}"
        self.user(token, service_account(namespace, name, node=node))
        (folder / "token").write_text(token)
        shutil.copy(self.folder / "ca.crt", folder / "ca.crt")
        return folder

    @property
    def environ(self) -> Mapping[str, str]:
        """What the kubelet puts into every container's environment."""
        return {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(self.port),
        }

    def kubectl(self, *arguments: str, fails: bool = False, stdin: str = "") -> str:
        """Run the real kubectl; what it prints."""
        return self._run("kubectl", *arguments, fails=fails, stdin=stdin)

    def helm(self, *arguments: str, fails: bool = False) -> str:
        """Run the real helm; what it prints."""
        return self._run("helm", *arguments, fails=fails)

    def get(self, *arguments: str) -> Any:
        """``kubectl get`` as JSON."""
        return json.loads(self.kubectl("get", *arguments, "--output", "json"))

    def _run(self, name: str, *arguments: str, fails: bool, stdin: str = "") -> str:
        where = program(name)
        assert where is not None, name
        done = subprocess.run(
            [where, *arguments],
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": str(self.folder),
                "KUBECONFIG": str(self.kubeconfig),
            },
            input=stdin,
            capture_output=True,
            text=True,
            timeout=_LIMIT,
        )
        assert (done.returncode != 0) is fails, f"{name} {arguments}: {done.stdout}{done.stderr}"
        return done.stdout + (done.stderr if fails else "")


@contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    """A cluster without nodes, gone at the end."""
    process = subprocess.Popen([sys.executable, "-m", "tests.kube.serve", str(folder)], cwd=ROOT)
    try:
        ends = time.monotonic() + _LIMIT  # noqa: TID251 - real processes live in real time
        while not (folder / "port").exists():
            assert process.poll() is None, "the API server ended"
            assert time.monotonic() < ends, "the API server is not up"  # noqa: TID251
            time.sleep(0.02)
        yield Cluster(folder)
    finally:
        process.kill()
        process.wait()

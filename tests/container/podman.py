"""podman with a store of its own, and the image that the Containerfile makes, from this machine's files.

The store stays from run to run, in .venv: a layer whose files did not change is not made again.
"""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

from tests.container.readme import build
from tests.kube.cluster import ROOT
from tests.services.process import Unavailable

KUBE = ROOT / ".venv/kube"
# Where the pods' cgroups are; a real kubelet's would be at the root.
PODS = f"/evac-tests-{os.getpid()}"
IMAGE = build()[build().index("-t") + 1]
# The store here is a folder: the clouds' clients would cost the build half a minute.
EXTRAS = "agent"
# Small machines cannot give what runc asks for by itself.
LIMITS = ("--ulimit", "nofile=20000:20000", "--ulimit", "nproc=4096:4096")
# Kept from run to run; each has what it changed only.
_MOST_LAYERS = 100


class Podman:
    """One podman; whoever comes second waits for the first."""

    def __init__(self) -> None:
        if os.geteuid() != 0:
            raise Unavailable("containers need root here")
        for name in ("podman", "runc"):
            if shutil.which(name) is None:
                raise Unavailable(f"{name} is not here: tests/container/prepare brings it")
        for path in (KUBE / "base.tar", KUBE / "wheels/.whole"):
            if not path.exists():
                raise Unavailable(f"{path.name} is not here: tests/container/prepare brings it")
        self._lock = (KUBE / "podman.lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.base = [
            "podman", "--runtime", "runc", "--root", str(KUBE / "podman"),
            "--runroot", str(KUBE / "podman-run"), "--storage-driver", "overlay", "--cgroup-manager", "cgroupfs",
            "--events-backend", "file",
        ]  # fmt: skip

    def do(self, *arguments: str, limit: float = 120.0, check: bool = True) -> str:
        """Run one command; what it prints."""
        done = subprocess.run(
            [*self.base, *arguments], capture_output=True, text=True, timeout=limit, cwd=ROOT
        )
        if check and done.returncode != 0:
            raise Unavailable(f"podman {arguments[0]}: {done.stderr[-2000:]}")
        return done.stdout.strip()

    def build(self, *flags: str) -> None:
        """The image by README's own command, but without a network."""
        if "localhost/base:local" not in self.do("images", "--format", "{{.Repository}}:{{.Tag}}"):
            self.do("import", "--quiet", str(KUBE / "base.tar"), "localhost/base:local")
        self.do(
            "build", "--network=none", "--pull=never", "--isolation=oci", *LIMITS,
            "--build-arg", "BASE=localhost/base:local", "--build-arg", f"EXTRAS={EXTRAS}",
            "--build-arg", "PIP_NO_INDEX=1", "--build-arg", "PIP_FIND_LINKS=/wheels",
            "--volume", f"{KUBE / 'wheels'}:/wheels:ro", "--timestamp", "1767225600", *flags, *build(),
            limit=300.0,
        )  # fmt: skip

    def close(self) -> None:
        """All containers ended, everything unmounted, and the cgroups of its pods gone."""
        self.do("rm", "--all", "--force", "--time", "0", check=False)
        if len(self.do("images", "--all", "--quiet", check=False).split()) > _MOST_LAYERS:
            self.do("rmi", "--all", "--force", check=False)
        self._lock.close()
        for top in [
            *Path("/sys/fs/cgroup").glob(PODS[1:]),
            *Path("/sys/fs/cgroup").glob(f"*{PODS}"),
        ]:
            for folder in sorted(top.rglob("*"), reverse=True):
                if folder.is_dir():
                    folder.rmdir()
            top.rmdir()

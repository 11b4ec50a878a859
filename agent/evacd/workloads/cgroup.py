"""Whose pod a process is in, by its cgroup's path. Pure.

The kubelet gives each pod a cgroup that holds the pod's uid, below it each container has its own::

    /kubepods/burstable/pod<uid>/<id>                                              cgroupfs
    /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<u_i_d>.slice/… systemd
    /kubepods-burstable-pod<u_i_d>.slice:cri-containerd:<id>      containerd told one, the kubelet the other
    /../../kubepods-besteffort-pod<u_i_d>.slice/…                 seen from another cgroup namespace

whatever the container runtime calls its part (``cri-containerd-``, ``crio-``, ``docker-``), and
below more of them where the kubelet is itself in a container. A process may make cgroups below
its own and name them as it likes, never above: so the outermost pod is its own. A login or a
service may have been given a cgroup to do so in, and is in no pod whatever it is called below.
Under cgroup v1 every controller has a path; where they disagree somebody has moved it, and nobody
is believed.

Sources: kubernetes pkg/kubelet/cm (GetPodContainerName, cgroup_manager_linux.go), cgroups(7),
cgroup_namespaces(7). Read 2026-11.
"""

import re
from dataclasses import dataclass
from typing import TypeAlias

_HEX = "[0-9a-f]"
# As kinds of uids go: of most pods, with what the systemd driver makes of its dashes; of a pod
# that the kubelet runs from a file, a hash of it.
_UID = f"(?:{_HEX}{{8}}(?:[-_]{_HEX}{{4}}){{3}}[-_]{_HEX}{{12}}|{_HEX}{{32}})"
_SLICE = rf"(?:[a-z0-9_.-]+-)?kubepods(?:-besteffort|-burstable)?-pod({_UID})\.slice(?::[^/]*)?"
_PLAIN = rf"pod({_UID})(?::[^/]*)?"
# Services that have pods below them, and are root's.
_RUNTIMES = ("containerd.service", "crio.service", "docker.service", "kubelet.service")
_PART = re.compile(f"(?:{_SLICE}|{_PLAIN})")


@dataclass(frozen=True)
class Pod:
    """Where a process runs."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True)
class Stray:
    """It is in a pod of which this node knows no namespace."""

    uid: str


Whereabouts: TypeAlias = Pod | Stray | None


def pod_uid(cgroup: str) -> str | None:
    """The uid of the pod that a process is in; None where it is in none that can be told.

    Args:
        cgroup: What ``/proc/<pid>/cgroup`` holds.
    """
    found = set()
    # Not splitlines: a cgroup's name may hold all that breaks a line but this.
    for line in cgroup.split("\n"):
        path = line.split(":", 2)[-1]
        if (uid := _outermost(path)) is not None:
            found.add(uid)
    return found.pop() if len(found) == 1 else None


def _outermost(path: str) -> str | None:
    for part in path.split("/"):
        if part == "user.slice" or (
            part.endswith((".service", ".scope")) and part not in _RUNTIMES
        ):
            return None
        if match := _PART.fullmatch(part):
            return (match[1] or match[2]).replace("_", "-")
    return None

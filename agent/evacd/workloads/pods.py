"""Which pod a process is in: its uid by the cgroup, its namespace and name by the kubelet's folders.

The kubelet makes ``/var/log/pods/<namespace>_<name>_<uid>`` before a pod's first container
starts, so whoever connects is there, and nobody but root may write there. Turned down: to ask the
API server, which needs the right to read every pod, and is not there when it is needed most.
"""

import os
from pathlib import Path

from evacd.workloads.cgroup import Pod, Stray, Whereabouts, pod_uid

# A kubelet runs 110 pods by default; a folder outlives its pod for a while.
_MOST_FOLDERS = 20_000


def whereabouts(pid: int, folders: Path) -> Whereabouts:
    """The pod of a process that is known to live; None outside of any. Blocks for a moment.

    Args:
        folders: Of the kubelet; where there is none, this is no Kubernetes node.
    """
    try:
        cgroup = Path(f"/proc/{pid}/cgroup").read_text(errors="replace")
    except OSError:
        return None
    uid = pod_uid(cgroup)
    if uid is None or not folders.is_dir():
        return None
    return _named(uid, folders) or Stray(uid)


def own_pod() -> str | None:
    """The uid of the pod that this process is in; None outside of any, or where it is not seen.

    In a cgroup namespace of its own a container sees itself and its neighbours in no pod at all.
    """
    try:
        return pod_uid(Path("/proc/self/cgroup").read_text(errors="replace"))
    except OSError:
        return None


def _named(uid: str, folders: Path) -> Pod | None:
    try:
        with os.scandir(folders) as entries:
            for _, entry in zip(range(_MOST_FOLDERS), entries, strict=False):
                namespace, _, rest = entry.name.partition("_")
                name, _, of = rest.rpartition("_")
                if of == uid and namespace and name:
                    return Pod(namespace, name, uid)
    except OSError:
        pass
    return None

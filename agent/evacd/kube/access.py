"""How a pod reaches its API server, and what its node is called.

Source: kubernetes.io/docs/tasks/run-application/access-api-from-pod (address, token, CA) and
…/concepts/workloads/pods/downward-api (spec.nodeName). Read 2026-10.
"""

import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True)
class Access:
    """How to reach the API server.

    Attributes:
        url: ``https://ADDRESS:PORT``, by address: name services go down early.
        token_file: Read again for every request, because the kubelet rotates it.
        ca_file: What its certificate is checked against; read again as well.
    """

    url: str
    token_file: Path
    ca_file: Path


def in_cluster(environ: Mapping[str, str], *, account: Path = SERVICE_ACCOUNT) -> Access | None:
    """The way that a pod has to its API server; None outside of a cluster.

    Args:
        account: Where the service account is mounted.
    """
    host = environ.get("KUBERNETES_SERVICE_HOST", "")
    port = environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not port.isdecimal():
        return None
    try:
        shown = f"[{host}]" if ipaddress.ip_address(host).version == 6 else host
    except ValueError:
        shown = host
    return Access(f"https://{shown}:{port}", account / "token", account / "ca.crt")


def node_name(name: str, *, otherwise: str, environ: Mapping[str, str]) -> str:
    """This node's name in Kubernetes: *name*, else NODE_NAME, *otherwise*, the host's."""
    return name or environ.get("NODE_NAME") or otherwise or socket.gethostname()

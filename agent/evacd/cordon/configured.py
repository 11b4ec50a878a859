"""From settings to the Kubernetes cordon, for the daemon and for checks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp

from evac.errors import ConfigError
from evacd.clock import Clock
from evacd.config import Config
from evacd.kube import Client, in_cluster, node_name

if TYPE_CHECKING:
    from evacd.cordon.kubernetes import KubernetesCordon
    from evacd.cordon.kubernetes.telling import KubernetesTelling


@dataclass(frozen=True)
class Kubernetes:
    """What closes the node of a cluster, and what tells of it."""

    cordon: "KubernetesCordon"
    telling: "KubernetesTelling"


def kubernetes(
    config: Config,
    session: aiohttp.ClientSession,
    clock: Clock,
    *,
    boot: str,
    environ: Mapping[str, str],
) -> Kubernetes | None:
    """The cordon of this Kubernetes node; None where there is none to close.

    Raises:
        ConfigError: It is wanted where there is no cluster.
    """
    cordon = config.cordon
    access = in_cluster(environ, account=config.node.account)
    if cordon.kubernetes == "off":
        return None
    if cordon.kubernetes == "auto" and (access is None or not access.token_file.exists()):
        return None
    if access is None:
        key = "cordon.kubernetes"
        expected = "auto or off outside of a cluster: KUBERNETES_SERVICE_HOST is not set"
        raise ConfigError(config.origins.get(key, key), key, expected)
    # Nobody pays for it outside of a cluster.
    from evacd.cordon.kubernetes import KubernetesCordon
    from evacd.cordon.kubernetes.telling import KubernetesTelling

    client = Client(session, access)
    node = node_name(config.node.name, otherwise=config.state.node, environ=environ)
    closing = KubernetesCordon(
        client,
        node=node,
        boot=boot,
        timeout_seconds=cordon.kubernetes_timeout_seconds,
        report_only=cordon.kubernetes == "report-only",
        evict_pods=cordon.kubernetes_evict,
    )
    telling = KubernetesTelling(
        client,
        clock,
        closing,
        node=node,
        boot=boot,
        timeout_seconds=cordon.kubernetes_timeout_seconds,
        aliases=cordon.kubernetes_conditions,
    )
    return Kubernetes(closing, telling)

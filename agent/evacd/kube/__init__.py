"""The Kubernetes API server, as far as a node's daemon needs it: by address, with a token."""

from evacd.kube.access import SERVICE_ACCOUNT, Access, in_cluster, node_name
from evacd.kube.client import LINE_LIMIT, Answer, Client, Failed, Limits, parse_json

__all__ = [
    "LINE_LIMIT",
    "SERVICE_ACCOUNT",
    "Access",
    "Answer",
    "Client",
    "Failed",
    "Limits",
    "in_cluster",
    "node_name",
    "parse_json",
]

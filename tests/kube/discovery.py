"""The kinds that the tests' API server has, and how clients learn of them."""

from dataclasses import dataclass
from typing import Any

_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


@dataclass(frozen=True)
class Resource:
    """One kind of object, and where it is."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    short: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()

    @property
    def group_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def base(self) -> str:
        return f"/apis/{self.group_version}" if self.group else f"/api/{self.version}"


NODES = Resource("", "v1", "nodes", "Node", False, ("no",), ("status",))
PODS = Resource("", "v1", "pods", "Pod", True, ("po",), ("status", "eviction"))
EVENTS = Resource("", "v1", "events", "Event", True, ("ev",))
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", False, ("ns",))
SECRETS = Resource("", "v1", "secrets", "Secret", True)
BUDGETS = Resource(
    "policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True, ("pdb",), ("status",)
)
ROLES = Resource("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", False)
BINDINGS = Resource(
    "rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", False
)
POLICIES = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingadmissionpolicies",
    "ValidatingAdmissionPolicy",
    False,
)
POLICY_BINDINGS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingadmissionpolicybindings",
    "ValidatingAdmissionPolicyBinding",
    False,
)
RESOURCES = (
    NODES,
    PODS,
    EVENTS,
    NAMESPACES,
    SECRETS,
    BUDGETS,
    ROLES,
    BINDINGS,
    POLICIES,
    POLICY_BINDINGS,
    Resource("", "v1", "configmaps", "ConfigMap", True, ("cm",)),
    Resource("", "v1", "services", "Service", True, ("svc",)),
    Resource("", "v1", "serviceaccounts", "ServiceAccount", True, ("sa",)),
    Resource("", "v1", "resourcequotas", "ResourceQuota", True, ("quota",), ("status",)),
    Resource("apps", "v1", "daemonsets", "DaemonSet", True, ("ds",), ("status",)),
    Resource("apps", "v1", "deployments", "Deployment", True, ("deploy",), ("status",)),
    Resource("batch", "v1", "jobs", "Job", True, (), ("status",)),
    Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", True, ("netpol",)),
    Resource("rbac.authorization.k8s.io", "v1", "roles", "Role", True),
    Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding", True),
    Resource("monitoring.coreos.com", "v1", "podmonitors", "PodMonitor", True),
)
VERSION = {
    "major": "1",
    "minor": "35",
    "gitVersion": "v1.35.0",
    "platform": "linux/amd64",
    "goVersion": "go1.25",
    "compiler": "gc",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "2026-01-01T00:00:00Z",
}


def groups() -> dict[str, Any]:
    """What /apis answers."""
    found = {}
    for each in RESOURCES:
        if each.group:
            version = {"groupVersion": each.group_version, "version": each.version}
            found[each.group] = {
                "name": each.group,
                "versions": [version],
                "preferredVersion": version,
            }
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": list(found.values())}


def resources(group_version: str) -> dict[str, Any] | None:
    """What a group's own page answers; None where there is no such group."""
    mine = [each for each in RESOURCES if each.group_version == group_version]
    if not mine:
        return None
    found = []
    for each in mine:
        found.append(
            {
                "name": each.plural,
                "singularName": each.kind.lower(),
                "namespaced": each.namespaced,
                "kind": each.kind,
                "shortNames": list(each.short),
                "verbs": _VERBS,
            }
        )
        for below in each.subresources:
            kind = "Eviction" if below == "eviction" else each.kind
            group = {"group": "policy", "version": "v1"} if below == "eviction" else {}
            found.append(
                {
                    "name": f"{each.plural}/{below}",
                    "singularName": "",
                    "namespaced": each.namespaced,
                    "kind": kind,
                    "verbs": ["create"] if below == "eviction" else ["get", "patch", "update"],
                    **group,
                }
            )
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version,
        "resources": found,
    }


def openapi(group_version: str) -> dict[str, Any]:
    """Just enough for a client to see that the server itself checks fields."""
    paths: dict[str, Any] = {}
    for each in RESOURCES:
        if each.group_version != group_version:
            continue
        below = "/namespaces/{namespace}" if each.namespaced else ""
        kind = {"group": each.group, "version": each.version, "kind": each.kind}
        operation = {
            "parameters": [{"name": "fieldValidation", "in": "query"}],
            "x-kubernetes-group-version-kind": kind,
        }
        paths[f"{each.base}{below}/{each.plural}"] = {"post": operation}
        paths[f"{each.base}{below}/{each.plural}/{{name}}"] = {"patch": operation, "put": operation}
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": VERSION["gitVersion"]},
        "paths": paths,
        "components": {"schemas": {}},
    }

"""Who may do what: tokens, RBAC and ValidatingAdmissionPolicies, by the stored objects.

Sources: kubernetes.io/docs/reference/access-authn-authz/rbac and …/validating-admission-policy;
the CEL of a policy is evaluated by a real CEL runtime. Of a policy's words only those that the
chart uses are known, and any other is an error here and no silent pass. Read 2026-11.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import cel

from tests.kube.discovery import BINDINGS, POLICIES, POLICY_BINDINGS, RESOURCES, ROLES, Resource
from tests.kube.storage import Object, Storage

_NAMESPACED_ROLES = next(each for each in RESOURCES if each.plural == "roles")
_NAMESPACED_BINDINGS = next(each for each in RESOURCES if each.plural == "rolebindings")
MASTERS = "system:masters"


@dataclass(frozen=True)
class User:
    """Whom a token stands for."""

    name: str
    groups: tuple[str, ...] = ()
    extra: Mapping[str, list[str]] = field(default_factory=dict)


def service_account(namespace: str, name: str, *, node: str) -> User:
    """The user of a token that the kubelet of *node* has projected into a pod."""
    return User(
        f"system:serviceaccount:{namespace}:{name}",
        ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"),
        {"authentication.kubernetes.io/node-name": [node]} if node else {},
    )


@dataclass(frozen=True)
class Wanted:
    """What a request wants to do."""

    verb: str
    resource: Resource
    subresource: str = ""
    namespace: str = ""
    name: str = ""

    @property
    def full(self) -> str:
        return f"{self.resource.plural}/{self.subresource}".rstrip("/")


def allowed(storage: Storage, user: User, wanted: Wanted) -> bool:
    """Some role that is bound to the user gives it."""
    if MASTERS in user.groups:
        return True
    return any(_gives(rule, wanted) for rule in _rules(storage, user, wanted.namespace))


def _rules(storage: Storage, user: User, namespace: str) -> Iterator[Mapping[str, Any]]:
    bindings = [(each, "") for each in storage.list(BINDINGS)]
    if namespace:
        bindings += [(each, namespace) for each in storage.list(_NAMESPACED_BINDINGS, namespace)]
    for binding, where in bindings:
        if not any(_is(user, subject) for subject in binding.get("subjects", [])):
            continue
        of = binding["roleRef"]
        kind = ROLES if of["kind"] == "ClusterRole" else _NAMESPACED_ROLES
        role = storage.find(kind, "" if kind is ROLES else where, of["name"])
        yield from (role or {}).get("rules") or []


def _is(user: User, subject: Mapping[str, Any]) -> bool:
    match subject["kind"]:
        case "ServiceAccount":
            return user.name == f"system:serviceaccount:{subject['namespace']}:{subject['name']}"
        case "Group":
            return subject["name"] in user.groups
        case _:
            return user.name == str(subject["name"])


def _gives(rule: Mapping[str, Any], wanted: Wanted) -> bool:
    names = rule.get("resourceNames")
    return (
        _has(rule["verbs"], wanted.verb)
        and _has(rule.get("apiGroups", []), wanted.resource.group)
        and _has(rule.get("resources", []), wanted.full)
        and (not names or wanted.name in names)
    )


def _has(words: Iterable[str], word: str) -> bool:
    return word in words or "*" in words


def denied(
    storage: Storage,
    user: User,
    wanted: Wanted,
    *,
    new: Object | None,
    old: Object | None,
) -> str:
    """Why a policy denies this change; "" where none does."""
    operation = {"create": "CREATE", "delete": "DELETE"}.get(wanted.verb, "UPDATE")
    for binding in storage.list(POLICY_BINDINGS):
        spec = binding["spec"]
        policy = storage.find(POLICIES, "", spec["policyName"])
        if policy is None or "Deny" not in spec["validationActions"]:
            continue
        if why := _judge(policy["spec"], operation, user, wanted, new=new, old=old):
            return f"ValidatingAdmissionPolicy '{spec['policyName']}' denied request: {why}"
    return ""


def _judge(
    spec: Mapping[str, Any],
    operation: str,
    user: User,
    wanted: Wanted,
    *,
    new: Object | None,
    old: Object | None,
) -> str:
    unknown = set(spec) - {
        "failurePolicy",
        "matchConstraints",
        "matchConditions",
        "variables",
        "validations",
    }
    assert not unknown, f"the tests' API server does not know {unknown} of a policy"
    rules = spec["matchConstraints"]["resourceRules"]
    if not any(
        _has(rule["operations"], operation)
        and _has(rule["apiGroups"], wanted.resource.group)
        and _has(rule["apiVersions"], wanted.resource.version)
        and _has(rule["resources"], wanted.full)
        for rule in rules
    ):
        return ""
    context: dict[str, Any] = {
        "object": new,
        "oldObject": old,
        "request": {
            "operation": operation,
            "name": wanted.name,
            "namespace": wanted.namespace,
            "userInfo": {
                "username": user.name,
                "groups": list(user.groups),
                "extra": dict(user.extra),
            },
        },
        "variables": {},
    }
    if not all(
        cel.evaluate(each["expression"], context) for each in spec.get("matchConditions", ())
    ):
        return ""
    for each in spec.get("variables", ()):
        context["variables"][each["name"]] = cel.evaluate(each["expression"], context)
    for each in spec["validations"]:
        try:
            passed = cel.evaluate(each["expression"], context)
        except (RuntimeError, ValueError, TypeError) as error:
            return f"expression '{each['expression']}' resulted in error: {error}"
        if not passed:
            return str(each.get("message", each["expression"]))
    return ""

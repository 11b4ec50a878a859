"""What single users and namespaces may, as ``[policy.users.NAME]``, ``[policy.namespaces.NAME]``."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from evac.generation import NAME
from evacd.config import kinds
from evacd.config.entries import WrongEntry
from evacd.config.kinds import Budget, Kind, WrongValue

# Together with a job's name it has to fit in what the protocol holds.
_PREFIX_PARTS = 2


@dataclass(frozen=True)
class UserPolicy:
    """One user's limits; what is not given is as for everybody.

    Attributes:
        name: User name, or a uid in digits.
        max_priority: The highest priority it may ask for, where that is less than everybody's.
        max_bytes: Memory of all its slots: a share of the node's budget, or bytes.
        prefix: Under which its jobs lie in each store; "" for its name.
    """

    name: str
    max_priority: int | None = None
    max_bytes: Budget | None = None
    prefix: str = ""


@dataclass(frozen=True)
class NamespacePolicy:
    """One Kubernetes namespace's limits; what is not given is as for everybody.

    Attributes:
        name: Of the namespace.
        max_priority: The highest its pods may ask for, where that is less than everybody's.
        prefix: Under which its jobs lie in each store; "" for its name.
    """

    name: str
    max_priority: int | None = None
    prefix: str = ""


def _prefix(value: object) -> str:
    if not isinstance(value, str):
        raise WrongValue
    parts = value.split("/")
    if len(parts) > _PREFIX_PARTS or not all(NAME.fullmatch(part) for part in parts):
        raise WrongValue
    return value


_PRIORITY = kinds.count(-1_000_000, 1_000_000)
_Parts: TypeAlias = Mapping[str, tuple[str, Callable[[object], Any]]]
_Policy = TypeVar("_Policy", UserPolicy, NamespacePolicy)
_PARTS: _Parts = {
    "max_priority": (_PRIORITY.expected, _PRIORITY.check),
    "max_bytes": (kinds.BUDGET.expected, kinds.BUDGET.check),
    "prefix": ('a name in quotes, or two, such as "team/ann"', _prefix),
}


def _users(value: object) -> tuple[UserPolicy, ...]:
    return _each(value, "user", lambda name, parts: UserPolicy(name, **parts), _PARTS)


def _namespaces(value: object) -> tuple[NamespacePolicy, ...]:
    parts = {name: part for name, part in _PARTS.items() if name != "max_bytes"}
    return _each(value, "namespace", lambda name, given: NamespacePolicy(name, **given), parts)


def _each(
    value: object, what: str, make: Callable[[str, dict[str, Any]], _Policy], parts: _Parts
) -> tuple[_Policy, ...]:
    if not isinstance(value, Mapping):
        raise WrongValue
    found = tuple(make(name, _one(name, table, what, parts)) for name, table in value.items())
    owners: dict[str, str] = {}
    for one in found:
        owner = one.prefix or one.name
        for other, whose in owners.items():
            if nested(owner, other):
                taken = f"a prefix of its own: {other} is {whose}'s"
                raise WrongEntry(one.name, *(["prefix"] if one.prefix else []), expected=taken)
        owners[owner] = one.name
    return found


def nested(one: str, other: str) -> bool:
    """Whether the same, or one below the other: a job of the outer one could be called like it."""
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def shared(
    users: Iterable[UserPolicy], namespaces: Iterable[NamespacePolicy]
) -> tuple[str, str, str] | None:
    """A namespace, its prefix, and the user who has it as well; None where there is no such."""
    for namespace in namespaces:
        for user in users:
            prefix = namespace.prefix or namespace.name
            if nested(prefix, user.prefix or user.name):
                return namespace.name, prefix, user.name
    return None


def _one(name: object, table: object, what: str, parts: _Parts) -> dict[str, Any]:
    if not isinstance(name, str) or not name or not name.isprintable():
        ids = ", or uids" if what == "user" else ""
        raise WrongEntry(str(name), expected=f"names of {what}s{ids}")
    if not isinstance(table, Mapping):
        raise WrongEntry(name, expected=f"a table for each {what}: [policy.{what}s.{name}]")
    values = {}
    for part, raw in table.items():
        if part not in parts:
            raise WrongEntry(name, part, expected=f"a {what} has no {part}: {', '.join(parts)}")
        expected, check = parts[part]
        try:
            values[part] = check(raw)
        except ValueError as error:
            raise WrongEntry(name, part, expected=f"a {what}'s {part} is {expected}") from error
    return values


def _text(text: str) -> Any:
    return json.loads(text)


def _shown(policies: tuple[UserPolicy | NamespacePolicy, ...]) -> str:
    return ", ".join(policy.name for policy in policies)


USERS = Kind(
    "a table for each user: [policy.users.NAME]", _users, _text, metavar="JSON", show=_shown
)
NAMESPACES = Kind(
    "a table for each namespace: [policy.namespaces.NAME]",
    _namespaces,
    _text,
    metavar="JSON",
    show=_shown,
)

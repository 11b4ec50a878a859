"""What single users may, as tables ``[policy.users.NAME]``."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

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


def _prefix(value: object) -> str:
    if not isinstance(value, str):
        raise WrongValue
    parts = value.split("/")
    if len(parts) > _PREFIX_PARTS or not all(NAME.fullmatch(part) for part in parts):
        raise WrongValue
    return value


_PRIORITY = kinds.count(-1_000_000, 1_000_000)
_PARTS: Mapping[str, tuple[str, Callable[[object], Any]]] = {
    "max_priority": (_PRIORITY.expected, _PRIORITY.check),
    "max_bytes": (kinds.BUDGET.expected, kinds.BUDGET.check),
    "prefix": ('a name in quotes, or two, such as "team/ann"', _prefix),
}


def _users(value: object) -> tuple[UserPolicy, ...]:
    if not isinstance(value, Mapping):
        raise WrongValue
    users = tuple(_user(name, table) for name, table in value.items())
    owners: dict[str, str] = {}
    for user in users:
        owner = user.prefix or user.name
        if owner in owners:
            taken = f"a prefix of its own: {owner} is {owners[owner]}'s"
            raise WrongEntry(user.name, *(["prefix"] if user.prefix else []), expected=taken)
        owners[owner] = user.name
    return users


def _user(name: object, table: object) -> UserPolicy:
    if not isinstance(name, str) or not name or not name.isprintable():
        raise WrongEntry(str(name), expected="names of users, or uids")
    if not isinstance(table, Mapping):
        raise WrongEntry(name, expected=f"a table for each user: [policy.users.{name}]")
    values = {}
    for part, raw in table.items():
        if part not in _PARTS:
            raise WrongEntry(name, part, expected=f"a user has no {part}: {', '.join(_PARTS)}")
        expected, check = _PARTS[part]
        try:
            values[part] = check(raw)
        except ValueError as error:
            raise WrongEntry(name, part, expected=f"a user's {part} is {expected}") from error
    return UserPolicy(name, **values)


def _text(text: str) -> Any:
    return json.loads(text)


def _shown(users: tuple[UserPolicy, ...]) -> str:
    return ", ".join(user.name for user in users)


USERS = Kind(
    "a table for each user: [policy.users.NAME]", _users, _text, metavar="JSON", show=_shown
)

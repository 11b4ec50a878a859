"""Who may register, as what, and under which prefix.

Pure: what the kernel said of a peer comes in, a prefix or a refusal goes out.
"""

import re
from dataclasses import dataclass

from evac.generation import NAME
from evac.wire import Mode, Register
from evacd.workloads.settings import BoardSettings


@dataclass(frozen=True)
class Refusal:
    """Not done; *reason* is written for the person who reads the workload's log."""

    reason: str


def owner_name(user: str | None, uid: int) -> str:
    """The first part of a job's prefix: the user's name, as a name that a path can hold.

    Where a name has to be changed for that, the uid is added, so that two users never
    share a prefix because their names look alike.
    """
    if user is None:
        return f"uid-{uid}"
    if NAME.fullmatch(user):
        return user
    plain = re.sub(r"[^A-Za-z0-9._-]", "-", user).lstrip("._-")[:40]
    return f"{plain}-{uid}" if plain else f"uid-{uid}"


def admit(
    message: Register, *, user: str | None, uid: int, aboard: int, settings: BoardSettings
) -> str | Refusal:
    """The job's prefix ``<owner>/<job>``, or why it may not come on board.

    Args:
        user: Name of the peer's uid, None where it has none.
        aboard: Live workloads of this uid, this one not counted.
    """
    if settings.allow_users and not {user, str(uid)} & set(settings.allow_users):
        return Refusal(f"user {user or uid} may not register: see allow_users")
    if message.mode not in set(Mode):
        return Refusal(f"mode {message.mode!r} is unknown: expected staged or callback")
    if message.mode == Mode.CALLBACK and not message.need_seconds > 0:
        return Refusal(
            "need_seconds is 0: a callback workload says how long its own flush takes, at most, "
            "because its turn is planned by it"
        )
    if message.rank >= message.world:
        return Refusal(f"rank {message.rank} is outside a world of {message.world}")
    if message.priority > settings.max_priority:
        return Refusal(
            f"priority {message.priority} is above {settings.max_priority}, the highest allowed"
        )
    if aboard >= settings.max_workloads:
        return Refusal(f"user {user or uid} has {aboard} workloads on board, the most allowed")
    return f"{owner_name(user, uid)}/{message.job}"

"""Who may register, up to which priority, with how much memory, and under which prefix.

Pure: what the kernel said of a peer comes in, what it may or a refusal goes out.
"""

import re
from dataclasses import dataclass

from evac.generation import NAME
from evac.store.location import is_address
from evac.wire import Mode, Register
from evacd.workloads.cgroup import Pod, Stray, Whereabouts
from evacd.workloads.settings import BoardSettings, UserLimits


@dataclass(frozen=True)
class Refusal:
    """Not done; *reason* is written for the person who reads the workload's log."""

    reason: str


@dataclass(frozen=True)
class Admission:
    """It may come on board.

    Attributes:
        unit: The job's prefix in each store.
        share: Bytes that all slots of its user may take together.
    """

    unit: str
    share: int


@dataclass(frozen=True)
class Rights:
    """What counts for one user.

    Attributes:
        share: As in `Admission`.
        owner: First part, or parts, of its jobs' prefixes.
    """

    max_priority: int
    share: int
    owner: str


def rights_of(
    user: str | None, uid: int, settings: BoardSettings, *, pod: Pod | None = None
) -> Rights:
    """Its own limits, under its name or else its uid, and where it has none everybody's.

    In a pod a uid means little: there its namespace's limits count, and are all of it but for
    the memory, which is shared by uid.
    """
    by_name = settings.users.get(user) if user is not None else None
    own = by_name or settings.users.get(str(uid)) or UserLimits()
    highest, share = settings.max_priority, settings.user_bytes
    if pod is not None:
        of = settings.namespaces.get(pod.namespace) or UserLimits()
        own = UserLimits(of.max_priority, own.max_bytes, of.prefix or pod.namespace)
    return Rights(
        max_priority=highest if own.max_priority is None else min(own.max_priority, highest),
        share=min(share if own.max_bytes is None else own.max_bytes, settings.memory_bytes),
        owner=own.prefix or owner_name(user, uid),
    )


def _given_to(owner: str, pod: Pod, settings: BoardSettings) -> str | None:
    """Another namespace that has been given what this one would have by its name, or a part of it."""
    for name, of in settings.namespaces.items():
        nested = f"{of.prefix}/".startswith(f"{owner}/") or f"{owner}/".startswith(f"{of.prefix}/")
        if of.prefix and nested and name != pod.namespace:
            return name
    return None


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
    message: Register,
    *,
    user: str | None,
    uid: int,
    aboard: int,
    settings: BoardSettings,
    pod: Whereabouts = None,
) -> Admission | Refusal:
    """Its prefix ``<owner>/<job>`` and its share, or why it may not come on board.

    Args:
        user: Name of the peer's uid, None where it has none.
        aboard: Live workloads of this uid, this one not counted.
        pod: Where it runs; its namespace is its owner then.
    """
    if isinstance(pod, Stray):
        return Refusal(
            f"your pod {pod.uid} is not among those in {settings.pods}, so its namespace is unknown: "
            "mount the host's folder there, or set policy.pods_dir"
        )
    if pod is not None and settings.allow_namespaces:
        if pod.namespace not in settings.allow_namespaces:
            return Refusal(f"namespace {pod.namespace} may not register: see allow_namespaces")
    elif settings.allow_namespaces and not settings.allow_users:
        return Refusal(
            f"user {user or uid} is in no pod of allow_namespaces: allow_users may name it beside them"
        )
    elif settings.allow_users and not {user, str(uid)} & set(settings.allow_users):
        return Refusal(f"user {user or uid} may not register: see allow_users")
    who = f"user {user or uid}" if pod is None else f"namespace {pod.namespace}"
    if message.mode not in set(Mode):
        return Refusal(f"mode {message.mode!r} is unknown: expected staged or callback")
    if message.mode == Mode.CALLBACK and not message.need_seconds > 0:
        return Refusal(
            "need_seconds is 0: a callback workload says how long its own flush takes, at most, "
            "because its turn is planned by it"
        )
    if message.rank >= message.world:
        return Refusal(f"rank {message.rank} is outside a world of {message.world}")
    for address in message.peers:
        if not is_address(address):
            return Refusal(f"peer {address!r} is none: expected host:port")
    rights = rights_of(user, uid, settings, pod=pod)
    if pod is not None and (other := _given_to(rights.owner, pod, settings)) is not None:
        return Refusal(f"prefix {rights.owner} is namespace {other}'s: see policy.namespaces")
    if message.priority > rights.max_priority:
        return Refusal(
            f"priority {message.priority} is above {rights.max_priority}, the highest that {who} "
            "may ask for"
        )
    if aboard >= settings.max_workloads:
        return Refusal(f"user {user or uid} has {aboard} workloads on board, the most allowed")
    return Admission(f"{rights.owner}/{message.job}", rights.share)

"""Whose generations these are, and which start of the job this is."""

import os
import pwd
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from evac.commit import claim_incarnation
from evac.errors import GenerationError, StoreError
from evac.generation import NAME
from evac.store import open_store
from evac.torch import blocking

# kubernetes.io/docs/tasks/run-application/access-api-from-pod, read 2026-11.
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True)
class Identity:
    """The fields of a manifest that never change while a process lives."""

    job: str
    run: str
    rank: int
    world: int

    @property
    def own_prefix(self) -> str:
        """``<owner>/<job>``: where a daemon would put this job, unless configured otherwise."""
        return f"{owner(os.environ)}/{self.job}"


def claim(stores: Sequence[str], prefix: str, identity: Identity, *, above: int) -> int:
    """Take the next incarnation in the first store that answers.

    Raises:
        GenerationError: None did; says why.
    """
    reason = "no store to claim an incarnation in"
    who = {"run": identity.run, "node": socket.gethostname(), "world": str(identity.world)}
    for url in stores:
        store = open_store(url)
        try:
            return blocking.run(
                lambda store=store: claim_incarnation(store, prefix, above=above, claim=who)  # type: ignore[misc] # binds the loop's variable
            )
        except StoreError as error:
            reason = f"{url}: {error}"
    raise GenerationError(prefix, f"no incarnation: {reason}")


def owner(environ: Mapping[str, str], *, account: Path = SERVICE_ACCOUNT) -> str:
    """Whose jobs these are: of a pod its namespace, else the user.

    A pod learns its namespace by EVAC_NAMESPACE (downward API: metadata.namespace), or by the
    service account that is mounted unless somebody forbids it.
    """
    namespace = environ.get("EVAC_NAMESPACE") or _mounted(account)
    if NAME.fullmatch(namespace):
        return namespace
    uid = os.geteuid()
    return owner_name(_user(uid), uid)


def _mounted(account: Path) -> str:
    try:
        return (account / "namespace").read_text().strip()
    except OSError:
        return ""


def owner_name(user: str | None, uid: int) -> str:
    """The first part of a prefix, as evacd names owners, so that both write to one place."""
    if user is None:
        return f"uid-{uid}"
    if NAME.fullmatch(user):
        return user
    plain = re.sub(r"[^A-Za-z0-9._-]", "-", user).lstrip("._-")[:40]
    return f"{plain}-{uid}" if plain else f"uid-{uid}"


def _user(uid: int) -> str | None:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None

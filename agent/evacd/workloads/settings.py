"""What the board is told once, at its start."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class UserLimits:
    """What one user may, where that is not what everybody may.

    Attributes:
        max_priority: The highest it may ask for, below everybody's; None for everybody's.
        max_bytes: What all its slots may take together; None for everybody's share.
        prefix: Under which its jobs' generations go in each store; "" for its name.
    """

    max_priority: int | None = None
    max_bytes: int | None = None
    prefix: str = ""


@dataclass(frozen=True)
class BoardSettings:
    """Plain values, checked where the configuration is read.

    Attributes:
        workload_path: Socket for workloads.
        admin_path: Socket for people and what they run.
        workload_mode: File mode of the workload socket: ``0o666`` lets every user in.
        admin_group: Group that may use the admin socket (mode 0660); "" for root alone (0600).
        memory_bytes: What all slots of the node may take together.
        user_bytes: What all slots of one user may take together.
        slots: The most that one workload gets.
        orphan_seconds: How long a dead workload's complete slots are kept.
        max_priority: The highest that any workload may ask for.
        allow_users: Who may register, by name or uid; empty for everybody.
        node: Host name, as told to workloads.
        boot: Kernel boot id.
        version: Of this daemon.
        stores: URLs, in order of preference; each is a lane that the units' bytes may take.
        hello_seconds: How long a connection may stay silent before its hello.
        max_strangers: Connections per uid that have not registered; past it the oldest goes.
        max_workloads: Live workloads per uid.
        last_words_seconds: How long a dead process is heard out, and with it whoever wants its rank.
        users: By name or uid, who has limits of its own.
        pods: The kubelet's folders of pods; None where this is no Kubernetes node.
        allow_namespaces: Whose pods may register; empty: `allow_users` decides.
        namespaces: By name, which have limits of their own.
        spill: Folder for what was staged by who has one slot; None for nowhere.
    """

    workload_path: Path
    admin_path: Path
    workload_mode: int
    admin_group: str
    memory_bytes: int
    user_bytes: int
    slots: int
    orphan_seconds: float
    max_priority: int
    allow_users: tuple[str, ...]
    node: str
    boot: str
    version: str
    stores: tuple[str, ...]
    hello_seconds: float = 10.0
    max_strangers: int = 64
    max_workloads: int = 1024
    last_words_seconds: float = 5.0
    users: Mapping[str, UserLimits] = field(default_factory=dict)
    pods: Path | None = None
    allow_namespaces: tuple[str, ...] = ()
    namespaces: Mapping[str, UserLimits] = field(default_factory=dict)
    spill: Path | None = None

"""What can be set: one frozen dataclass per concern; those of the notice sources in `sources`.

A field's `setting` is its whole declaration: the file's key is the field's name, and the
variable, the flag, the parser and the help come from what stands here.
"""

# ruff: noqa: RUF009 - setting() is dataclasses.field() with the table's columns

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from evacd.config import kinds
from evacd.config.declare import setting
from evacd.config.etcd import EtcdConfig
from evacd.config.kinds import Budget
from evacd.config.peers import PeerConfig
from evacd.config.sources import (
    AwsConfig,
    AzureConfig,
    GcpConfig,
    NodeConfig,
    NoticeConfig,
    ShutdownConfig,
    UserConfig,
)
from evacd.config.users import NAMESPACES, USERS, NamespacePolicy, UserPolicy


@dataclass(frozen=True)
class StoreConfig:
    """Where bytes are safe.

    Attributes:
        targets: URLs, in order of preference. None by default: a daemon without one saves nothing.
        durable_anyway: A local disk that looks as if it went with the machine is meant.
        keep: Whole generations per job that stay; older ones go when a newer one is whole.
    """

    targets: tuple[str, ...] = setting(
        kinds.STORE_URLS,
        (),
        "store URLs, best first; the variable takes them comma separated",
        flag="--store",
    )
    durable_anyway: bool = setting(
        kinds.BOOLEAN,
        False,
        "a file:// store on a boot or temporary disk is meant; check does not fail on it",
        flag="--store-is-durable",
    )
    keep: int = setting(kinds.count(1, 1000), 3, "whole generations per job that stay in a store")


@dataclass(frozen=True)
class SocketConfig:
    """The two sockets.

    Attributes:
        workload: Path of the socket that workloads connect to.
        admin: Path of the socket that takes orders.
        workload_mode: File mode of the workload socket.
        admin_group: Name of the group that may use the admin socket beside root; "" for none.
    """

    workload: Path = setting(
        kinds.PATH,
        Path("/run/evac/evacd.sock"),
        "path of the socket that workloads connect to",
        flag="--socket",
    )
    admin: Path = setting(
        kinds.PATH,
        Path("/run/evac/admin.sock"),
        "path of the socket that takes drain and cancel",
        flag="--admin-socket",
    )
    workload_mode: int = setting(
        kinds.MODE, 0o666, "octal file mode of the workload socket", flag="--socket-mode"
    )
    admin_group: str = setting(
        kinds.TEXT,
        "",
        "name of the group that may use the admin socket beside root",
        flag="--admin-group",
    )


@dataclass(frozen=True)
class MemoryConfig:
    """Memory that holds staged state.

    Attributes:
        budget: Of all slots together: a share of MemAvailable at the start, or bytes.
        slots: Slots per rank, while the budget allows.
        orphan_seconds: Seconds that a dead workload's slots are kept for its successor.
        spill: Folder on a fast local disk for the newest generation of a rank for which memory
            has room for one slot only, so that the slot can be written again. It need not outlive
            the machine, and ends with evacd.
    """

    budget: Budget = setting(
        kinds.BUDGET,
        Budget.parse("50%"),
        "memory for staged state: a share of MemAvailable at the start, or bytes (64GiB)",
    )
    slots: int = setting(kinds.count(1, 16), 3, "slots per rank, while the budget allows")
    orphan_seconds: float = setting(
        kinds.number("seconds", 0), 3600.0, "seconds to keep a dead workload's slots for adoption"
    )
    spill: Path | None = setting(
        kinds.SOME_PATH,
        None,
        "folder on a local disk for what a rank with room for one slot has staged; none: nowhere",
    )


@dataclass(frozen=True)
class PolicyConfig:
    """Who may register, as what, and how much of this node is its own.

    Attributes:
        max_priority: The highest priority that any workload may ask for.
        max_bytes_per_user: Of all slots of one user together: a share of the node's budget,
            or bytes.
        allow_users: User names that may register; empty: whoever can open the socket.
        users: Who has limits of its own.
        allow_namespaces: Namespaces whose pods may register; empty: `allow_users` decides. Who is
            in no pod has to be among `allow_users` then.
        namespaces: Kubernetes namespaces that have limits of their own.
        pods_dir: The kubelet's folders of pods, by which a pod's namespace is known: its jobs
            then lie under ``<namespace>/<job>``. None, or no such folder: users count.
    """

    max_priority: int = setting(
        kinds.count(-1_000_000, 1_000_000), 1000, "highest priority that a workload may ask for"
    )
    allow_users: tuple[str, ...] = setting(
        kinds.NAMES, (), "users that may register; none named: whoever can open the socket"
    )
    max_bytes_per_user: Budget = setting(
        kinds.BUDGET,
        Budget.parse("100%"),
        "memory of one user's workloads together: a share of the budget, or bytes (64GiB)",
    )
    users: tuple[UserPolicy, ...] = setting(
        USERS,
        (),
        "limits of single users (max_priority, max_bytes, prefix), as [policy.users.NAME]; "
        "the variable takes them as JSON",
    )
    allow_namespaces: tuple[str, ...] = setting(
        kinds.NAMES, (), "namespaces whose pods may register; none named: as allow_users says"
    )
    namespaces: tuple[NamespacePolicy, ...] = setting(
        NAMESPACES,
        (),
        "limits of Kubernetes namespaces (max_priority, prefix), as [policy.namespaces.NAME]; "
        "the variable takes them as JSON",
    )
    pods_dir: Path | None = setting(
        kinds.SOME_PATH,
        Path("/var/log/pods"),
        "the kubelet's folders of pods, by which a workload's namespace is known",
    )


@dataclass(frozen=True)
class PlanConfig:
    """What the planner reckons with.

    Attributes:
        commit_reserve_seconds: Seconds before the deadline that are kept for commits.
        assumed_bytes_per_second: Rate of a store that was not measured yet.
        window_seconds: Seconds from a notice to the end, for what is shown before there is one,
            and for drills; 0 for those that the cloud gives.
    """

    commit_reserve_seconds: float = setting(
        kinds.number("seconds", 0), 2.0, "seconds before the deadline kept for commits"
    )
    assumed_bytes_per_second: float = setting(
        kinds.number("bytes per second", 0, above=True),
        100e6,
        "bytes per second of a store that was not measured yet",
    )
    window_seconds: float = setting(
        kinds.number("seconds", 0),
        0.0,
        "seconds from a notice to the end that risk and drills reckon with; 0: the cloud's own",
    )


@dataclass(frozen=True)
class QuietConfig:
    """What goes to the store while no order runs.

    Attributes:
        enabled: Generations trickle to the store before there is any notice.
        bytes_per_second: What they may take of the link: a share of its measured rate, or bytes.
        min_interval_seconds: From the beginning of one generation to the next one's, of one job.
    """

    enabled: bool = setting(
        kinds.BOOLEAN, True, "write generations to the store before any notice", flag="--quiet"
    )
    bytes_per_second: Budget = setting(
        kinds.CAP,
        Budget.parse("25%"),
        "what that may take: a share of the link's measured rate, or bytes per second (200MB)",
    )
    min_interval_seconds: float = setting(
        kinds.number("seconds", 0), 60.0, "seconds from one generation to the next, of one job"
    )


@dataclass(frozen=True)
class CordonConfig:
    """What keeps new work away: a program, started directly, and the Kubernetes API server.

    Attributes:
        command: Program and arguments; gets the order as JSON on stdin; empty: no program.
        undo_command: Undoes it after a cancel.
        timeout_seconds: Seconds that either may take.
        kubernetes: ``auto``: in a cluster, with a service account. ``report-only``: another
            handler closes the node, and only a condition and events are ours.
        kubernetes_timeout_seconds: Seconds for all of a close or a reopen, tries included.
        kubernetes_conditions: Types of conditions that are set beside our own.
        kubernetes_evict: Evict the node's pods once everything is saved.
    """

    command: tuple[str, ...] = setting(
        kinds.COMMAND, (), "program and arguments that cordon this node; the order comes on stdin"
    )
    undo_command: tuple[str, ...] = setting(
        kinds.COMMAND, (), "program and arguments that undo the cordon after a cancel"
    )
    timeout_seconds: float = setting(
        kinds.number("seconds", 0, above=True), 10.0, "seconds that a cordon command may take"
    )
    kubernetes: str = setting(
        kinds.choice(("auto", "on", "report-only", "off")),
        "auto",
        "cordon this Kubernetes node; report-only where another handler does",
    )
    kubernetes_timeout_seconds: float = setting(
        kinds.number("seconds", 0, above=True),
        20.0,
        "seconds for all of a close or a reopen in Kubernetes, tries included",
    )
    kubernetes_conditions: tuple[str, ...] = setting(
        kinds.NAMES,
        (),
        "node conditions set beside EvacLeaving, such as GCESpotPreempting or Terminating",
    )
    kubernetes_evict: bool = setting(
        kinds.BOOLEAN, False, "evict this node's pods once everything is saved"
    )


@dataclass(frozen=True)
class DepartureConfig:
    """Who is told that this node leaves.

    Attributes:
        webhook_url: Gets a JSON POST per departure; "" for nobody.
        rendezvous: Stores of torchrun jobs that hear of this node, whoever is on board.
        registered: Also the store that a job's own workloads name.
        timeout_seconds: Seconds for one announcement, its retries included.
        secret_file: Its content signs the POST; None: unsigned.
    """

    webhook_url: str = setting(kinds.SOME_HTTP_URL, "", "URL that gets a JSON POST per departure")
    rendezvous: tuple[str, ...] = setting(
        kinds.MEETING_PLACES,
        (),
        "rendezvous stores of torchrun jobs that hear of every departure",
    )
    registered: bool = setting(
        kinds.BOOLEAN, True, "tell the rendezvous store that a job's own workloads name"
    )
    timeout_seconds: float = setting(
        kinds.number("seconds", 0, above=True),
        10.0,
        "seconds for one announcement, its retries included",
    )
    secret_file: Path | None = setting(
        kinds.SOME_PATH, None, "path of a file whose content signs the POST"
    )


@dataclass(frozen=True)
class HttpConfig:
    """Metrics and health over HTTP; read-only.

    Attributes:
        enabled: Serve them. A port that cannot be had is told and stops nothing.
        address: To listen on.
        port: 0 takes a free one.
        degraded_seconds: Seconds that a source of certain notices may go without an answer
            before ``/readyz`` fails.
    """

    enabled: bool = setting(
        kinds.BOOLEAN, True, "serve /metrics, /healthz and /readyz", flag="--http"
    )
    address: str = setting(kinds.ADDRESS, "127.0.0.1", "address to serve them on")
    port: int = setting(kinds.count(0, 65535), 9911, "port to serve them on; 0 takes a free one")
    degraded_seconds: float = setting(
        kinds.number("seconds", 0, above=True),
        120.0,
        "seconds that a source of certain notices may be without an answer before /readyz fails",
    )


@dataclass(frozen=True)
class StateConfig:
    """What outlives the daemon.

    Attributes:
        dir: Directory of the incident journal and of the table of slots; made where it is missing. Where
            it cannot be written, the sockets' directory is used, until the next start.
        node: This machine's name; "": its host name.
    """

    dir: Path = setting(kinds.PATH, Path("/var/lib/evac"), "directory of the incident journal")
    node: str = setting(kinds.TEXT, "", "name of this node; by default its host name")


@dataclass(frozen=True)
class LogConfig:
    """What is said on stderr.

    Attributes:
        format: ``console`` for people, ``json`` for machines; ``auto``: console on a terminal.
        level: The least level that is written.
    """

    format: str = setting(
        kinds.choice(("auto", "console", "json")), "auto", "auto: console on a terminal, else json"
    )
    level: str = setting(
        kinds.choice(("debug", "info", "warning", "error")), "info", "least level that is written"
    )


@dataclass(frozen=True)
class Config:
    """All settings; each part of the daemon is handed its own section.

    Attributes:
        origins: Where each value that is not a default came from, by dotted key.
    """

    store: StoreConfig = field(default_factory=StoreConfig)
    notice: NoticeConfig = field(default_factory=NoticeConfig)
    aws: AwsConfig = field(default_factory=AwsConfig)
    gcp: GcpConfig = field(default_factory=GcpConfig)
    azure: AzureConfig = field(default_factory=AzureConfig)
    shutdown: ShutdownConfig = field(default_factory=ShutdownConfig)
    node: NodeConfig = field(default_factory=NodeConfig)
    user: UserConfig = field(default_factory=UserConfig)
    sockets: SocketConfig = field(default_factory=SocketConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    plan: PlanConfig = field(default_factory=PlanConfig)
    quiet: QuietConfig = field(default_factory=QuietConfig)
    peer: PeerConfig = field(default_factory=PeerConfig)
    cordon: CordonConfig = field(default_factory=CordonConfig)
    departure: DepartureConfig = field(default_factory=DepartureConfig)
    etcd: EtcdConfig = field(default_factory=EtcdConfig)
    http: HttpConfig = field(default_factory=HttpConfig)
    state: StateConfig = field(default_factory=StateConfig)
    log: LogConfig = field(default_factory=LogConfig)
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

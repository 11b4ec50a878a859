"""What can be set of the notice sources: who is heard, and what their words are taken for."""

# ruff: noqa: RUF009 - setting() is dataclasses.field() with the table's columns

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from evacd.config import kinds
from evacd.config.declare import setting
from evacd.config.entries import DATE, POLICIES, RULES, NodeRule

_WATCH = kinds.choice(("auto", "on", "off"))


@dataclass(frozen=True)
class NoticeConfig:
    """Who announces the end of this machine.

    Attributes:
        cloud: ``auto`` finds out; ``none`` listens to no cloud.
        metadata_url: Root URL of the metadata service; "": the cloud's own.
        poll_seconds: Seconds between two questions, where a cloud has to be asked again and
            again (AWS, Azure).
        advise_again_seconds: Seconds after which advice that still stands is told again.
    """

    cloud: str = setting(
        kinds.choice(("auto", "aws", "gcp", "azure", "none")),
        "auto",
        "whose notices to hear; auto finds out, none hears no cloud",
        flag="--cloud",
    )
    metadata_url: str = setting(
        kinds.SOME_METADATA_ROOT,
        "",
        "root URL of the metadata service; by default the cloud's own",
        flag="--metadata-url",
    )
    poll_seconds: float = setting(
        # Azure answers five questions a second and no more.
        kinds.number("seconds", 0.2),
        1.0,
        "seconds between two questions to AWS or Azure",
        flag="--poll-seconds",
    )
    advise_again_seconds: float = setting(
        kinds.number("seconds", 0, above=True),
        600.0,
        "seconds after which advice that still stands is told again",
        flag="--advise-again-seconds",
    )


@dataclass(frozen=True)
class AwsConfig:
    """Amazon EC2.

    Attributes:
        ipv6: Ask at the IPv6 address; it has to be enabled on the instance.
        rebalance: Hear rebalance recommendations, which only advise.
        hook_seconds: How long the Auto Scaling group's terminating hook holds the instance.
        policies: What a scheduled event starts, by its code, where not the default.
        ignored_events: Ids of scheduled events that this machine has been through.
        capacity_block_end: When its Capacity Block ends, which EC2 does not tell it; None
            where it is in none.
        early_seconds: Seconds before that end at which the instance goes.
    """

    ipv6: bool = setting(kinds.BOOLEAN, False, "ask EC2 at its IPv6 address")
    rebalance: bool = setting(kinds.BOOLEAN, True, "hear rebalance recommendations (advice)")
    hook_seconds: float = setting(
        kinds.number("seconds", 0),
        30.0,
        "seconds that the Auto Scaling group's terminating hook holds the instance",
    )
    policies: tuple[tuple[str, str], ...] = setting(
        POLICIES, (), "by the code of a scheduled event: early, planned, advise or ignore"
    )
    ignored_events: tuple[str, ...] = setting(
        kinds.NAMES, (), "ids of scheduled events that this machine has been through"
    )
    capacity_block_end: datetime | None = setting(
        DATE, None, "end of this instance's Capacity Block, as a date with its offset"
    )
    early_seconds: float = setting(
        kinds.number("seconds", 0), 1800.0, "seconds before that end at which the instance goes"
    )


@dataclass(frozen=True)
class GcpConfig:
    """Google Compute Engine.

    Attributes:
        window_seconds: Seconds from a preemption notice to the machine's end: 120 where the
            VM was made with that notice.
        stop_window_seconds: Seconds of the VM's graceful shutdown.
        trust_true_at_boot: Believe "preempted" at once, even in the machine's first minute.
    """

    window_seconds: float = setting(
        kinds.number("seconds", 0), 30.0, "seconds from a GCP preemption notice to the end"
    )
    stop_window_seconds: float = setting(
        kinds.number("seconds", 0), 30.0, "seconds of the VM's graceful shutdown, where it has one"
    )
    trust_true_at_boot: bool = setting(
        kinds.BOOLEAN, False, "believe a preemption notice of the first minute without a re-read"
    )


@dataclass(frozen=True)
class AzureConfig:
    """Microsoft Azure.

    Attributes:
        machine: This machine's name in Scheduled Events; "" asks the service.
        preempt_assume_seconds: Seconds that a preemption is planned to leave, at most.
        acknowledge: Tell Azure to go ahead once all is saved: this machine's preemption only.
        api_version: Of Scheduled Events.
    """

    machine: str = setting(kinds.TEXT, "", "this machine's name in Scheduled Events")
    preempt_assume_seconds: float = setting(
        kinds.number("seconds", 0), 10.0, "seconds that a preemption is planned to leave, at most"
    )
    acknowledge: bool = setting(
        kinds.BOOLEAN, False, "tell Azure to go ahead with a preemption once all is saved"
    )
    api_version: str = setting(kinds.TEXT, "2020-07-01", "api-version of Scheduled Events")


@dataclass(frozen=True)
class ShutdownConfig:
    """The machine's own shutdown.

    Attributes:
        watch: ``auto``: where there is a system bus.
        budget_seconds: Seconds that the machine lasts, at most, once its shutdown has begun.
        run_dir: The host's ``/run``, where a container has it elsewhere.
        bus_address: D-Bus address of the system bus; "" for the usual one.
    """

    watch: str = setting(_WATCH, "auto", "hear logind announce a shutdown, and delay it")
    budget_seconds: float = setting(
        kinds.number("seconds", 0),
        30.0,
        "seconds that the machine lasts, at most, once its shutdown has begun",
    )
    run_dir: Path = setting(kinds.PATH, Path("/run"), "path of the host's /run")
    bus_address: str = setting(kinds.TEXT, "", "D-Bus address; by default the system bus")


@dataclass(frozen=True)
class NodeConfig:
    """This machine as a Kubernetes node, watched for marks.

    Attributes:
        watch: ``auto``: where this runs in a cluster.
        name: The node's name; "": NODE_NAME, else this machine's.
        account: Folder with the service account's ``token`` and ``ca.crt``; for the cordon, too.
        rules: A site's own marks; they go before the known ones.
    """

    watch: str = setting(_WATCH, "auto", "hear the marks on this Kubernetes node")
    name: str = setting(kinds.TEXT, "", "this node's name in Kubernetes; by default NODE_NAME")
    account: Path = setting(
        kinds.PATH,
        Path("/var/run/secrets/kubernetes.io/serviceaccount"),
        "folder with the service account's token and ca.crt",
    )
    rules: tuple[NodeRule, ...] = setting(
        RULES, (), "marks that are notices, as [[node.rules]]; the variable takes them as JSON"
    )


@dataclass(frozen=True)
class UserConfig:
    """Notices that you supply: a file, a program, a server.

    Attributes:
        file: Path of a JSON notice; None for none.
        exec: Program and arguments that print one.
        http: URL of a server that tells one.
        period_seconds: Seconds between two looks.
    """

    file: Path | None = setting(kinds.SOME_PATH, None, "path of a file that holds your notices")
    exec: tuple[str, ...] = setting(
        kinds.COMMAND, (), "program and arguments that print your notices"
    )
    http: str = setting(kinds.SOME_NOTICE_URL, "", "URL of a server that tells your notices")
    period_seconds: float = setting(
        kinds.number("seconds", 0.1), 1.0, "seconds between two looks at them"
    )

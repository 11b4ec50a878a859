"""What this node does for other nodes of its jobs: memory for their bytes."""

# ruff: noqa: RUF009 - setting() is dataclasses.field() with the table's columns

from dataclasses import dataclass
from pathlib import Path

from evacd.config import kinds
from evacd.config.declare import setting
from evacd.config.kinds import Budget


@dataclass(frozen=True)
class PeerConfig:
    """Where other nodes put bytes into this one's memory: ``evac://this-node:port``.

    Attributes:
        listen: Address and port; "" for nowhere.
        token_file: Its content opens it, and is what this node opens others with; whoever has
            it reads and writes the staged state of all jobs here. None: nothing is asked, which
            only a loopback address may do.
        budget: Of all that is held for others: a share of MemAvailable at the start, or bytes.
            What this node's own workloads may still ask for is never touched.
        keep_seconds: Seconds that a generation is kept to which nobody adds.
        connections: The most at once.
    """

    listen: str = setting(
        kinds.SOME_LISTEN,
        "",
        "address and port on which other nodes may put bytes into this one's memory",
    )
    token_file: Path | None = setting(
        kinds.SOME_PATH,
        None,
        "path of a file whose content, the same on all nodes, opens peers' memory",
    )
    budget: Budget = setting(
        kinds.BUDGET,
        Budget.parse("25%"),
        "memory for other nodes' bytes: a share of MemAvailable at the start, or bytes (64GiB)",
    )
    keep_seconds: float = setting(
        kinds.number("seconds", 0, above=True),
        3600.0,
        "seconds to keep another node's generation to which nobody adds",
    )
    connections: int = setting(kinds.count(1, 1024), 64, "connections of other nodes at once")

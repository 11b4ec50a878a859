"""What the configuration says of users, on a real node."""

import os
from pathlib import Path

from evac.commit import verify
from evac.generation import Generation
from evac.store import open_store
from tests.agent.daemon.nodes import Node

MEBI = 1 << 20


def toml(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


async def test_a_user_s_own_prefix_and_share_count(node: Node) -> None:
    file = toml(
        node.home / "evac.toml",
        f'[policy.users.{os.getuid()}]\nmax_priority = 10\nmax_bytes = "8MiB"\nprefix = "team/me"\n',
    )
    node.start("--config", file)
    workload = node.staged(5, nbytes=MEBI, priority=10)

    too_much = node.workload("other", nbytes=8 * MEBI)
    assert too_much.do("connect")["connected"]
    refused = too_much.do("reserve")

    assert "your user's share of this node is 8 MiB" in refused["error"]
    assert workload.do("connect")["prefix"] == "team/me/job"
    node.drain()
    assert node.settled()["team/me/job"]["kept"]
    store = open_store(f"file://{node.store}")
    assert await verify(store, "team/me/job", Generation(1, 5)) == ()
